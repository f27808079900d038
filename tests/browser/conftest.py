"""Debian's Chromium by Playwright against a whole running stack; a page that throws fails its test."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from apps.ops import demo_model
from tests.stack import Stack, new_stack

CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
# The pictures' stack: its paths are to be read in them, and its model is the real one.
PICTURES_HOME = Path(os.environ.get("HETEROFLOW_PICTURES_HOME", "/srv/heteroflow"))
PATIENCE_MS = 30_000  # of a busy machine; no promise of the product
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


if os.environ.get("HETEROFLOW_PICTURES"):

    @pytest.fixture(scope="session")
    def running_server() -> Iterator[Stack]:
        """A stack with the demo model that `make run` serves."""
        model = demo_model.find_packaged()
        assert model is not None, f"for pictures install {demo_model.PACKAGE} without its dependencies"
        shutil.rmtree(PICTURES_HOME, ignore_errors=True)
        stack = new_stack(PICTURES_HOME)
        stack.model_file, stack.model = model, demo_model.model_name(model)
        try:
            stack.start()
            yield stack
        finally:
            stack.end()
            shutil.rmtree(PICTURES_HOME, ignore_errors=True)


expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="session")
def no_netlink(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chromium's ear for network interfaces, closed: what the file says."""
    library = tmp_path_factory.mktemp("chromium") / "no_netlink.so"
    source = Path(__file__).with_name("no_netlink.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"], check=True)
    return library


@pytest.fixture(scope="module")
def chromium(no_netlink: Path) -> Iterator[Browser]:
    """Fails, never skips, where Chromium is missing: `apt-get install chromium`.

    One a module, not a session: while it lives its event loop counts as running in this thread, and
    async tests and Django's queries in other modules would be refused.
    """
    assert CHROMIUM.exists(), f"{CHROMIUM} is missing; install Debian's chromium or set CHROMIUM"
    with sync_playwright() as playwright:
        env = {**os.environ, "LD_PRELOAD": str(no_netlink)}
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS), env=env)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[Callable[..., Page]]:
    """`open_page(**context options)`: a fresh browser's page. What it throws or its policy blocks is an
    error of the test."""
    contexts: list[BrowserContext] = []
    errors: list[str] = []
    unloaded: list[str] = []  # what a script that is not there may come from

    def build(**options: object) -> Page:
        settings = {"viewport": {"width": 1280, "height": 800}, "locale": "en-US", **options}
        context = chromium.new_context(**settings)  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(f"{page.url}: {error}"))
        page.on("requestfailed", lambda asked: unloaded.append(f"{asked.url}: {asked.failure}"))
        page.on(
            "console",
            lambda said: errors.append(said.text) if "Content Security Policy" in said.text else None,
        )
        return page

    yield build
    for context in contexts:
        context.close()
    assert errors == [], f"{errors}\n{unloaded}"


@pytest.fixture
def picture() -> Callable[[Page, str], None]:
    """Keeps a screenshot for the README where HETEROFLOW_PICTURES is set."""

    def take(page: Page, name: str) -> None:
        if os.environ.get("HETEROFLOW_PICTURES"):
            PICTURES.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=PICTURES / f"{name}.png")

    return take


@pytest.fixture
def portal(running_server: Stack, open_page: Callable[..., Page]) -> Page:
    """The portal, signed in as the demo tenant's member."""
    page = open_page()
    sign_in(page, running_server)
    return page


def sign_in(page: Page, stack: Stack) -> None:
    """Sign in to the portal by its form."""
    page.goto(f"{stack.base_url}/")
    page.fill("#id_username", "demo")
    page.fill("#id_password", stack.member_password or "")
    page.press("#id_password", "Enter")
    page.wait_for_url("**/services/")
