"""Fixtures that every test may use: people, their viewers, and clients that act as them."""

import gc
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from django.utils import translation
from hypothesis import settings
from rest_framework.test import APIClient

import heteroflow.celery  # noqa: F401 - hints go through the configured Celery application
from apps.tenants.models import Tenant, User
from apps.tenants.scope import Viewer, viewer_of
from tests import emptying, factories
from tests.examples import examples
from tests.fakes.docker.engines import docker_node  # noqa: F401 - a fixture, once: each import is another engine
from tests.stack import (
    ROOT,
    running_server,  # noqa: F401 - a fixture
)

# The folders of whose tests `.ci/test` runs some aside.
ASIDE = {ROOT / "tests" / "faults", ROOT / "tests" / "apps" / "workloads"}
# Of the whole session, and made of processes that use the machine as long as they live.
STACKS = ("running_server", "docker_node", "engines", "whole_fleet")

# A slow machine is no failure: hypothesis' own deadline measures the machine, not the code.
settings.register_profile("any-machine", deadline=None, max_examples=examples(100))
settings.load_profile("any-machine")
emptying.install()


@pytest.fixture(autouse=True)
def english() -> Iterator[None]:
    """A request leaves its reader's language active in the thread; the next test starts without it."""
    yield
    translation.deactivate()


@pytest.fixture
def now() -> datetime:
    """The moment that tests pass as `now`."""
    return factories.NOW


@pytest.fixture
def operator(db: None) -> User:
    """A platform operator."""
    return factories.make_operator()


@pytest.fixture
def tenant(db: None) -> Tenant:
    """A tenant without limits."""
    return factories.make_tenant()


@pytest.fixture
def member(tenant: Tenant) -> User:
    """A member of `tenant`."""
    return factories.make_member(tenant)


@pytest.fixture
def viewer() -> Callable[[User], Viewer]:
    """`viewer(user)`: the scope on whose behalf services and selectors act."""
    return viewer_of


@pytest.fixture
def api_client() -> Callable[..., APIClient]:
    """`api_client(user)`: a client of the REST API that acts as the user; nobody without one.

    Answers of unexpected errors are 500, as outside of tests, instead of a raised exception.
    """

    def build(user: User | None = None) -> APIClient:
        client = APIClient(raise_request_exception=False)
        client.default_format = "json"
        if user is not None:
            client.force_authenticate(user)
        return client

    return build


def pytest_addoption(parser: pytest.Parser) -> None:
    told = "leave out tests that ask for no database: on another one they would be the same once more"
    parser.addoption("--only-with-database", action="store_true", help=told)


def uses_database(item: pytest.Item) -> bool:
    asked = {"db", "transactional_db"} & set(getattr(item, "fixturenames", ()))
    return bool(asked) or item.get_closest_marker("django_db") is not None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Thousands of tests are collected and none of them is garbage; each look for some takes longer."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what `--only-with-database` says. And where tests are dealt out by groups, a group is one:
    else each worker starts stacks of its own, unseen but for the time that it takes."""
    alone = [item for item in items if item.get_closest_marker("aside")]
    if far := [item for item in alone if not ASIDE & {*item.path.parents}]:
        raise pytest.UsageError(f"`.ci/test` runs no test aside that is there: {far[0].nodeid}")
    if config.getoption("only_with_database"):
        config.hook.pytest_deselected(items=[item for item in items if not uses_database(item)])
        items[:] = [item for item in items if uses_database(item)]
    if not config.getoption("loadgroup", False):
        return
    torn = [item for item in items if any(item.iter_markers("xdist_group")) and "@" not in item.nodeid]
    if torn:
        raise pytest.UsageError(f"pytest-xdist keeps no groups together here: {torn[0].nodeid}")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests that share the running stack stay in one worker, so that it is started once."""
    if "running_server" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.slow)
        if not any(item.iter_markers("xdist_group")):  # a folder's own stack has its own (tests/production)
            item.add_marker(pytest.mark.xdist_group("running_server"))


def group_of(item: pytest.Item | None) -> str:
    """What follows the last @ in the name that pytest-xdist gives it."""
    return item.nodeid.rpartition("@")[2] if item is not None and "@" in item.nodeid else ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """A stack ends with the last test of its group, not with the session: idle it still costs the others."""
    result = yield
    if nextitem is not None and (group := group_of(item)) and group != group_of(nextitem):
        for name in STACKS:
            for made in item.session._fixturemanager._arg2fixturedefs.get(name, ()):
                made.finish(item._request)  # type: ignore[attr-defined]
    return result
