"""Whoever acts through a service leaves a row in the audit trail, and every act has its words (TEN-08)."""

import ast
from collections.abc import Iterator

import pytest

from apps.core.texts import TEXTS
from tests.architecture.tree import ROOT, parsed, python_files

pytestmark = pytest.mark.req("TEN-08")

# Records of work: their use cases (inference, upkeep) note the act once, for the whole group or node.
NOTED_ABOVE = {
    "apps/workloads/services/creating.py:create_group",
    "apps/workloads/services/leaving.py:request_stop",
    "apps/workloads/services/leaving.py:start_again",
    "apps/workloads/services/leaving.py:request_delete",
    "apps/workloads/services/ending.py:move_off",  # a node's or loop's word: an event, no act
}


def _functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in python_files("apps"):
        name = str(path.relative_to(ROOT))
        if "/services" in name:
            for node in ast.walk(parsed(path)):
                if isinstance(node, ast.FunctionDef):
                    yield f"{name}:{node.name}", node


def _calls(function: ast.FunctionDef) -> set[str]:
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            target = node.func
            found.add(target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", ""))
    return found


def _noting() -> set[str]:
    """Names of functions of services that note an act, themselves or through another one."""
    functions = list(_functions())
    noting = {"note"}
    while True:
        more = {place.split(":")[1] for place, node in functions if _calls(node) & noting} - noting
        if not more:
            return noting
        noting |= more


def test_every_service_that_names_its_actor_notes_the_act() -> None:
    noting = _noting()
    acting = [
        place
        for place, node in _functions()
        if not node.name.startswith("_") and "actor" in {arg.arg for arg in node.args.kwonlyargs}
    ]
    assert len(acting) > 20
    silent = [p for p in acting if p.split(":")[1] not in noting and p not in NOTED_ABOVE]
    assert not silent, f"note the act in the transaction of: {silent}"


def _verbs() -> Iterator[tuple[str, str]]:
    """(place, verb) of each act that is noted with its verb as plain text."""
    for path in python_files("apps"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and len(node.args) >= 2:
                target = node.func
                name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
                verb = node.args[1]
                if name.lstrip("_").startswith("note") and isinstance(verb, ast.Constant):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", str(verb.value)


def test_every_act_has_its_words() -> None:
    found = list(_verbs())
    assert len(found) > 20
    assert [place for place, verb in found if f"did_{verb}" not in TEXTS] == []


def test_rows_of_the_trail_are_made_in_one_place() -> None:
    makers = []
    for path in python_files("apps", "heteroflow"):
        for node in ast.walk(parsed(path)):
            if (
                isinstance(node, ast.Attribute)
                and node.attr in ("create", "bulk_create", "update", "delete", "_raw_delete")
                and "AuditEntry.objects" in ast.unparse(node.value)
            ):
                makers.append(str(path.relative_to(ROOT)))
    assert makers == ["apps/core/audit.py"]
