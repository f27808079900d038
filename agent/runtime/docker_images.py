"""Images of this node: which are here, and how one is fetched (AGENT-11, AGENT-19).

Owns the pulls: one for many waiters with the same credentials, within a deadline, and none where
Docker's disk would fall below its floor. Credentials go to Docker with the one request and are
neither kept nor logged.
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
from agent.runtime.docker_words import Trouble, read_error, reason_for

log = logging.getLogger("agent.runtime")
PROGRESS_S = 10.0
WAIT_S = 0.1
MB = 1 << 20
Credentials = dict[str, str] | None


@dataclass
class Pull:
    """One fetch under way; `failed` is set before `done`."""

    done: threading.Event = field(default_factory=threading.Event)
    failed: Reason | NoAnswer | None = None
    share: str = ""


class Images:
    """`require` is called from the threads that start containers, and may take long."""

    def __init__(self, docker: Docker, settings: Settings) -> None:
        self._docker = docker
        self._settings = settings
        self._lock = threading.Lock()
        self._pulls: dict[tuple[str, str], Pull] = {}

    def here(self, image: str) -> bool:
        """Whether the image is on this node. Raises NoAnswer or DockerRefused (a bad name)."""
        try:
            with told():
                self._docker.api.inspect_image(image)
        except DockerRefused as error:
            if error.words.trouble in (Trouble.IMAGE_MISSING, Trouble.GONE):
                return False
            raise
        return True

    def must_pull(self, image: str) -> bool:
        """Whether a start with this image fetches it first. Raises as `here`."""
        policy = self._settings.pull_policy
        return policy is PullPolicy.ALWAYS or (policy is PullPolicy.IF_ABSENT and not self.here(image))

    def require(
        self, image: str, credentials: Credentials, given_up: Callable[[], bool] = lambda: False
    ) -> None:
        """Have the image here by the pull policy, or return earlier once `given_up` says so; the pull
        then goes on for others. Raises StartRefused, NoAnswer or DockerRefused."""
        if self._settings.pull_policy is PullPolicy.NEVER:
            if not self.here(image):
                raise StartRefused(reason(Code.IMAGE_MISSING, image=image))
            return
        if not self.must_pull(image):
            return
        self._pull_once(image, credentials, given_up)

    def _pull_once(self, image: str, credentials: Credentials, given_up: Callable[[], bool]) -> None:
        """Join the fetch of the same image by the same credentials, or begin one."""
        whose = json.dumps(credentials or {}, sort_keys=True).encode()
        key = image, hashlib.sha256(whose).hexdigest()
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
        give_up_at = time.monotonic() + self._settings.pull_deadline_s
        while not pull.done.wait(WAIT_S) and time.monotonic() < give_up_at:
            if given_up():
                return
        if not pull.done.is_set():
            seconds = round(self._settings.pull_deadline_s)
            why = f"no end within {seconds} s ({pull.share or 'no answer yet'})"
            raise StartRefused(reason(Code.PULL_FAILED, image=image, why=why))
        if isinstance(pull.failed, NoAnswer):
            raise pull.failed
        if pull.failed is not None:
            raise StartRefused(pull.failed)

    def _work(self, key: tuple[str, str], pull: Pull, credentials: Credentials) -> None:
        try:
            self._require_space()
            self._pull(key[0], pull, credentials)
        except StartRefused as error:
            pull.failed = error.reason
        except DockerRefused as error:
            pull.failed = reason_for(error.words, image=key[0], model_path="", vendor="")
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

    def _pull(self, image: str, pull: Pull, credentials: Credentials) -> None:
        login: dict[str, Any] | None = None
        if credentials:
            login = {k: credentials[k] for k in ("username", "password") if k in credentials}
        repository, tag = split_reference(image)
        layers: dict[str, tuple[int, int]] = {}
        said_at = time.monotonic()
        log.info("fetching %s", image)
        with told():
            for line in self._docker.api.pull(
                repository, tag=tag, stream=True, decode=True, auth_config=login
            ):
                if "error" in line:
                    self._refused(image, str(line["error"]))
                pull.share = _share(layers, line)
                if time.monotonic() - said_at > PROGRESS_S:
                    said_at = time.monotonic()
                    log.info("fetching %s: %s", image, pull.share)

    def _refused(self, image: str, text: str) -> None:
        """The registry's error comes inside the stream, under a status of 200."""
        why = reason_for(read_error("APIError", 500, text), image=image, model_path="", vendor="")
        if why.code is Code.START_FAILED:
            why = reason(Code.PULL_FAILED, image=image, why=why.params["why"])
        raise StartRefused(why)

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
