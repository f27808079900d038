"""A node that is being emptied, another one, and a pair between them."""

import pytest

from agent.contract.states import State
from apps.tenants.scope import viewer_of
from apps.upkeep import services
from tests import factories
from tests.apps.upkeep.work import run_drain, serving
from tests.factories import NOW


@pytest.fixture
def act(operator):
    return viewer_of(operator)


@pytest.fixture
def old():
    return factories.make_node("old")


@pytest.fixture
def new():
    return factories.make_node("new")


@pytest.fixture
def group(tenant, member):
    return factories.make_group(tenant, member, state=State.RUNNING)


@pytest.fixture
def task(old, new, act, group):
    """A replica that serves on a node which is being emptied, and has a replacement that starts."""
    made = serving(old, group)
    services.drain_node(actor=act, node=old, now=NOW)
    assert run_drain()["begun"] == 1
    return made
