"""Freezes the agent of a commit for the test of contract N-1 (OPS-11): `freeze_agent.py COMMIT FOLDER`.

Writes agent/ as it stood at that commit under FOLDER, and the commit's date beside it. Owns no rule about
when to freeze: that stands in docs/contract.md. Never changes a line of what it copies.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def git(*words: str) -> bytes:
    """What git answers. Raises CalledProcessError."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout  # noqa: S603, S607


def freeze(commit: str, folder: Path) -> int:
    """Replace `folder` by the agent of that commit; the number of files."""
    packed = git("archive", "--format=tar", commit, "agent")
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        files = [member for member in archive if member.isfile() and member.name.endswith(".py")]
        for member in files:  # no filter: the Python of Debian 12, 3.11.2, has none; git made these names
            archive.extract(member, folder, set_attrs=False)
    shown = git("show", "-s", "--format=%h of %cs: %s", commit).decode().strip()
    (folder / "README.md").write_text(
        f"# A frozen agent\n\nThe agent as it stood at {shown}\n\n"
        "Made by `tools/freeze_agent.py`; docs/contract.md says when the next one is due. Never edited:"
        " a test runs\n"
        "it against today's server, to prove that the contract before the present one is served.\n"
    )
    return len(files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("commit", help="for instance HEAD, or a tag")
    parser.add_argument("folder", type=Path, help="for instance tests/frozen/agent_v1")
    asked = parser.parse_args()
    print(f"{freeze(asked.commit, asked.folder)} files in {asked.folder}")


if __name__ == "__main__":
    main()
