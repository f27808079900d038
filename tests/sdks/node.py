"""The openai SDK for Node as the tests have it: its ES modules alone, packed beside this file.

`python -m tests.sdks.node` packs it anew, with npm's ordinary client; whoever names another VERSION names its
INTEGRITY as well, as `npm view openai@VERSION dist.integrity` says it. Nothing at test time needs npm or a
network; the Node that runs it is Playwright's own.
"""

import base64
import dataclasses
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from playwright._impl._driver import compute_driver_executable

from tests.sdks.asked import Asked

VERSION = "7.59.0"
INTEGRITY = "sha512-wPYKJkLPFEdNJ2tThSg4jE1Ptsv4X3u8g8LIvu0Qz/UIhsKeCzl73rl48PtQsDVrJL/ku0liXOsbyd2TsRsPJw=="
HERE = Path(__file__).parent
PROGRAM = HERE / "openai_node.mjs"
PACKED = HERE / "openai-node.tar.xz"
# Sources, types, maps and CommonJS are left out, but for the one CommonJS file that Node asks for.
KEPT = (".mjs", "package.json", "LICENSE", "x509-transport-state.js")


def node() -> str:
    """The path of a Node that is there wherever the browser tests can run."""
    return str(compute_driver_executable()[0])


def run(asked: Asked, step: str, folder: Path, *, timeout_s: float = 60) -> Any:
    """What the program prints for a step, JSON in and out; `folder` gets all that it needs."""
    if not (folder / "node_modules").exists():
        with tarfile.open(PACKED) as packed:
            packed.extractall(folder / "node_modules", filter="data")
    (folder / PROGRAM.name).write_text(PROGRAM.read_text())
    told = {**dataclasses.asdict(asked), "certificate": str(asked.certificate), "step": step}
    ended = subprocess.run(
        [node(), PROGRAM.name],
        cwd=folder,
        input=json.dumps(told),
        env={"NODE_EXTRA_CA_CERTS": str(asked.certificate)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def pack() -> None:
    """Raises CalledProcessError when npm fails and ValueError when it brings something else."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", f"openai@{VERSION}", "--silent", "--pack-destination", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (archive,) = Path(folder).glob("*.tgz")
        found = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if found != INTEGRITY:
            raise ValueError(f"openai@{VERSION} has the integrity {found}, and not {INTEGRITY}")
        with tarfile.open(archive) as source, tarfile.open(PACKED, "w:xz", preset=9) as target:
            for member in sorted(source.getmembers(), key=lambda one: one.name):
                if member.name.endswith(KEPT) and not member.name.startswith("package/src/"):
                    content = source.extractfile(member)
                    member.name = member.name.replace("package/", "openai/", 1)
                    target.addfile(member, content)


if __name__ == "__main__":
    sys.exit(pack())
