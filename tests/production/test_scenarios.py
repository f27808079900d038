"""The scenarios once more, on the production profile: `running_server` is that stack here (conftest.py)."""

import inspect
from importlib import import_module
from pathlib import Path
from types import FunctionType

import pytest

import tests.scenarios
from tests.scenarios.test_chain import *  # noqa: F403 - each scenario that only uses the stack
from tests.scenarios.test_door import *  # noqa: F403
from tests.scenarios.test_files import *  # noqa: F403
from tests.scenarios.test_idle import *  # noqa: F403
from tests.scenarios.test_metrics import *  # noqa: F403
from tests.scenarios.test_sleep import *  # noqa: F403

pytestmark = pytest.mark.req("OPS-03")


def test_no_scenario_is_left_out() -> None:
    """Nor hidden by one of the same name in another module."""
    (folder,) = tests.scenarios.__path__
    modules = [import_module(f"tests.scenarios.{file.stem}") for file in Path(folder).glob("test_*.py")]
    left = [
        thing
        for module in modules
        for name, thing in vars(module).items()
        if isinstance(thing, FunctionType) and name.startswith("test_")
        if "running_server" in inspect.signature(thing).parameters and globals().get(name) is not thing
    ]
    assert left == []
