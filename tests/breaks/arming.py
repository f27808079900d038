"""Has a process of a stack die at a point: what makes it able to, and the word that it shall."""

from pathlib import Path

from tests.breaks.points import POINTS
from tests.stack import ROOT, until

HOOK = Path(__file__).with_name("installed") / "sitecustomize.py"


class Breaks:
    """`environment` goes to the processes that may be killed; `at` names where the next one is."""

    def __init__(self, folder: Path) -> None:
        self._next = folder / "next"
        self.environment = {"PYTHONPATH": f"{folder}:{ROOT}"}
        (folder / HOOK.name).symlink_to(HOOK)

    def at(self, point: str) -> None:
        """Whoever passes the point next ends there."""
        assert point in POINTS
        written = self._next.with_suffix(".new")
        written.write_text(point)
        written.rename(self._next)

    def await_death(self, point: str) -> None:
        until(lambda: not self._next.exists(), f"somebody passed {point}", 60)
