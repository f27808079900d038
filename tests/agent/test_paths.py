"""Which host paths a task may read (AGENT-05)."""

from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract.codes import Code
from agent.models.locate import check_links, gguf_file
from agent.models.paths import PathRefused, PathRules, check_model_path, check_path, is_within, normalise

pytestmark = pytest.mark.req("AGENT-05")


@pytest.fixture
def rules(tmp_path: Path) -> PathRules:
    (tmp_path / "models" / "a").mkdir(parents=True)
    (tmp_path / "models" / "private").mkdir()
    (tmp_path / "models-twin").mkdir()
    (tmp_path / "outside").mkdir()
    root = str(tmp_path / "models")
    return PathRules(allowed=(root,), denied=(f"{root}/private",), relative_root=root)


def refused(path: str, rules: PathRules) -> Code:
    with pytest.raises(PathRefused) as caught:
        check_path(path, rules)
    assert caught.value.reason.params["path"] == path
    return caught.value.reason.code


def test_path_inside(rules: PathRules) -> None:
    assert check_path(f"{rules.allowed[0]}/./a//", rules) == Path(rules.allowed[0], "a")
    assert check_path(f"//{rules.allowed[0]}/a", rules) == Path(rules.allowed[0], "a")


@pytest.mark.parametrize(
    "tail",
    [
        "/../outside",
        "/a/../../outside",
        "-twin",
        "/private",
        "/private/x",
        "/a/../private",
        "/a\0",
        "/" + "x" * 256,
        "/x" * 2100,
        "/\ud800",
    ],
)
def test_outside_is_refused(rules: PathRules, tail: str) -> None:
    assert refused(rules.allowed[0] + tail, rules) is Code.PATH_NOT_ALLOWED


def test_percent_is_no_dot(rules: PathRules) -> None:
    assert refused(f"{rules.allowed[0]}/%2e%2e/outside", rules) is Code.MODEL_NOT_FOUND_ON_NODE


def test_outside_is_refused_unseen_and_alike(rules: PathRules, tmp_path: Path) -> None:
    with mock.patch.object(Path, "resolve", side_effect=AssertionError("looked")):
        there = refused(str(tmp_path / "outside"), rules)
        missing = refused(str(tmp_path / "nowhere"), rules)
    assert there is missing is Code.PATH_NOT_ALLOWED


def test_link_outside_is_refused_alike(rules: PathRules, tmp_path: Path) -> None:
    root = Path(rules.allowed[0])
    (root / "there").symlink_to(tmp_path / "outside")
    (root / "missing").symlink_to(tmp_path / "nowhere")
    (root / "hidden").symlink_to(root / "private")
    (root / "loop").symlink_to(root / "loop")
    for name in ("there", "missing", "hidden", "loop", "there/x"):
        assert refused(str(root / name), rules) in (Code.PATH_NOT_ALLOWED, Code.MODEL_NOT_FOUND_ON_NODE)
    assert (
        refused(str(root / "there"), rules) is refused(str(root / "missing"), rules) is Code.PATH_NOT_ALLOWED
    )
    assert refused(str(root / "hidden"), rules) is Code.PATH_NOT_ALLOWED


def test_link_inside_and_linked_prefix_are_allowed(rules: PathRules, tmp_path: Path) -> None:
    root = Path(rules.allowed[0])
    (root / "alias").symlink_to(root / "a")
    assert check_path(str(root / "alias"), rules) == root / "a"
    (tmp_path / "door").symlink_to(root)
    assert check_path(f"{tmp_path}/door/a", PathRules(allowed=(f"{tmp_path}/door",))) == root / "a"


def test_nothing_is_allowed_without_prefixes() -> None:
    assert refused("/data", PathRules(allowed=())) is Code.PATH_NOT_ALLOWED


def test_relative_name_needs_its_config(rules: PathRules) -> None:
    root = Path(rules.relative_root)
    with pytest.raises(PathRefused) as caught:
        check_model_path("a", rules)
    assert caught.value.reason.code is Code.MODEL_NOT_FOUND_ON_NODE
    assert caught.value.reason.params["path"] == "a"
    (root / "a" / "config.json").write_text("{}")
    assert check_model_path("a", rules) == root / "a"
    for name in ("../outside", "a/../a", "", "./a", "private"):
        with pytest.raises(PathRefused):
            check_model_path(name, rules)


@given(st.text(alphabet="ab./%\0", max_size=30))
def test_normalised_text_has_no_way_up(text: str) -> None:
    clean = normalise("/" + text)
    if clean is not None:
        assert ".." not in clean.split("/")
        assert is_within(clean, "/")
        assert normalise(clean) == clean


def test_prefix_is_compared_by_segment() -> None:
    assert is_within("/data/models", "/data/models/")
    assert not is_within("/data/models2", "/data/models")
    assert not is_within("/data", "/data/models")


def test_gguf_file_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(PathRefused):
        gguf_file(tmp_path, "given")
    for name in ("big-00001-of-00002.gguf", "big-00002-of-00002.gguf", "mmproj-x.gguf"):
        (tmp_path / name).touch()
    assert gguf_file(tmp_path, "given").name == "big-00001-of-00002.gguf"
    assert gguf_file(tmp_path / "mmproj-x.gguf", "given").name == "mmproj-x.gguf"
    (tmp_path / "second.gguf").touch()
    with pytest.raises(PathRefused) as caught:
        gguf_file(tmp_path, "given")
    assert caught.value.reason.params == {"path": "given", "gguf_files": 2}


@pytest.mark.req("AGENT-05")
def test_links_in_a_folder_may_not_lead_out_either(tmp_path: Path) -> None:
    root, outside = tmp_path / "models", tmp_path / "secrets.json"
    (root / "m" / "deep").mkdir(parents=True)
    outside.write_text("{}")
    (root / "blob").write_text("")
    (root / "m" / "model.gguf").symlink_to("../blob")  # as the caches of model hubs lay them out
    (root / "m" / "nowhere").symlink_to(root / "gone")
    allowed = PathRules(allowed=(str(root),))
    check_links(root / "m", "given", allowed)
    check_links(root / "blob", "given", allowed)
    for place in (root / "m" / "x.gguf", root / "m" / "deep" / "tokenizer.json", root / "m" / "folder"):
        place.symlink_to(outside if place.suffix else tmp_path)
        with pytest.raises(PathRefused) as caught:
            check_links(root / "m", "given", allowed)
        assert (caught.value.reason.code, caught.value.reason.params) == (
            Code.PATH_NOT_ALLOWED,
            {"path": "given"},
        )
        place.unlink()
