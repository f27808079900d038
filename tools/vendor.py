"""Takes dist files out of npm packages into static/vendor/ and writes their checksum list.

`python tools/vendor.py` fetches with npm's ordinary client (the one place that needs Node; nothing
does at run or test time). `python tools/vendor.py --check` compares the committed files with
static/vendor/SHA256SUMS and fails on any difference.
"""

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VENDOR = Path(__file__).resolve().parent.parent / "static" / "vendor"
PACKAGES = VENDOR / "packages.json"
SUMS = VENDOR / "SHA256SUMS"


def checksums() -> dict[str, str]:
    """sha256 of every vendored file by its path below static/vendor."""
    files = sorted(p for p in VENDOR.rglob("*") if p.is_file() and p not in (PACKAGES, SUMS))
    return {str(p.relative_to(VENDOR)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def recorded() -> dict[str, str]:
    """The committed checksum list."""
    pairs = (line.split("  ", 1) for line in SUMS.read_text().splitlines() if line)
    return {name: digest for digest, name in pairs}


def fetch(name: str, version: str, files: dict[str, str]) -> None:
    """Copy `files` (path in the package -> path below static/vendor) out of one package.

    Raises CalledProcessError when npm fails and KeyError when the package lacks a file.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", f"{name}@{version}", "--silent", "--pack-destination", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as package:
            for source, target in files.items():
                member = package.extractfile(f"package/{source}")
                if member is None:
                    raise KeyError(f"{name}@{version} has no file {source}")
                place = VENDOR / target
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(member.read())


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        found, wanted = checksums(), recorded()
        wrong = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
        for name in wrong:
            print(f"static/vendor/{name} differs from SHA256SUMS; run `make vendor` or restore the file")
        return 1 if wrong else 0
    for package in json.loads(PACKAGES.read_text()):
        fetch(package["name"], package["version"], package["files"])
    SUMS.write_text("".join(f"{digest}  {name}\n" for name, digest in checksums().items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
