"""The doors of the suite: one command runs all of it on a bare machine, and nothing is left out."""

import ast
import os
import subprocess
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT
from tests.conftest import ASIDE

LEFT_OUT = {"skip", "skipif", "xfail", "importorskip"}


@pytest.mark.req("OPS-02")
def test_ci_runs_make_test_and_make_test_runs_everything() -> None:
    run = (ROOT / ".ci/run").read_text()
    assert "make test" in run
    plan = subprocess.run(
        ["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True, env=os.environ
    ).stdout
    assert ".ci/test" in plan
    runs = [line for line in (ROOT / ".ci/test").read_text().splitlines() if " -m pytest" in line]
    whole = runs[0].split("pytest", 1)[1]
    assert " -m " not in whole and "tests/" not in whole


@pytest.mark.req("OPS-02")
def test_no_test_may_be_left_out() -> None:
    """What a test needs is installed or fails it: a skipped test looks like a passed one."""
    found = []
    for path in sorted(Path(ROOT, "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.attr if isinstance(node, ast.Attribute) else None
            if name in LEFT_OUT and path.name != Path(__file__).name:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found


@pytest.mark.req("OPS-02")
def test_each_folder_of_tests_that_run_aside_is_run() -> None:
    lines = [line.split() for line in (ROOT / ".ci" / "test").read_text().splitlines() if "-m aside" in line]
    assert {ROOT / words[-1] for words in lines} == ASIDE
