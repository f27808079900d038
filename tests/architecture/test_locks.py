"""Three locks: the server's, the tests' tools besides, the agent alone. What runs needs no tool of a test."""

import ast
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT

OURS = {"agent", "apps", "heteroflow", "manage"}
SERVER, TOOLS, AGENT = "requirements.txt", "requirements-dev.txt", "requirements-agent.txt"
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def pins(lock: str) -> dict[str, str]:
    """Normalised name of each distribution in a lock, and its version."""
    return {normal(name): version for name, version in PIN.findall((ROOT / lock).read_text())}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported(folder: Path) -> set[str]:
    """Top-level modules that the code under a folder imports, at any depth, without Python's and our own."""
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found.add(node.module.partition(".")[0])
    return found - OURS - sys.stdlib_module_names


def without_a_pin(modules: set[str], lock: str) -> set[str]:
    """Modules that no distribution of the lock brings."""
    brought, pinned = packages_distributions(), pins(lock)
    return {name for name in modules if not {normal(one) for one in brought.get(name, [])} & set(pinned)}


@pytest.mark.req("OPS-03")
@pytest.mark.parametrize(
    ("folder", "lock"), [("apps", SERVER), ("heteroflow", SERVER), ("agent", SERVER), ("agent", AGENT)]
)
def test_what_runs_imports_only_what_its_lock_brings(folder: str, lock: str) -> None:
    modules = imported(ROOT / folder)
    assert modules
    assert without_a_pin(modules, lock) == set()


def test_a_tool_of_the_tests_would_be_found_out() -> None:
    assert without_a_pin({"pytest", "django"}, SERVER) == {"pytest"}
    assert without_a_pin({"django", "aiohttp"}, AGENT) == {"django"}


def test_the_locks_agree_and_every_pin_has_a_hash() -> None:
    server, tools, agent = pins(SERVER), pins(TOOLS), pins(AGENT)
    assert server.items() <= tools.items()
    assert agent.items() < server.items()
    for lock in (SERVER, TOOLS, AGENT):
        text = (ROOT / lock).read_text()
        assert len(re.findall(r"^\S+==\S+ \\\n +--hash=sha256:", text, re.MULTILINE)) == len(pins(lock))


@pytest.mark.req("OPS-03")
def test_the_image_holds_no_tool_of_the_tests() -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    assert f"-r {SERVER}" in dockerfile
    assert TOOLS not in dockerfile
