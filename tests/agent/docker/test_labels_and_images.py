"""What is read from Docker's lists, and how images are fetched; without a Docker."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError, ImageNotFound

from agent.config import PullPolicy
from agent.contract.codes import Code
from agent.contract.messages import CardReport, HealthCheck
from agent.contract.states import TaskType
from agent.runtime.base import StartRefused
from agent.runtime.docker_client import Docker, NoAnswer
from agent.runtime.docker_engines import engines_here
from agent.runtime.docker_images import Images, split_reference
from agent.runtime.docker_labels import build_labels, read_listed, spec_of
from agent.runtime.docker_private import PrivateImages
from tests.agent.fakes import make_settings, make_spec


def row(**changes: Any) -> dict[str, Any]:
    spec = make_spec(engine_key="the-key", env={"TOKEN": "secret"}, health_check=HealthCheck(path="/up"))
    labels = build_labels(spec, agent="mine", node="node-1")
    assert "the-key" not in str(labels) and "secret" not in str(labels)
    return {"Id": "c1", "Names": ["/task-a"], "State": "running", "Labels": labels} | changes


@pytest.mark.req("AGENT-09")
def test_container_tells_what_watching_it_needs() -> None:
    found = read_listed(row(), "mine")
    assert found is not None and (found.task_id, found.attempt, found.state) == ("task-a", 1, "running")
    spec = spec_of(found, ["LLAMA_API_KEY=the-key", "TOKEN=secret", "HETEROFLOW_TASK_ID=task-a"])
    assert (spec.engine_key, spec.env["TOKEN"]) == ("the-key", "secret")
    assert (spec.ports, spec.health_check.path) == (make_spec().ports, "/up")
    assert spec.task_type is TaskType.INFERENCE


@pytest.mark.req("AGENT-09")
def test_labels_of_another_version_are_watched_as_a_plain_container() -> None:
    labels = {**row()["Labels"], "heteroflow.serving": "{"}
    found = read_listed(row(Labels=labels), "mine")
    assert found is not None
    assert spec_of(found, []).health_check.type == "none"


@pytest.mark.req("AGENT-09")
@pytest.mark.parametrize(
    "changes",
    [
        {"Labels": None},
        {"Labels": {}},
        {"Names": ["/something-else"]},
        {"Labels": {**row()["Labels"], "heteroflow.agent": "another"}},
        {"Labels": {**row()["Labels"], "heteroflow.attempt": "x"}},
        {"Labels": {**row()["Labels"], "heteroflow.task": "../../etc"}, "Names": ["/../../etc"]},
    ],
)
def test_what_is_not_ours_or_out_of_form_is_not_seen(changes: dict[str, Any]) -> None:
    assert read_listed(row(**changes), "mine") is None


@pytest.mark.req("AGENT-11")
def test_images_count_under_their_exact_name() -> None:
    llama, vllm = "ghcr.io/ggml-org/llama.cpp:server", "vllm/vllm-openai:latest"
    new = CardReport("GPU-1", 0, "nvidia", "L20", compute_capability="8.9")
    old = CardReport("GPU-2", 0, "nvidia", "V100", compute_capability="7.0")
    assert [e.name for e in engines_here({llama: "1", vllm: "2"}, [])[0]] == ["llamacpp"]
    assert {e.name for e in engines_here({llama: "1", vllm: "2"}, [new])[0]} == {"llamacpp", "vllm"}
    assert [e.name for e in engines_here({vllm: "2"}, [old])[0]] == []
    found, hints = engines_here({f"registry.example:5000/{llama}": "1"}, [])
    assert found == []
    assert f"docker tag registry.example:5000/{llama} {llama}" in hints[0]


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("a", ("a", "latest")),
        ("a/b:1", ("a/b", "1")),
        ("r.example:5000/a/b", ("r.example:5000/a/b", "latest")),
        ("r.example:5000/a/b:2", ("r.example:5000/a/b", "2")),
        ("a/b@sha256:00", ("a/b", "sha256:00")),
    ],
)
def test_references_are_split(image: str, parts: tuple[str, str]) -> None:
    assert split_reference(image) == parts


class FakeApi:
    """A registry's side of Docker."""

    def __init__(self) -> None:
        self.here: set[str] = set()
        self.ids: dict[str, str] = {}
        self.pulls: list[tuple[str, dict[str, str] | None]] = []
        self.gate = threading.Event()
        self.error: Exception | None = None
        self.lines: list[dict[str, Any]] = [
            {"status": "Downloading", "id": "l", "progressDetail": {"current": 1, "total": 2}}
        ]

    def inspect_image(self, image: str) -> dict[str, str]:
        if image not in self.here:
            raise ImageNotFound("no", response=Response(404), explanation=f"No such image: {image}")
        return {"Id": self.ids.get(image, f"sha256:{image}")}

    def images(self, **_: object) -> list[str]:
        return [self.ids.get(image, f"sha256:{image}") for image in self.here]

    def info(self) -> dict[str, str]:
        return {"DockerRootDir": "/"}

    def pull(self, repository: str, *, tag: str, auth_config: dict[str, str] | None, **_: object) -> Any:
        self.pulls.append((f"{repository}:{tag}", auth_config))
        self.gate.wait(10)
        if self.error is not None:
            raise self.error
        yield from self.lines
        self.here.add(f"{repository}:{tag}")


class Response:
    def __init__(self, status_code: int) -> None:
        self.status_code = status_code
        self.reason = "no"


class FakeDocker(Docker):
    def __init__(self, api: FakeApi) -> None:
        self.fake = api

    @property
    def api(self) -> Any:
        return self.fake

    def close(self) -> None:
        return


def images(api: FakeApi, folder: Path, **changes: object) -> Images:
    values: dict[str, object] = {"pull_policy": PullPolicy.IF_ABSENT, "disk_floor_mb": 0, **changes}
    record = PrivateImages(folder / "private-images.json")
    return Images(FakeDocker(api), make_settings(folder, **values), record)


def later(seconds: float = 60.0) -> float:
    return time.monotonic() + seconds


def asked(made: Images, credentials: list[dict[str, str] | None]) -> list[object]:
    """Everybody asks at once; what each got."""
    answers: list[object] = []

    def ask(own: dict[str, str] | None) -> None:
        try:
            answers.append(made.require("a/b:1", own, until=later()))
        except Exception as error:
            answers.append(error)

    threads = [threading.Thread(target=ask, args=(own,)) for own in credentials]
    for thread in threads:
        thread.start()
    made._docker.fake.gate.set()  # type: ignore[attr-defined]
    for thread in threads:
        thread.join(20)
    return answers


@pytest.mark.req("AGENT-19")
def test_one_pull_for_many_waiters_and_another_for_other_credentials(tmp_path: Path) -> None:
    api = FakeApi()
    made = images(api, tmp_path, pull_policy=PullPolicy.ALWAYS)
    login = {"username": "me", "password": "hunter2"}
    began = [threading.Event() for _ in range(4)]
    deadline = time.monotonic() + 10

    def ask(own: dict[str, str] | None, event: threading.Event) -> None:
        made.require("a/b:1", own, until=later())
        event.set()

    for event in began[:3]:
        threading.Thread(target=ask, args=(None, event), daemon=True).start()
    threading.Thread(target=ask, args=(login, began[3]), daemon=True).start()
    while len(api.pulls) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    api.gate.set()
    assert all(event.wait(10) for event in began)
    assert sorted(api.pulls, key=str) == [("a/b:1", None), ("a/b:1", login)]


@pytest.mark.req("AGENT-19")
def test_policies(tmp_path: Path) -> None:
    api = FakeApi()
    assert isinstance(asked(images(api, tmp_path, pull_policy=PullPolicy.NEVER), [None])[0], StartRefused)
    assert api.pulls == []
    made = images(api, tmp_path)
    assert made.must_pull("a/b:1", None) is True
    assert asked(made, [None]) == ["sha256:a/b:1"]
    assert made.must_pull("a/b:1", None) is False
    assert asked(made, [None]) == ["sha256:a/b:1"] and len(api.pulls) == 1
    assert images(api, tmp_path, pull_policy=PullPolicy.ALWAYS).must_pull("a/b:1", None) is True


@pytest.mark.req("AGENT-19")
def test_failures_of_a_pull(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    api = FakeApi()
    api.error = APIError("no", response=Response(500), explanation="unauthorized: no")
    (refused,) = asked(images(api, tmp_path), [{"username": "me", "password": "hunter2"}])
    assert isinstance(refused, StartRefused) and refused.reason.code is Code.PULL_FAILED
    assert "hunter2" not in caplog.text + str(refused)
    api.error = ConnectionResetError("away")
    assert isinstance(asked(images(api, tmp_path), [None])[0], NoAnswer)
    api.error, api.lines = None, [{"error": "manifest for a/b:1 not found: manifest unknown"}]
    (missing,) = asked(images(api, tmp_path), [None])
    assert isinstance(missing, StartRefused) and missing.reason.code is Code.IMAGE_MISSING


@pytest.mark.req("AGENT-19")
def test_pull_has_a_deadline(tmp_path: Path) -> None:
    api = FakeApi()
    with pytest.raises(StartRefused) as caught:
        images(api, tmp_path).require("a/b:1", None, until=later(0.05))
    assert caught.value.reason.code is Code.PULL_FAILED
    api.gate.set()


@pytest.mark.req("AGENT-19")
def test_silence_makes_a_deadline_no_longer(tmp_path: Path) -> None:
    api = FakeApi()
    api.gate.set()
    api.error = ConnectionResetError("away")
    made = images(api, tmp_path)
    with pytest.raises(NoAnswer):
        made.require("a/b:1", None, until=later())
    with pytest.raises(StartRefused) as caught:
        made.require("a/b:1", None, until=later(0))
    assert caught.value.reason.code is Code.PULL_FAILED


@pytest.mark.req("AGENT-19")
def test_who_gives_up_does_not_wait_for_the_pull(tmp_path: Path) -> None:
    api = FakeApi()
    made = images(api, tmp_path)
    assert made.require("a/b:1", None, until=later(), given_up=lambda: True) == ""
    assert not api.here  # it goes on for others
    assert asked(made, [None]) == ["sha256:a/b:1"]
    assert len(api.pulls) == 1
