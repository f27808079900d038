"""An operator in a real browser: overview, a task's live log, a key, a join token."""

import re
import uuid
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, Route, expect

from tests.stack import Stack, until

pytestmark = [pytest.mark.slow]

FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


@pytest.fixture
def console(running_server: Stack, open_page: Callable[..., Page]) -> Page:
    page = open_page(viewport={"width": 1360, "height": 900})
    page.goto(f"{running_server.base_url}/admin/")
    page.fill("#id_username", "admin")
    page.fill("#id_password", running_server.operator_password or "")
    page.press("#id_password", "Enter")
    page.wait_for_selector("#overview")
    return page


@pytest.fixture
def waiting(running_server: Stack) -> Iterator[str]:
    """The name of a service that no node of the stack can take: it wants four cards."""
    api, name = running_server.api(), f"four-cards-{uuid.uuid4().hex[:6]}"
    task = {"image": "vllm/vllm-openai:latest", "gpu_required": 4, "model_path": "/models/qwen-32b"}
    body = {"name": name, "parallelism": "tensor_parallel", "world_size": 4, "task": task}
    group = api.call("POST", "/api/v1/task-groups", body)
    yield name
    api.call("DELETE", f"/api/v1/task-groups/{group['id']}")


def test_overview_shows_nodes_loops_and_why_a_service_waits(
    console: Page, running_server: Stack, waiting: str, picture: Callable[[Page, str], None]
) -> None:
    for _ in range(3):
        running_server.ask()
    overview = console.locator("#overview")

    def told() -> bool:
        console.reload()
        text = overview.inner_text()
        return waiting in text and "InsufficientResources" in text

    until(told, "the queue shows the waiting service with its reason")
    expect(console.locator("[data-figure=nodes]")).to_contain_text("1")
    expect(overview).to_contain_text("scheduling.place")
    expect(overview).to_contain_text("node(s)")
    picture(console, "console")


@pytest.mark.req("UI-04", "SCHED-10")
def test_queue_and_map_lead_from_who_waits_to_what_is_held(console: Page, waiting: str) -> None:
    console.locator("a[href$='/task/queue/']").first.click()
    queue = console.locator("#queue")
    expect(queue).to_contain_text(waiting)
    expect(queue.locator("[data-position]").first).to_have_text(re.compile(r"\d+"))
    console.locator("a[href$='/card/map/']").first.click()
    expect(console.locator("#map .map-node").first).to_be_visible()
    expect(console.locator("#map .map-legend")).to_contain_text("not promised")
    assert console.evaluate(FITS), "the map fits the window"


def test_live_log_of_a_task(console: Page, running_server: Stack) -> None:
    console.goto(f"{running_server.base_url}/admin/workloads/task/?q=demo")
    console.locator("#result_list a[href*='/change/']").first.click()
    log = console.locator("[data-live-log]")
    expect(log).to_have_attribute("data-link", "live")
    expect(log.locator(".log-text")).to_contain_text("listening")


@pytest.mark.req("AGENT-10")
def test_a_long_log_is_read_back_page_by_page(console: Page, running_server: Stack) -> None:
    def page_of_log(route: Route) -> None:
        before = {"start": 0, "end": 100, "text": "its first line\n"}
        last = {"start": 100, "end": 10**9, "text": "its last line\n"}
        piece = before if "to=100" in route.request.url else last
        route.fulfill(json={"attempt": 1, "stored_until": 10**9, "attempts": [1], **piece})

    console.route("**/api/v1/tasks/*/logs*", page_of_log)
    console.goto(f"{running_server.base_url}/admin/workloads/task/?q=demo")
    console.locator("#result_list a[href*='/change/']").first.click()
    log = console.locator("[data-live-log]")
    expect(log.locator(".log-text")).to_have_text("its last line\n")
    earlier = log.get_by_role("button", name="Earlier lines")
    earlier.click()
    expect(log.locator(".log-text")).to_have_text("its first line\nits last line\n")
    expect(earlier).to_be_hidden()  # that was the beginning
    expect(log.get_by_label("Follow")).not_to_be_checked()


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
    console.get_by_role("button", name="Make a join command").click()
    expect(console.locator("#shown-once")).to_contain_text("HETEROFLOW_AGENT_JOIN_TOKEN=jt-")
    assert console.evaluate(FITS), "a long line is broken, not cut off"
    console.goto(f"{running_server.base_url}/admin/fleet/jointoken/")
    assert console.locator("#result_list tbody tr").count() >= 1
