"""A member in a real browser: services, live log, keys, playground, languages, phone."""

import re
import uuid
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import sign_in
from tests.stack import Stack

pytestmark = [pytest.mark.slow]


def test_sign_in_see_the_service_and_its_live_log(
    portal: Page, running_server: Stack, picture: Callable[[Page, str], None]
) -> None:
    expect(portal.locator("[data-state=running]").first).to_have_text("running")
    portal.click(".service h2 a:text-is('demo')")
    log = portal.locator("[data-live-log]")
    expect(log).to_have_attribute("data-link", "live")
    expect(log.locator(".log-text")).to_contain_text("listening")
    expect(portal.locator("#call-env")).to_contain_text(f"OPENAI_BASE_URL={running_server.base_url}/v1")
    before = log.locator(".log-text").inner_text()
    running_server.ask()
    expect(log.locator(".log-text")).not_to_have_text(before)  # it goes on by itself
    portal.set_viewport_size({"width": 1280, "height": 1180})
    picture(portal, "portal")


def test_create_watch_stop_and_delete_a_service(portal: Page, running_server: Stack) -> None:
    name = f"made-here-{uuid.uuid4().hex[:6]}"
    portal.click("text=New service")
    portal.fill("#id_name", name)
    portal.fill("#id_image", "no tag")
    portal.fill("#id_model_path", str(next(running_server.data_dir.glob("models/*.gguf"))))
    portal.fill("#id_gpu_required", "0")
    portal.click("text=Create the service")
    expect(portal.locator("#id_image_error")).to_contain_text("name:tag")
    assert portal.locator("#id_image").get_attribute("aria-invalid") == "true"
    portal.fill("#id_image", "ghcr.io/ggml-org/llama.cpp:server")
    portal.click("text=Create the service")
    expect(portal.locator("#new-key")).to_contain_text("sk-")
    portal.click("text=To the service")
    state = portal.locator("#service-body .summary .state")
    expect(state).to_have_text("running", timeout=60_000)  # by polling, without a reload
    portal.get_by_role("button", name="Stop", exact=True).click()
    portal.locator("dialog[open]").get_by_role("button", name="Stop").click()
    expect(state).to_have_text("stopped", timeout=30_000)
    portal.get_by_role("button", name="Delete", exact=True).click()
    portal.locator("dialog[open]").get_by_role("button", name="Delete").click()
    portal.wait_for_url("**/services/")
    expect(portal.locator("main")).to_contain_text(f"{name} is deleted.")
    assert portal.get_by_role("link", name=name).count() == 0


def test_the_page_tells_when_the_server_is_away_and_when_it_is_back(portal: Page) -> None:
    portal.route("**/services/?page=1", lambda route: route.abort())
    expect(portal.locator("#connection")).to_be_visible(timeout=15_000)
    portal.unroute("**/services/?page=1")
    expect(portal.locator("#connection")).to_be_hidden(timeout=15_000)


@pytest.mark.req("TEN-06")
def test_issue_a_key_once_use_it_revoke_it(portal: Page, running_server: Stack) -> None:
    portal.click("nav >> text=API keys")
    portal.fill("#id_name", "from a browser")
    portal.click("text=Make the key")
    key = portal.locator("#new-key").inner_text()
    assert re.fullmatch(r"sk-[0-9a-f-]{36}", key)
    models = [model.id for model in running_server.openai(key).models.list()]
    assert running_server.model in models
    portal.reload()
    assert key not in portal.content()
    kept = portal.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    assert key not in kept
    row = portal.locator("tr", has_text="from a browser")
    row.get_by_role("button", name="Revoke").click()
    portal.locator("dialog[open]").get_by_role("button", name="Revoke").click()
    expect(portal.locator("tr", has_text="from a browser")).to_contain_text("revoked")


def test_chat_in_the_playground(
    portal: Page, running_server: Stack, picture: Callable[[Page, str], None]
) -> None:
    portal.click("nav >> text=Playground")
    portal.click("text=Make one for this page")
    expect(portal.locator("#play-key-note")).to_contain_text("Key accepted")
    portal.select_option("#play-model", running_server.model)
    portal.fill("#play-temperature", "0")
    portal.fill("#play-max", "60")
    portal.fill("#play-system", "You are a helpful assistant.")
    portal.fill("#play-text", "Write one sentence about the sea.")
    portal.press("#play-text", "Enter")
    answer = portal.locator(".turn.assistant")
    expect(answer.locator(".figures")).to_contain_text("tokens/s", timeout=60_000)
    assert answer.locator(".said").inner_text().strip()
    picture(portal, "playground")
    key = portal.input_value("#play-key")
    kept = portal.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    assert key
    assert key not in kept


def test_playground_says_errors_readably(portal: Page, running_server: Stack) -> None:
    portal.goto(f"{running_server.base_url}/playground/")
    portal.fill("#play-text", "Hello")
    portal.press("#play-text", "Enter")
    expect(portal.locator("#play-error")).to_have_text("Paste an API key first, or make one for this page.")
    portal.fill("#play-key", "sk-00000000-0000-0000-0000-000000000000")
    portal.press("#play-key", "Tab")
    expect(portal.locator("#play-key-note")).not_to_be_empty()
    portal.select_option("#play-model", running_server.model)
    portal.press("#play-text", "Enter")
    expect(portal.locator("#play-error")).to_be_visible()
    assert "[object" not in portal.locator("#play-error").inner_text()


def test_playground_stop_keeps_what_was_said_and_shows_markup_as_text(
    portal: Page, running_server: Stack
) -> None:
    portal.goto(f"{running_server.base_url}/playground/")
    portal.click("text=Make one for this page")
    expect(portal.locator("#play-key-note")).to_contain_text("Key accepted")
    portal.select_option("#play-model", running_server.model)
    # A stream that never ends, so that stopping is what ends it.
    portal.evaluate(
        """() => {
          const real = window.fetch;
          window.fetch = (url, options) => {
            if (!String(url).includes("chat/completions")) return real(url, options);
            const piece = {choices: [{delta: {content: "<img src=x onerror=alert(1)> "}}]};
            const body = new ReadableStream({start(out) {
              out.enqueue(new TextEncoder().encode(`data: ${JSON.stringify(piece)}\\r\\n\\r\\n`));
              options.signal.addEventListener("abort", () => out.error(options.signal.reason));
            }});
            return Promise.resolve(new Response(body));
          };
        }"""
    )
    portal.fill("#play-text", "go on for ever")
    portal.press("#play-text", "Enter")
    said = portal.locator(".turn.assistant .said")
    expect(said).to_contain_text("<img src=x")
    assert said.locator("img").count() == 0
    portal.click("#play-stop")
    expect(portal.locator(".turn.assistant .figures")).to_have_text("Stopped.")
    expect(portal.locator("#play-send")).to_be_enabled()


def test_chinese_dark_and_on_a_phone(running_server: Stack, open_page: Callable[..., Page]) -> None:
    page = open_page(locale="zh-CN", color_scheme="dark", viewport={"width": 375, "height": 800})
    sign_in(page, running_server)
    expect(page.locator("h1")).to_have_text("服务")
    for path in ("/services/", "/services/new/", "/keys/", "/usage/", "/playground/"):
        page.goto(f"{running_server.base_url}{path}")
        wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider <= 0, f"{path} scrolls sideways on a phone"


def test_keyboard_reaches_the_content_first(portal: Page) -> None:
    portal.reload()
    portal.keyboard.press("Tab")
    expect(portal.locator(".skip")).to_be_focused()
    portal.keyboard.press("Enter")
    expect(portal.locator("#content")).to_be_focused()
