"""Every reason that the code gives carries the values that its sentence names: no "?" reaches a person."""

import ast
import re
from pathlib import Path

import pytest

from agent.contract.codes import Code
from apps.core.texts import TEXTS
from tests.architecture.tree import ROOT

NAMED = re.compile(r"%\((\w+)\)")


def _reasons() -> list[tuple[str, str, set[str]]]:
    """(place, code, names of its values) of each `reason(Code.X, ...)` with plain arguments."""
    found = []
    for file in sorted([*ROOT.glob("agent/**/*.py"), *ROOT.glob("apps/**/*.py")]):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not node.args or _name(node.func) != "reason":
                continue
            code = node.args[0]
            plain = all(word.arg is not None for word in node.keywords)
            if plain and isinstance(code, ast.Attribute) and _name(code.value) == "Code":
                place = f"{Path(file).relative_to(ROOT)}:{node.lineno}"
                found.append((place, Code[code.attr].value, {str(word.arg) for word in node.keywords}))
    return found


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize(("place", "code", "given"), _reasons())
def test_a_reason_gives_what_its_sentence_names(place: str, code: str, given: set[str]) -> None:
    missing = set(NAMED.findall(str(TEXTS[code]))) - given
    assert not missing, f"{place}: {code} says {TEXTS[code]!r}"


def test_there_are_reasons_to_look_at() -> None:
    assert len(_reasons()) > 30
