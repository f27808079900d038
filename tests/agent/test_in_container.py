"""The agent knows whether it runs in a container (SHARE-03)."""

from pathlib import Path

import pytest

from agent.gpu.host import in_container

pytestmark = pytest.mark.req("SHARE-03")


@pytest.mark.parametrize("mark", [".dockerenv", "run/.containerenv"])
def test_each_runtime_leaves_its_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert not in_container(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / mark).touch()
    assert in_container(tmp_path)


def test_kubernetes_tells_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert in_container(tmp_path)
