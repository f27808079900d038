"""An operator in a real browser: overview, a task's live log, a key, a join token."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.stack import Stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def console(running_server: Stack, open_page: Callable[..., Page]) -> Page:
    page = open_page(viewport={"width": 1360, "height": 900})
    page.goto(f"{running_server.base_url}/admin/")
    page.fill("#id_username", "admin")
    page.fill("#id_password", running_server.operator_password or "")
    page.press("#id_password", "Enter")
    page.wait_for_selector("#overview")
    return page


def test_overview(console: Page, picture: Callable[[Page, str], None]) -> None:
    expect(console.locator("[data-figure=nodes]")).to_contain_text("1")
    expect(console.locator("#overview")).to_contain_text("scheduling.place")
    picture(console, "console")


def test_live_log_of_a_task(console: Page, running_server: Stack) -> None:
    console.goto(f"{running_server.base_url}/admin/workloads/task/?q=demo")
    console.locator("#result_list a[href*='/change/']").first.click()
    log = console.locator("[data-live-log]")
    expect(log).to_have_attribute("data-link", "live")
    expect(log.locator(".log-text")).to_contain_text("listening")


@pytest.mark.req("TEN-06")
def test_issue_a_key_and_revoke_it(console: Page, running_server: Stack) -> None:
    base = running_server.base_url
    console.goto(f"{base}/admin/tenants/apikey/")
    console.get_by_role("link", name="Issue a key").click()
    console.select_option("#id_tenant", label="demo")
    console.select_option("#id_member", label="demo")
    console.fill("#id_name", "from the console")
    console.get_by_role("button", name="Issue").click()
    key = console.locator("#shown-once").inner_text().strip()
    assert re.fullmatch(r"sk-[0-9a-f-]{36}", key)
    assert list(running_server.openai(key).models.list())
    console.goto(f"{base}/admin/tenants/apikey/?q=from+the+console")
    assert key not in console.content()
    console.locator("#result_list a[href*='/change/']").first.click()
    console.get_by_role("link", name="Revoke").click()
    console.get_by_role("button", name="Revoke").click()
    expect(console.locator("body")).to_contain_text("is revoked")


def test_join_command_is_shown_once(console: Page, running_server: Stack) -> None:
    console.goto(f"{running_server.base_url}/admin/fleet/node/")
    console.get_by_role("link", name="New join token").click()
    console.get_by_role("button", name="Make a token").click()
    expect(console.locator("#shown-once")).to_contain_text("HETEROFLOW_AGENT_JOIN_TOKEN=jt-")
    console.goto(f"{running_server.base_url}/admin/fleet/jointoken/")
    assert console.locator("#result_list tbody tr").count() >= 1
