"""Images of this node: which are here, and how one is fetched (AGENT-11, AGENT-19).

Owns the pulls: one for many waiters with the same credentials, within a deadline, and none where
Docker's disk would fall below its floor; and the rule that an image which was fetched with credentials
is used by those only whom its registry gives it to. Credentials go to Docker with the one request and
are neither kept nor logged.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agent.config import PullPolicy, Settings
from agent.contract.codes import Code, Reason, reason
from agent.runtime.base import StartRefused
from agent.runtime.docker_client import Docker, DockerRefused, NoAnswer, told
from agent.runtime.docker_private import PrivateImages
from agent.runtime.docker_words import Trouble, Words, read_error, reason_for

log = logging.getLogger("agent.runtime")
PROGRESS_S = 10.0
WAIT_S = 0.1
MB = 1 << 20
Credentials = dict[str, str] | None
NOT_YOURS = (
    "it was fetched to this node with somebody's credentials, and pull_policy = never keeps this node from "
    "asking the registry whether you may have it too"
)


@dataclass
class Pull:
    """One fetch under way; `failed` is set before `done`."""

    done: threading.Event = field(default_factory=threading.Event)
    failed: Reason | NoAnswer | None = None
    share: str = ""


class Images:
    """`require` is called from the threads that start containers, and may take long."""

    def __init__(self, docker: Docker, settings: Settings, private: PrivateImages) -> None:
        self._docker = docker
        self._settings = settings
        self._private = private
        self._lock = threading.Lock()
        self._pulls: dict[tuple[str, str], Pull] = {}
        self._shown: set[tuple[str, str]] = set()  # private image, and credentials that its registry took

    def here(self, image: str) -> str:
        """The id of the image on this node, "" where it is not. Raises NoAnswer or DockerRefused (a bad
        name)."""
        try:
            with told():
                return str(self._docker.api.inspect_image(image)["Id"])
        except DockerRefused as error:
            if error.words.trouble in (Trouble.IMAGE_MISSING, Trouble.GONE):
                return ""
            raise

    def must_pull(self, image: str, credentials: Credentials) -> bool:
        """Whether a start with this image asks the registry first. Raises as `here`."""
        return self._settings.pull_policy is not PullPolicy.NEVER and not self._usable(image, credentials)

    def require(
        self,
        image: str,
        credentials: Credentials,
        *,
        until: float,
        given_up: Callable[[], bool] = lambda: False,
    ) -> str:
        """Have the image here by the pull policy; its id, by which no later fetch changes what is meant.

        `until` is in seconds of the monotonic clock. Returns "" once `given_up` says so; the pull then
        goes on for others. Raises StartRefused, NoAnswer or DockerRefused.
        """
        found = self._usable(image, credentials)
        if found:
            return found
        if self._settings.pull_policy is PullPolicy.NEVER:
            if self.here(image):
                raise StartRefused(reason(Code.PULL_FAILED, image=image, why=NOT_YOURS))
            raise StartRefused(reason(Code.IMAGE_MISSING, image=image))
        if not self._pull_once(image, credentials, until, given_up):
            return ""
        found = self.here(image)
        if not found:
            raise NoAnswer(f"{image} was fetched and is gone again")
        with self._lock:
            self._shown.add((found, _whose(credentials)))
        return found

    def _usable(self, image: str, credentials: Credentials) -> str:
        """The id of an image that may be used without a word from its registry, else ""."""
        if self._settings.pull_policy is PullPolicy.ALWAYS:
            return ""
        found = self.here(image)
        if not found:
            return ""
        with self._lock:
            if (found, _whose(credentials)) in self._shown:
                return found
        self._mark_all()
        return "" if self._private.holds(found) else found

    def _mark_all(self) -> None:
        for token, fetch in self._private.fetches().items():
            self._mark(token, fetch.image, over=False)

    def _mark(self, token: str, image: str, *, over: bool) -> None:
        """Mark what a fetch with credentials has brought so far. Raises NoAnswer."""
        try:
            found = self.here(image)
        except DockerRefused:
            found = ""  # a name that is none brings nothing
        self._private.bring(token, found, over=over)

    def _pull_once(
        self, image: str, credentials: Credentials, until: float, given_up: Callable[[], bool]
    ) -> bool:
        """Join the fetch of the same image by the same credentials, or begin one. False when given up."""
        key = image, _whose(credentials)
        with self._lock:
            pull = self._pulls.get(key)
            first = pull is None
            if pull is None:
                pull = self._pulls[key] = Pull()
        if first:
            worker = threading.Thread(
                target=self._work, args=(key, pull, credentials), name="pull", daemon=True
            )
            worker.start()
        while not pull.done.wait(WAIT_S) and time.monotonic() < until:
            if given_up():
                return False
        if not pull.done.is_set():
            seconds = round(self._settings.pull_deadline_s)
            why = f"no end within {seconds} s ({pull.share or 'no answer yet'})"
            raise StartRefused(reason(Code.PULL_FAILED, image=image, why=why))
        if isinstance(pull.failed, NoAnswer):
            if time.monotonic() >= until:
                raise StartRefused(reason(Code.PULL_FAILED, image=image, why=str(pull.failed)))
            raise pull.failed
        if pull.failed is not None:
            raise StartRefused(pull.failed)
        return True

    def _work(self, key: tuple[str, str], pull: Pull, credentials: Credentials) -> None:
        try:
            self._require_space()
            if credentials:
                self._pull_private(key[0], pull, credentials)
            else:
                self._pull(key[0], pull, None)
        except StartRefused as error:
            pull.failed = error.reason
        except DockerRefused as error:
            pull.failed = _why_not_pulled(error.words, key[0])
        except NoAnswer as error:
            pull.failed = error
        except Exception:
            log.exception("fetching %s failed", key[0])
            pull.failed = reason(Code.INTERNAL)
        finally:
            with self._lock:
                self._pulls.pop(key, None)
            pull.done.set()
            self._docker.close()

    def _pull_private(self, image: str, pull: Pull, credentials: Credentials) -> None:
        """What was here before stays everybody's: else one tenant could take an image from all others."""
        self._mark_all()
        with told():
            here = [str(row) for row in self._docker.api.images(all=True, quiet=True)]
        token = self._private.begin(image, here)
        try:
            self._pull(image, pull, credentials)
        finally:
            self._mark(token, image, over=True)

    def _pull(self, image: str, pull: Pull, credentials: Credentials) -> None:
        login: dict[str, Any] | None = None
        if credentials:
            login = {k: credentials[k] for k in ("username", "password") if k in credentials}
        repository, tag = split_reference(image)
        layers: dict[str, tuple[int, int]] = {}
        said_at = time.monotonic()
        log.info("fetching %s", image)
        with told(by_registry=True):
            for line in self._docker.api.pull(
                repository, tag=tag, stream=True, decode=True, auth_config=login
            ):
                if "error" in line:
                    # under a status of 200, within the stream
                    words = read_error("APIError", 500, str(line["error"]), by_registry=True)
                    raise StartRefused(_why_not_pulled(words, image))
                pull.share = _share(layers, line)
                if time.monotonic() - said_at > PROGRESS_S:
                    said_at = time.monotonic()
                    log.info("fetching %s: %s", image, pull.share)

    def _require_space(self) -> None:
        """Raises StartRefused when Docker's disk is too full; a disk that cannot be read stops nothing."""
        with told():
            root = str(self._docker.api.info().get("DockerRootDir", ""))
        try:
            free_mb = shutil.disk_usage(root).free // MB
        except OSError as error:
            log.warning("the free space of Docker's disk cannot be read: %s", error.strerror)
            return
        if free_mb < self._settings.disk_floor_mb:
            floor = self._settings.disk_floor_mb
            raise StartRefused(reason(Code.DISK_SHORT, free_mb=free_mb, floor_mb=floor))

    def tags(self) -> dict[str, str]:
        """Every name:tag on this node with the image's id. Raises NoAnswer or DockerRefused."""
        with told():
            rows = self._docker.api.images()
        return {str(tag): str(row.get("Id", "")) for row in rows for tag in row.get("RepoTags") or []}


def _whose(credentials: Credentials) -> str:
    return hashlib.sha256(json.dumps(credentials or {}, sort_keys=True).encode()).hexdigest()


def _why_not_pulled(words: Words, image: str) -> Reason:
    why = reason_for(words, image=image, model_path="", vendor="")
    if why.code is Code.START_FAILED and words.trouble is not Trouble.BAD_REFERENCE:
        return reason(Code.PULL_FAILED, image=image, why=words.text)
    return why


def split_reference(image: str) -> tuple[str, str]:
    """Repository and tag (`latest` where none is named); a digest stands in the tag's place."""
    if "@" in image:
        repository, _, digest = image.partition("@")
        return repository, digest
    repository, colon, tag = image.rpartition(":")
    if not colon or "/" in tag:
        return image, "latest"
    return repository, tag


def _share(layers: dict[str, tuple[int, int]], line: dict[str, object]) -> str:
    detail = line.get("progressDetail")
    if isinstance(detail, dict) and detail.get("total") and line.get("status") == "Downloading":
        layers[str(line.get("id"))] = (int(detail.get("current", 0)), int(detail["total"]))
    have, total = (sum(column) for column in zip(*layers.values(), strict=True)) if layers else (0, 0)
    return f"{have // MB} of {total // MB} MB" if total else str(line.get("status", ""))
