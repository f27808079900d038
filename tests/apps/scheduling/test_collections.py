"""While the scheduler runs nobody looks for cycles, and afterwards all is as it was."""

import gc
from datetime import datetime

import pytest

from apps.core.leases import Held
from apps.scheduling import loop
from tests import factories


@pytest.mark.parametrize("was_on", [True, False])
def test_collections_pause_for_a_run_and_are_as_before_also_after_a_failure(
    was_on: bool, monkeypatch: pytest.MonkeyPatch
):
    seen = []

    def look(now: datetime) -> None:
        seen.append(gc.isenabled())
        raise RuntimeError("no snapshot")

    monkeypatch.setattr(loop, "load_snapshot", look)
    if not was_on:
        gc.disable()
    try:
        with pytest.raises(RuntimeError):
            loop.place(Held("scheduling.place", "me", 1), factories.NOW)
        assert gc.isenabled() is was_on
    finally:
        gc.enable()
    assert seen == [False]
