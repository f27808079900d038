"""450 callers through engines that die, hang, reset, talk nonsense and return, for a minute (GATEWAY_SOAK_S):
what `make soak-gateway` does for longer, and at half its pace, so that it takes a quarter of a core."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DURATION_S = os.environ.get("GATEWAY_SOAK_S") or "60"
PATIENCE_S = float(DURATION_S) + 240


@pytest.mark.slow
@pytest.mark.aside
@pytest.mark.timeout(PATIENCE_S + 10)
@pytest.mark.req("GW-09", "GW-10", "GW-12")
def test_nothing_fails_but_what_an_engine_did() -> None:
    # A machine busy with other tests is slow; and in its first minute a gateway still grows into its work.
    settings = {"DURATION": DURATION_S, "SOAK_CALLERS": "450", "SOAK_GAP_S": "0.5"}
    settings |= {"SOAK_LIMIT_S": "12", "SOAK_GROWTH_MB": "12"}
    ended = subprocess.run(
        [sys.executable, "-m", "bench.gateway_soak"],
        cwd=ROOT,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "WELL  each fault was an engine's" in ended.stdout
