"""Builds a small Docker image with a real llama.cpp server, without a registry (`make engine-image`).

Owns the image for trying HeteroFlow on a machine without access to one, and for the tests. Its root
file system is made from what is here: this interpreter, its standard library, the libraries that ldd
names, /bin/sh, and the wheel xllamacpp without its symbol tables. For real cards pull the engine's own
image instead.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import docker

TAG = "ghcr.io/ggml-org/llama.cpp:server"
PLACE = "app/server.py"
LAUNCHER = Path(__file__).parents[1] / "agent" / "runtime" / "llamacpp_server.py"
LEFT_OUT = {
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "site-packages",
    "dist-packages",
    "__pycache__",
    "pydoc_data",
}
# opened by name at run time, so that ldd does not see them
BY_NAME = ("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2", "libgcc_s.so.1")
CHANGES = [
    'ENTRYPOINT ["/usr/local/bin/python3", "-I", "/app/server.py"]',
    "ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1",
    "EXPOSE 8080",
    "WORKDIR /",
]
FOLDERS = {"tmp": 0o1777, "models": 0o755, "dev": 0o755, "proc": 0o755, "sys": 0o755, "root": 0o700}
ACCOUNTS = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n"


class BuildFailed(Exception):
    """The image could not be made; the sentence names the part and the way out."""


class Root:
    """A root file system in the making, as a tar file."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self.programs: list[Path] = []

    def file(self, source: Path, place: str, mode: int | None = None) -> None:
        real = source.resolve()
        entry = self._tar.gettarinfo(str(real), place)
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mode = mode or entry.mode
        with real.open("rb") as content:
            self._tar.addfile(entry, content)
        if ".so" in Path(place).name or "bin" in Path(place).parts:
            self.programs.append(real)

    def text(self, place: str, text: str) -> None:
        entry = tarfile.TarInfo(place)
        entry.size, entry.mode, entry.mtime = len(text.encode()), 0o644, int(time.time())
        self._tar.addfile(entry, io.BytesIO(text.encode()))

    def folder(self, place: str, mode: int) -> None:
        entry = tarfile.TarInfo(place)
        entry.type, entry.mode = tarfile.DIRTYPE, mode
        self._tar.addfile(entry)

    def tree(self, source: Path, place: str) -> None:
        for folder, inner, files in os.walk(source):
            inner[:] = sorted(n for n in inner if n not in LEFT_OUT and not n.startswith("config-"))
            for name in sorted(files):
                if not name.endswith((".pyc", ".a")):
                    own = Path(folder) / name
                    self.file(own, f"{place}/{own.relative_to(source)}")


def libraries(programs: Iterable[Path]) -> dict[str, Path]:
    """Place in the image -> file, of every shared library that these load."""
    found: dict[str, Path] = {}
    for program in programs:
        out = subprocess.run(["ldd", str(program)], check=False, capture_output=True, text=True).stdout  # noqa: S603, S607
        for line in out.splitlines():
            words = line.split()
            if "=>" in words and len(words) > 2 and words[2].startswith("/"):
                found[words[2].lstrip("/")] = Path(words[2])
            elif words and words[0].startswith("/lib64/ld-"):
                found[words[0].lstrip("/")] = Path(words[0])
    for folder in {Path(place).parent for place in found}:
        for name in BY_NAME:
            if (Path("/") / folder / name).exists():
                found.setdefault(str(folder / name), Path("/") / folder / name)
    return found


def write_root(path: Path, app: Path, package: str | None, place: str = PLACE) -> None:
    """The whole file system, as a tar file. Raises BuildFailed."""
    strip = shutil.which("strip")
    with tarfile.open(path, "w") as tar, tempfile.TemporaryDirectory() as scratch:
        root = Root(tar)
        for folder, mode in FOLDERS.items():
            root.folder(folder, mode)
        root.text("etc/passwd", ACCOUNTS)
        root.text("etc/group", "root:x:0:\nnogroup:x:65534:\n")
        root.text("etc/nsswitch.conf", "hosts: files dns\n")
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        root.file(Path(sys.base_prefix) / "bin" / version, "usr/local/bin/python3", 0o755)
        root.file(Path("/bin/sh"), "bin/sh", 0o755)
        root.tree(Path(sysconfig.get_paths()["stdlib"]), f"usr/local/lib/{version}")
        if package is not None:
            site = Path(sysconfig.get_paths()["purelib"]) / package
            if strip is None or not site.is_dir():
                raise BuildFailed(f"{package} or the program strip is not here: make install, binutils.")
            for file in sorted(site.rglob("*")):
                if not file.is_file() or "__pycache__" in file.parts:
                    continue
                own = file
                if file.suffix == ".so":  # a quarter of its size without symbols
                    own = Path(scratch) / file.name
                    subprocess.run([strip, "-s", "-o", str(own), str(file)], check=True)  # noqa: S603
                root.file(own, f"usr/local/lib/{version}/site-packages/{package}/{file.relative_to(site)}")
        root.file(app, place, 0o755)
        for name, library in sorted(libraries(root.programs).items()):
            root.file(library, name, 0o755)


def build(
    host: str | None,
    tag: str,
    *,
    app: Path = LAUNCHER,
    package: str | None = "xllamacpp",
    changes: list[str] = CHANGES,
    place: str = PLACE,
) -> str:
    """Build and import; the image's id. `host` None: as DOCKER_HOST says; `place` is where `app` lies inside.
    Raises BuildFailed."""
    try:
        api = docker.APIClient(base_url=host or os.environ.get("DOCKER_HOST"), version="auto", timeout=300)
        with tempfile.TemporaryDirectory() as scratch:
            tar = Path(scratch) / "root.tar"
            write_root(tar, app, package, place)
            repository, _, name = tag.rpartition(":")
            answer = api.import_image_from_file(str(tar), repository=repository, tag=name, changes=changes)
        last = json.loads(answer.strip().splitlines()[-1])
        if "error" in last:
            raise BuildFailed(f"Docker refuses the image: {last['error']}")
        return str(api.inspect_image(tag)["Id"])
    except docker.errors.DockerException as error:
        raise BuildFailed(
            f"Docker does not take the image: {error}. Is it running, and may this user use it?"
        ) from error


def main(argv: list[str]) -> int:
    """Build under the tag that the catalog names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tag", default=TAG, help=f"exact name:tag (default {TAG})")
    parser.add_argument("--host", help="Docker's address (default DOCKER_HOST, else this machine's)")
    args = parser.parse_args(argv)
    try:
        print(f"{args.tag} is here now: {build(args.host, args.tag)[:19]}")
    except BuildFailed as error:
        print(f"engine-image: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
