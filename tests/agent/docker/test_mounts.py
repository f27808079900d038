"""What of the host a container may see."""

import socket
from pathlib import Path

import pytest

from agent.contract.codes import Code
from agent.models.mounts import HostMount, mount_model, mount_volume
from agent.models.paths import PathRefused, PathRules


@pytest.fixture
def rules(tmp_path: Path) -> PathRules:
    model = tmp_path / "models" / "m"
    model.mkdir(parents=True)
    (model / "model.gguf").touch()
    (model / "config.json").touch()
    return PathRules(allowed=(str(tmp_path / "models"),), relative_root=str(tmp_path / "models"))


@pytest.mark.req("AGENT-05")
def test_model_folder_is_mounted_where_it_was_given_and_read_only(tmp_path: Path, rules: PathRules) -> None:
    folder = f"{tmp_path}/models/m"
    assert mount_model(folder, rules, gguf=False).mounts == [HostMount(folder, folder, read_only=True)]
    assert mount_model(folder, rules, gguf=False).inside == folder
    assert mount_model(f"{folder}/", rules, gguf=True).inside == f"{folder}/model.gguf"
    assert mount_model("m", rules, gguf=True).inside == f"{folder}/model.gguf"


@pytest.mark.req("AGENT-05")
def test_single_file_brings_its_shards_and_no_neighbour(tmp_path: Path, rules: PathRules) -> None:
    for name in ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "b-00002-of-00002.gguf"):
        (tmp_path / "models" / name).touch()
    first = f"{tmp_path}/models/a-00001-of-00002.gguf"
    made = mount_model(first, rules, gguf=True)
    assert [Path(m.target).name for m in made.mounts] == ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"]
    assert made.inside == first
    assert len(mount_model(f"{tmp_path}/models/m/model.gguf", rules, gguf=True).mounts) == 1


@pytest.mark.req("AGENT-05")
def test_links_that_lead_nowhere_inside_are_refused_with_the_path_as_given(
    tmp_path: Path, rules: PathRules
) -> None:
    blob = tmp_path / "models" / "blob"
    blob.touch()
    (tmp_path / "models" / "m" / "weights.bin").symlink_to(blob)
    given = f"{tmp_path}/models/m"
    with pytest.raises(PathRefused) as caught:
        mount_model(given, rules, gguf=False)
    assert caught.value.reason.code is Code.MODEL_NOT_FOUND_ON_NODE
    assert caught.value.reason.params == {"path": given, "link": "weights.bin"}
    # a link that stays inside is one like any file
    (tmp_path / "models" / "m" / "weights.bin").unlink()
    (tmp_path / "models" / "m" / "alias").symlink_to("model.gguf")
    assert mount_model(given, rules, gguf=False).mounts


@pytest.mark.req("AGENT-05", "AGENT-15")
@pytest.mark.parametrize(
    "volume",
    [
        "{m}:/etc/data",
        "{m}:/proc",
        "{m}:/",
        "{m}:relative",
        "{m}",
        "{m}:/data:rwx",
        "{m}:/data:ro:z",
        "/etc:/data",
        "/var/run/docker.sock:/data",
        "{m}/../../state:/data",
        "{sock}:/data",
        "{state}:/data",
        "{above}:/data",
    ],
)
def test_volumes_that_are_refused(
    tmp_path: Path, rules: PathRules, volume: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "models" / "agent" / "state"
    state.mkdir(parents=True)
    sock = tmp_path / "models" / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(tmp_path / "models")  # a socket has room for a short path only
        listener.bind("s")
        places = {
            "m": tmp_path / "models" / "m",
            "sock": sock,
            "state": state,
            "above": state.parent,
        }
        with pytest.raises(PathRefused) as caught:
            mount_volume(volume.format(**places), rules, never=(str(state), "/var/run/docker.sock"))
        assert caught.value.reason.code is Code.PATH_NOT_ALLOWED


@pytest.mark.req("AGENT-05")
def test_volumes(tmp_path: Path, rules: PathRules) -> None:
    folder = f"{tmp_path}/models/m"
    assert mount_volume(f"{folder}:/data:ro", rules) == HostMount(folder, "/data", read_only=True)
    assert mount_volume(f"{folder}:/data", rules).read_only is False
    with pytest.raises(PathRefused) as caught:
        mount_volume(f"{folder}/none:/data", rules)
    assert caught.value.reason.code is Code.MODEL_NOT_FOUND_ON_NODE
