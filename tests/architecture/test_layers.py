"""Imports and foreign keys point downwards; files stay readable; each app explains itself."""

import subprocess
import sys

import pytest
from django.apps import apps

from tests.architecture.tree import ROOT, layers, python_files, tracked

LONGEST, IMPOSSIBLE = 400, 800
OURS = (".py", ".js", ".css", ".html")


def test_import_rules_hold() -> None:
    linted = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-logo",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_every_app_has_a_layer() -> None:
    folders = {path.parent.name for path in (ROOT / "apps").glob("*/apps.py")}
    assert folders == set(layers())


def test_foreign_keys_point_downwards() -> None:
    height = layers()
    upwards = []
    for model in apps.get_models(include_auto_created=True):
        if not model.__module__.startswith("apps."):
            continue
        for field in model._meta.get_fields():
            target = field.related_model if field.is_relation and not field.auto_created else None
            if target is None or not isinstance(target, type) or target._meta.app_label not in height:
                continue
            own = model._meta.app_label
            if target._meta.app_label != own and height[target._meta.app_label] >= height[own]:
                upwards.append(f"{own}.{model.__name__}.{field.name} -> {target._meta.label}")
    assert not upwards, upwards


def test_files_stay_readable() -> None:
    lengths = {
        str(path.relative_to(ROOT)): path.read_text().count("\n")
        for path in tracked()
        if path.suffix in OURS and "migrations" not in path.parts
    }
    assert not {name: lines for name, lines in lengths.items() if lines > LONGEST}
    assert max(lengths.values()) < IMPOSSIBLE


@pytest.mark.parametrize("app", sorted(layers()))
def test_each_app_explains_itself_on_one_screen(app: str) -> None:
    readme = ROOT / "apps" / app / "README.md"
    assert readme.exists(), f"apps/{app}/README.md is missing: what it owns, what it never does, its files"
    assert 3 <= readme.read_text().count("\n") <= 60


def test_each_module_says_what_it_owns() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in python_files("apps", "agent", "heteroflow")
        if path.name not in ("__init__.py", "apps.py")
        and not path.read_text().lstrip("#! \n").startswith(('"""', "usr"))
    ]
    assert not silent
