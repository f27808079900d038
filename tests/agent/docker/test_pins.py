"""Paths that change between the agent's look and Docker's bind."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.contract.codes import Code
from agent.models.mounts import HostMount
from agent.models.paths import PathRefused
from agent.runtime import docker_pins
from agent.runtime.base import StartRefused
from agent.runtime.docker_pins import Pins, can_pin, clear, open_without_links
from agent.runtime.docker_start import StartJob
from tests.agent.docker.conftest import Bench

ROOT = Path(__file__).parents[3]
as_root = pytest.mark.slow  # they mount
LIST = "import os, time; print(sorted(os.listdir('/data')))"


class Swapped:
    """A tenant's folder, and what a container of the tenant's can make of its path."""

    def __init__(self, folder: Path, secret: Path) -> None:
        self.path = folder / "own"
        self._aside = folder / "aside"
        self._secret = secret
        self.path.mkdir(parents=True)
        (self.path / "mine").touch()
        secret.mkdir()
        (secret / "secret").touch()

    def by_link(self) -> None:
        self.path.rename(self._aside)
        self.path.symlink_to(self._secret)

    def back(self) -> None:
        self.path.unlink()
        self._aside.rename(self.path)

    @contextmanager
    def all_the_time(self) -> Iterator[None]:
        """To and fro in a process of its own, which no lock of this one slows."""
        own, aside, secret = map(str, (self.path, self._aside, self._secret))
        code = (
            "import os\nwhile True:\n"
            f"    os.rename({own!r}, {aside!r}); os.symlink({secret!r}, {own!r})\n"
            f"    os.unlink({own!r}); os.rename({aside!r}, {own!r})\n"
        )
        with subprocess.Popen([sys.executable, "-c", code]) as racer:
            try:
                yield
            finally:
                racer.kill()


@pytest.fixture
def swapped(tmp_path: Path) -> Swapped:
    return Swapped(tmp_path / "models" / "tenant", tmp_path / "outside")


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "held"
    clear(folder)
    yield folder
    clear(folder)


@pytest.mark.req("AGENT-05")
def test_no_link_is_followed_anywhere_on_the_way(swapped: Swapped, monkeypatch: pytest.MonkeyPatch) -> None:
    os.close(open_without_links(str(swapped.path), "given"))
    os.close(open_without_links(str(swapped.path / "mine"), "given"))
    with pytest.raises(PathRefused) as absent:
        open_without_links(str(swapped.path / "none"), "given")
    assert absent.value.reason.code is Code.MODEL_NOT_FOUND_ON_NODE
    (swapped.path / "link").symlink_to("mine")
    monkeypatch.chdir(swapped.path)  # a socket has room for a short path only
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("door")
    for name in ("link", "door"):
        with pytest.raises(PathRefused) as refused:
            open_without_links(str(swapped.path / name), "given")
        assert refused.value.reason.code is Code.PATH_NOT_ALLOWED
        assert refused.value.reason.params == {"path": "given"}
    swapped.by_link()
    for path in (swapped.path, swapped.path / "secret"):
        with pytest.raises(PathRefused) as refused:
            open_without_links(str(path), "given")
        assert refused.value.reason.code is Code.PATH_NOT_ALLOWED


@pytest.mark.req("AGENT-05")
def test_race_for_the_path_is_never_won(swapped: Swapped) -> None:
    seen: set[str] = set()
    tries, until = 0, time.monotonic() + 60
    with swapped.all_the_time():
        while tries < 3000 or (not seen >= {"mine", Code.PATH_NOT_ALLOWED} and time.monotonic() < until):
            tries += 1
            try:
                opened = open_without_links(str(swapped.path), "given")
            except PathRefused as error:
                seen.add(error.reason.code)
                continue
            seen |= {entry.name for entry in Path(f"/proc/self/fd/{opened}").iterdir()}
            os.close(opened)
    assert seen >= {"mine", Code.PATH_NOT_ALLOWED} and "secret" not in seen


@as_root
@pytest.mark.req("AGENT-05", "AGENT-15")
def test_what_is_held_stays_whatever_becomes_of_the_path(
    swapped: Swapped, held: Path, tmp_path: Path
) -> None:
    pins = Pins(held)
    folder = pins.hold(HostMount(str(swapped.path), "/data", read_only=False), "given")
    file = pins.hold(HostMount(str(swapped.path / "mine"), "/mine"), "given")
    (swapped.path / "mine").write_text("of the tenant's")
    swapped.by_link()
    assert (Path(folder.source) / "mine").exists()
    assert Path(file.source).read_text() == "of the tenant's"
    assert (folder.target, folder.read_only, file.target, file.read_only) == ("/data", False, "/mine", True)
    assert pins.named(f"no {folder.source} and no {file.source}") == "no /data and no /mine"
    swapped.back()
    pins.release()
    assert list(held.iterdir()) == []
    assert (swapped.path / "mine").read_text() == "of the tenant's"


@as_root
@pytest.mark.req("AGENT-05")
@pytest.mark.parametrize("killed", [False, True])
def test_letting_go_takes_no_mount_of_the_hosts_away(swapped: Swapped, held: Path, killed: bool) -> None:
    inner = swapped.path / "inner"
    inner.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(swapped.path)], check=True)
    try:
        subprocess.run(["mount", "--make-shared", str(swapped.path)], check=True)
        inner.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "none", str(inner)], check=True)
        (inner / "deep").touch()
        pins = Pins(held)
        place = Path(pins.hold(HostMount(str(swapped.path), "/data"), "given").source)
        assert (place / "inner" / "deep").exists()
        if killed:
            clear(held)  # the next run of the agent
        else:
            pins.release()
        assert list(held.iterdir()) == []
        assert (inner / "deep").exists()
    finally:
        subprocess.run(["umount", "-R", str(swapped.path)], check=True)


@as_root
@pytest.mark.req("AGENT-05")
def test_holding_needs_rights_and_dockers_view_of_the_files(
    held: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s")
        listener.listen()
        assert can_pin(held, "unix://s") is True
        assert can_pin(held, "unix://none") is False
        ask = (
            "import os, sys; from pathlib import Path; from agent.runtime.docker_pins import can_pin;"
            f"os.chdir({str(tmp_path)!r}); print(can_pin(Path({str(held)!r}), 'unix://s'))"
        )
        for walls in (["setpriv", "--bounding-set=-sys_admin"], ["unshare", "--mount"]):
            done = subprocess.run(
                [*walls, sys.executable, "-c", ask], cwd=ROOT, capture_output=True, text=True, timeout=60
            )
            assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr
    assert list(held.iterdir()) == []


@pytest.mark.slow
@pytest.mark.xdist_group("docker")
@pytest.mark.req("AGENT-05", "AGENT-15")
def test_link_put_in_after_the_last_look_gains_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = Swapped(bench.models / "tenant", bench.folder / "outside")
    create = StartJob._create

    def swap_and_create(job: StartJob, made: object) -> None:
        swapped.by_link()
        create(job, made)  # type: ignore[arg-type]

    monkeypatch.setattr(StartJob, "_create", swap_and_create)
    (swapped.path / "mine").write_text("of the tenant's")
    code = f"{LIST}; print(open('/one').read())"
    volumes = [f"{swapped.path}:/data", f"{swapped.path}/mine:/one:ro"]
    instance = bench.start(bench.script(code, volumes=volumes))
    assert bench.end(instance).exit_code == 0
    assert bench.log(instance) == "['mine']\nof the tenant's\n"
    assert list((bench.folder / "state" / "held").iterdir()) == []


@pytest.mark.slow
@pytest.mark.xdist_group("docker")
@pytest.mark.req("AGENT-05", "AGENT-15")
def test_race_against_real_starts_is_never_won(bench: Bench) -> None:
    swapped = Swapped(bench.models / "tenant", bench.folder / "outside")
    with swapped.all_the_time():
        for _ in range(12):
            try:
                instance = bench.start(bench.script(LIST, volumes=[f"{swapped.path}:/data:ro"]))
            except StartRefused as error:
                assert error.reason.code in (Code.PATH_NOT_ALLOWED, Code.MODEL_NOT_FOUND_ON_NODE)
                continue
            bench.end(instance)
            assert bench.log(instance) == "['mine']\n"


@pytest.mark.slow
@pytest.mark.xdist_group("docker")
@pytest.mark.req("AGENT-05", "AGENT-15")
def test_agent_that_may_not_mount_gives_no_writable_volume(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_pins, "can_pin", lambda *_: False)
    folder = str(bench.models / "tiny")
    with pytest.raises(StartRefused) as caught:
        bench.start(bench.script(LIST, volumes=[f"{folder}:/data"]))
    assert f"{folder} is to be written to" in str(caught.value.reason.params["why"])
    assert bench.mine() == [] and bench.networks() == []
    instance = bench.start(bench.script(LIST, volumes=[f"{folder}:/data:ro"]))
    assert bench.end(instance).exit_code == 0
