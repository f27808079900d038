"""Codes have sentences, loops have documents, tracked files name no machine and no registry."""

import ast
from collections.abc import Iterator

from celery import current_app

from agent.contract.codes import Code
from apps.core import texts, ticks
from tests.architecture.tree import ROOT, parsed, python_files, tracked

# Put together here, so that this file passes its own test.
FORBIDDEN = [
    "pypi" + ".org",
    "files.python" + "hosted",
    "registry." + "npmjs",
    "deb." + "debian",
    "/work" + "/main",
    "/work" + "/shared",
    "/tmp/" + "bash_jobs",
    "/ro" + "ot/",
]
RAISERS = {"Refusal", "Conflict", "Forbidden", "Unavailable"}


def test_every_reason_code_has_a_sentence() -> None:
    assert [code for code in Code if code not in texts.TEXTS] == []


def refusal_codes() -> Iterator[tuple[str, str]]:
    """(place, code) of each refusal that is built from a literal."""
    for path in python_files("apps"):
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            position = {"FieldError": 1, **dict.fromkeys(RAISERS, 0)}.get(name)
            if position is None or len(node.args) <= position:
                continue
            argument = node.args[position]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", argument.value


def test_every_refusal_has_a_sentence() -> None:
    found = list(refusal_codes())
    assert len(found) > 20  # the walk sees them
    assert [f"{place}: {code}" for place, code in found if code not in texts.TEXTS] == []


def test_every_loop_is_described() -> None:
    current_app.loader.import_default_modules()
    assert {"scheduling.place", "recovery.sweep"} <= set(ticks.REGISTRY)
    described = (ROOT / "docs" / "loops.md").read_text()
    assert [name for name in ticks.REGISTRY if f"`{name}`" not in described] == []


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = []
    for path in tracked():
        try:
            content = path.read_text()
        except UnicodeDecodeError:
            continue  # pictures and compiled translations hold no such text
        found += [f"{path.relative_to(ROOT)}: {word}" for word in FORBIDDEN if word in content]
    assert not found
