"""Fake NVIDIA cards for agents in processes of their own.

Owns the library's build (a second, once a session) and the file that describes a machine's cards. For
tests inside this process hand `agent.gpu.cards.read_cards` a fake module instead.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")
LIBRARY = "libnvidia-ml.so.1"
COMPILE = ("gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", f"-Wl,-soname,{LIBRARY}")


class FakeCards:
    """One machine's cards. Give `environment` to the agent's process; the rest works while it runs."""

    def __init__(self, library_dir: Path, file: Path) -> None:
        self.file = file
        self.environment = {"LD_LIBRARY_PATH": str(library_dir), "FAKE_NVML": str(file)}

    def have(self, *cards: dict[str, object], driver: str = "580.95.05") -> None:
        """From now on these: uuid, name, mem and used (MiB), util, temp, cc, mig, lost, link, root,
        untold, and holders, as "pid:MiB,pid:MiB"."""
        lines = [";".join(["gpu", *(f"{name}={value}" for name, value in card.items())]) for card in cards]
        part = self.file.with_suffix(".part")
        part.write_text("\n".join([f"driver={driver}", *lines, ""]))
        part.replace(self.file)

    def lose_driver(self) -> None:
        """As if no driver were loaded."""
        self.file.unlink(missing_ok=True)


def build_library(folder: Path) -> Path:
    """Compile it into this folder; the folder. Fails where gcc is not here."""
    if shutil.which("gcc") is None:
        pytest.fail("the fake NVIDIA library needs gcc and libc6-dev of Debian")
    subprocess.run(
        [*COMPILE, "-o", str(folder / LIBRARY), str(SOURCE)],
        check=True,
    )
    return folder


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds the compiled library."""
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def fake_cards(nvml_library: Path, tmp_path: Path) -> FakeCards:
    """A machine with a driver and no cards yet."""
    made = FakeCards(nvml_library, tmp_path / "cards.txt")
    made.have()
    return made
