"""An image that came by one tenant's credentials is not everybody's."""

import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.config import ConfigError, PullPolicy
from agent.contract.codes import Code
from agent.runtime.base import StartRefused
from agent.runtime.docker_client import DockerRefused
from agent.runtime.docker_private import PrivateImages
from tests.agent.docker.conftest import Bench
from tests.agent.docker.test_labels_and_images import FakeApi, images, later
from tests.fakes.registry import Registry, running_registry

LOGIN = {"username": "me", "password": "hunter2"}
WRONG = {"username": "me", "password": "guess"}
real = [pytest.mark.slow, pytest.mark.xdist_group("docker"), pytest.mark.req("AGENT-19")]


@pytest.fixture
def registry() -> Iterator[Registry]:
    with running_registry() as made:
        yield made


@pytest.fixture
def image(bench: Bench, registry: Registry) -> Iterator[str]:
    """On its registry only; the runtime fetches what is not here."""
    bench.again(pull_policy=PullPolicy.IF_ABSENT)
    yield registry.offer(f"tenant/{secrets.token_hex(4)}", secrets.token_hex(8))
    for row in bench.api.images(all=True):
        if any(tag.startswith(registry.host) for tag in row.get("RepoTags") or row.get("RepoDigests") or []):
            bench.api.remove_image(row["Id"], force=True)


def require(bench: Bench, image: str, credentials: dict[str, str] | None) -> str:
    return bench.runtime._images.require(image, credentials, until=later())


def refused(bench: Bench, image: str, credentials: dict[str, str] | None) -> str:
    """Docker's words to somebody who may not have it."""
    with pytest.raises(StartRefused) as caught:
        require(bench, image, credentials)
    assert caught.value.reason.code is Code.PULL_FAILED
    return str(caught.value.reason.params["why"])


class TestWithARealDocker:
    pytestmark = real

    def test_image_of_one_tenant_is_not_the_next_ones(self, bench: Bench, image: str) -> None:
        refused(bench, image, None)
        found = require(bench, image, LOGIN)
        assert found == bench.api.inspect_image(image)["Id"]
        assert "no basic auth credentials" in refused(bench, image, None)
        refused(bench, image, WRONG)
        bench.again(pull_policy=PullPolicy.IF_ABSENT)  # the agent's next run knows it still
        refused(bench, image, None)
        assert require(bench, image, LOGIN) == found
        with pytest.raises(StartRefused) as caught:
            bench.start(bench.script("pass", image=image))
        assert caught.value.reason.code is Code.PULL_FAILED
        assert bench.mine() == [] and bench.networks() == []

    def test_no_other_name_leads_to_it(self, bench: Bench, image: str) -> None:
        found = require(bench, image, LOGIN)
        bench.api.tag(image, "example/alias", "1")
        for name in (found, found.removeprefix("sha256:"), found[7:19], "example/alias:1"):
            with pytest.raises((StartRefused, DockerRefused)):
                require(bench, name, None)
        bench.api.remove_image("example/alias:1")

    def test_who_was_let_in_once_needs_no_registry_again(
        self, bench: Bench, image: str, registry: Registry
    ) -> None:
        found = require(bench, image, LOGIN)
        asked = len(registry.asked)
        assert require(bench, image, LOGIN) == found
        assert len(registry.asked) == asked
        registry.refusal = 503, "away"
        assert require(bench, image, LOGIN) == found
        refused(bench, image, None)

    def test_image_that_its_registry_gives_to_all_is_everybodys(
        self, bench: Bench, image: str, registry: Registry
    ) -> None:
        found = require(bench, image, LOGIN)
        registry.password = None
        assert require(bench, image, None) == found

    def test_node_that_never_asks_a_registry_refuses(self, bench: Bench, image: str) -> None:
        require(bench, image, LOGIN)
        bench.again(pull_policy=PullPolicy.NEVER)
        assert "somebody's credentials" in refused(bench, image, None)

    def test_fetch_with_credentials_takes_nothing_from_others(
        self, bench: Bench, image: str, registry: Registry
    ) -> None:
        registry.password = None
        found = require(bench, image, None)
        bench.again(pull_policy=PullPolicy.ALWAYS)
        registry.password = LOGIN["password"]
        assert require(bench, image, LOGIN) == found
        bench.again(pull_policy=PullPolicy.IF_ABSENT)
        registry.refusal = 503, "away"
        assert require(bench, image, None) == found

    def test_new_content_under_the_same_name_is_private_too(
        self, bench: Bench, image: str, registry: Registry
    ) -> None:
        old = require(bench, image, LOGIN)
        registry.offer(image.partition("/")[2].rpartition(":")[0], "new content")
        bench.again(pull_policy=PullPolicy.ALWAYS)
        new = require(bench, image, LOGIN)
        bench.again(pull_policy=PullPolicy.IF_ABSENT)
        assert new != old
        refused(bench, image, None)

    def test_words_of_a_registry_start_no_endless_tries(
        self, bench: Bench, image: str, registry: Registry
    ) -> None:
        for status, text in ((500, "context canceled"), (503, "transport is closing"), (504, "")):
            registry.refusal = status, text
            refused(bench, image, LOGIN)


@pytest.mark.req("AGENT-19")
def test_image_is_private_before_its_fetch_has_told_its_end(tmp_path: Path) -> None:
    api = FakeApi()
    made = images(api, tmp_path)
    fetch = threading.Thread(target=lambda: made.require("a/b:1", LOGIN, until=later()))
    fetch.start()
    while not api.pulls:
        time.sleep(0.01)
    api.here.add("a/b:1")  # Docker has it, and its answer has not ended yet
    assert made.must_pull("a/b:1", None) is True
    api.here.add("public:1")
    assert made.must_pull("public:1", None) is False
    api.gate.set()
    fetch.join(10)
    assert made.must_pull("a/b:1", LOGIN) is False


@pytest.mark.req("AGENT-19")
def test_fetch_that_the_agents_end_cut_short_marks_its_image(tmp_path: Path) -> None:
    record = PrivateImages(tmp_path / "private-images.json")
    record.begin("a/b:1", ["sha256:old"])
    api = FakeApi()
    api.here |= {"a/b:1", "old"}
    api.ids["old"] = "sha256:old"
    made = images(api, tmp_path)
    assert made.must_pull("a/b:1", None) is True
    assert made.must_pull("old", None) is False
    again = PrivateImages(tmp_path / "private-images.json")
    assert again.holds("sha256:a/b:1") and again.fetches() == {}


@pytest.mark.req("AGENT-19")
def test_fetch_that_a_full_disk_kept_from_beginning_marks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = PrivateImages(tmp_path / "private-images.json")
    with monkeypatch.context() as full:
        full.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError):
            record.begin("a/b:1", [])
    assert record.fetches() == {}


@pytest.mark.req("AGENT-19")
def test_record_that_cannot_be_read_stops_the_agent(tmp_path: Path) -> None:
    file = tmp_path / "private-images.json"
    file.write_text("{")
    with pytest.raises(ConfigError, match="Restore the file"):
        PrivateImages(file)
