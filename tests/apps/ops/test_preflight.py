"""What is checked before anything starts: each refusal is one sentence with a way out (OPS-01)."""

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.core.free_ports import free_ports
from apps.ops import bootstrap, keys_file, preflight, prelaunch
from apps.ops.preflight import NotReady
from tests.architecture.tree import ROOT


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def free_port() -> int:
    return free_ports(1)[0]


@pytest.mark.req("OPS-01")
def test_taken_port_is_named_with_the_way_out(taken_port: int) -> None:
    with pytest.raises(NotReady, match=f"Port {taken_port} .* PORT={taken_port + 1}"):
        preflight.check_port("127.0.0.1", taken_port)


def test_free_port_passes(free_port: int) -> None:
    preflight.check_port("127.0.0.1", free_port)


@pytest.mark.parametrize("text", ["", "0", "65536", "-1", "33 33", "http", "３３３３"])
def test_port_that_is_none(text: str) -> None:
    with pytest.raises(NotReady, match="not a port number"):
        preflight.read_port(text)


def test_full_disk_tells_both_numbers(tmp_path: Path) -> None:
    preflight.check_room(tmp_path / "not" / "there" / "yet", 1, "start")
    with pytest.raises(NotReady, match=r"999999999999 MB are needed .* \d+ MB are free"):
        preflight.check_room(tmp_path, 999_999_999_999, "start")


def test_data_dir_is_ours_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    preflight.make_data_dir(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    database = folder / "heteroflow.sqlite3"
    database.touch(mode=0o644)
    preflight.make_data_dir(folder)
    assert stat.S_IMODE(database.stat().st_mode) == 0o600
    held = preflight.hold_data_dir(folder)
    with pytest.raises(NotReady, match="already runs"):
        preflight.hold_data_dir(folder)
    os.close(held)
    os.close(preflight.hold_data_dir(folder))


def test_data_dir_that_can_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotReady, match="can not be written"):
        preflight.make_data_dir(tmp_path / "file" / "data")


def test_keys_are_made_once_and_guarded(tmp_path: Path) -> None:
    path = keys_file.ensure_keys(tmp_path)
    first = path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(json.loads(first)["secret_key"]) >= 50
    assert keys_file.ensure_keys(tmp_path).read_text() == first
    assert [p.name for p in tmp_path.iterdir()] == ["secrets.json"]


def test_two_starts_agree_on_the_keys(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from apps.ops.keys_file import ensure_keys; "
    code += "print(ensure_keys(Path(sys.argv[1])).read_text())"
    runs = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    assert len({run.communicate(timeout=60)[0] for run in runs}) == 1


def test_prepare_settles_the_environment(tmp_path: Path, free_port: int) -> None:
    environ = {"DATA_DIR": str(tmp_path / "data"), "PORT": str(free_port)}
    prelaunch.prepare(environ)
    os.close(prelaunch.held_locks.pop())
    assert environ["PUBLIC_URL"] == f"http://127.0.0.1:{free_port}"
    assert (tmp_path / "data" / "secrets.json").exists()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"RUNTIME": "podman"}, "RUNTIME=podman is not offered"),
        ({"HOST": "192.0.2.7"}, "HOST=192.0.2.7 is not offered"),
        ({"START_NEEDS_MB": "999999999999"}, "too full to start"),
        ({"PORT": "x"}, "PORT=x is not a port number"),
    ],
)
def test_prepare_refuses_before_it_makes_anything(
    tmp_path: Path, free_port: int, changed: dict[str, str], told: str
) -> None:
    with pytest.raises(NotReady, match=told):
        prelaunch.prepare({"DATA_DIR": str(tmp_path / "data"), "PORT": str(free_port), **changed})
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("ERROR: [Errno 28] No space left on device", "disk became full"),
        (
            "Failed to establish a new connection: [Errno 111] Connection refused",
            "registry can not be reached",
        ),
        ("Temporary failure in name resolution", "registry can not be reached"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "hash differs"),
        ("something else", "failed"),
    ],
)
def test_failed_install_becomes_one_sentence(words: str, told: str) -> None:
    sentence = bootstrap.explain(words)
    assert told in sentence
    assert "\n" not in sentence


def test_installs_again_only_when_a_lock_changed(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    venv.mkdir()
    for name in bootstrap.LOCKS:
        (tmp_path / name).write_text("a==1\n")
    assert bootstrap.stale_locks(tmp_path, venv) == list(bootstrap.LOCKS)
    for name in bootstrap.LOCKS:
        (venv / f".installed-{name}").write_text(bootstrap.digest(tmp_path / name))
    assert bootstrap.stale_locks(tmp_path, venv) == []
    (tmp_path / "requirements.txt").write_text("a==2\n")
    assert bootstrap.stale_locks(tmp_path, venv) == ["requirements.txt"]


def test_a_start_waits_for_no_tool_of_the_tests() -> None:
    assert not set(bootstrap.LOCKS) & set(bootstrap.TOOLS)
    doors = (ROOT / "Makefile").read_text()
    assert doors.count("--with-tools") == 1  # `make install`, which check, test and bench begin with
    assert "\ninstall: python ## " in doors


def test_a_machine_without_openmp_is_told_what_to_install() -> None:
    preflight.check_openmp("libc.so.6")  # one that is there
    with pytest.raises(NotReady, match=r"libnone\.so\.1, which is not here.*apt-get install libgomp1"):
        preflight.check_openmp("libnone.so.1")


def test_another_python_or_no_venv_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotReady, match=r"apt-get install python3\.11-venv"):
        bootstrap.check_python()
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    with pytest.raises(NotReady, match=r"needs Python 3\.11, this is 3\.9"):
        bootstrap.check_python()


@pytest.mark.slow
def test_registry_out_of_reach_is_one_sentence_and_a_failure(tmp_path: Path, free_port: int) -> None:
    """A real pip in a real new environment, with nothing listening where its index should be."""
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": f"http://127.0.0.1:{free_port}/simple",
        "PIP_RETRIES": "0",
        "PIP_NO_CACHE_DIR": "1",
    }
    run = subprocess.run(
        [sys.executable, "-m", "apps.ops.bootstrap", "--venv", str(tmp_path / "venv")],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 1
    assert "registry can not be reached" in run.stderr
    assert run.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "text",
    [
        '{"secret_key": "ab',
        "",
        "[]",
        '{"secret_key": "x", "encryption_keys": ["short"]}',
        '{"secret_key": "x"}',
    ],
)
def test_damaged_keys_are_told_and_never_replaced(tmp_path: Path, text: str) -> None:
    file = tmp_path / "secrets.json"
    file.write_text(text)
    with pytest.raises(NotReady, match=r"secrets\.json holds no usable keys .* backup"):
        keys_file.ensure_keys(tmp_path)
    assert file.read_text() == text


def test_keys_of_a_former_start_pass(tmp_path: Path) -> None:
    before = keys_file.ensure_keys(tmp_path).read_text()
    assert keys_file.ensure_keys(tmp_path).read_text() == before


def test_needed_room_must_be_a_number(tmp_path: Path, free_port: int) -> None:
    environ = {"PORT": str(free_port), "DATA_DIR": str(tmp_path), "START_NEEDS_MB": "much"}
    with pytest.raises(NotReady, match="START_NEEDS_MB=much is not a number"):
        prelaunch.prepare(environ)


def test_a_setting_of_the_wrong_form_is_one_sentence(tmp_path: Path) -> None:
    keys_file.ensure_keys(tmp_path)
    environ = {"PATH": os.environ["PATH"], "DATA_DIR": str(tmp_path), "REBUILD_MAX": "many"}
    run = subprocess.run(
        [sys.executable, "manage.py", "check"], cwd=ROOT, env=environ, capture_output=True, text=True
    )
    assert run.returncode == 1
    assert run.stderr == "The settings can not be used: REBUILD_MAX=many is not a whole number.\n"
