"""The page of usage: full, empty, asked for what can't be shown, in both languages (GW-12, UI-03)."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.clock import utc_now
from apps.tenants.models import Role, Tenant, User
from apps.usage import totals
from apps.usage.models import UsageRecord
from tests import factories
from tests.apps.portal.conftest import browser
from tests.apps.portal.test_pages import use

pytestmark = [pytest.mark.django_db, pytest.mark.req("GW-12", "UI-03")]
USAGE = reverse("portal:usage")


def test_bars_and_table_say_what_the_records_say(page: Client, tenant: Tenant, member: User) -> None:
    key, _ = factories.make_key(tenant, member, name="laptop")
    for days, tokens in ((0, 1000), (1, 20), (40, 7)):
        at = utc_now() - timedelta(days=days)
        use(tenant, member, prompt_tokens=tokens, started_at=at, key_id=key.public_id, key_prefix=key.prefix)
    use(tenant, member, ending="client_gone", completion_tokens=3, estimated=True)
    for counted in (0, 2, 4):
        totals.add_up(counted)
        shown = page.get(USAGE).context["usage"]
        assert (shown["whole"].requests, shown["whole"].failed, shown["whole"].prompt_tokens) == (3, 1, 1020)
        tokens_chart, requests_chart = shown["charts"]
        assert (tokens_chart.top, requests_chart.top, len(tokens_chart.bars)) == (1003, 2, 30)
    text = page.get(USAGE, {"by": "key"}).content.decode()
    assert "laptop" in text and key.prefix in text
    assert "1 estimated" in text
    today = utc_now().date().isoformat()
    assert f"<title>{today}: 1,000 in, 3 out</title>" in text
    assert not re.search(r"<[^>]+\sstyle=", text)
    hours = page.get(USAGE, {"from": today, "to": today}).context["usage"]["charts"][0]
    assert (len(hours.bars), hours.first, hours.last) == (24, "00:00", "23:00")


def test_hours_that_were_let_go_are_not_shown_as_zeros(
    page: Client, tenant: Tenant, member: User, settings: object
) -> None:
    settings.USAGE_HOURS_KEEP_DAYS = 3  # type: ignore[attr-defined]
    use(tenant, member, started_at=utc_now() - timedelta(days=5), prompt_tokens=9)
    day = (utc_now() - timedelta(days=5)).date().isoformat()
    chart = page.get(USAGE, {"from": day, "to": day}).context["usage"]["charts"][0]
    assert (len(chart.bars), chart.top) == (1, 9)


@pytest.mark.parametrize(
    "asked", [{"from": "2026-02-01", "to": "2026-01-01"}, {"from": "never"}, {"by": "colour"}]
)
def test_what_can_not_be_shown_is_said(page: Client, tenant: Tenant, asked: dict[str, str]) -> None:
    answer = page.get(USAGE, asked)
    assert answer.status_code == 200
    text = answer.content.decode()
    assert "These days can not be shown." in text
    assert "No request in these days" not in text


def test_the_part_that_renews_itself_comes_alone(page: Client, tenant: Tenant) -> None:
    text = page.get(USAGE, headers={"HX-Request": "true"}).content.decode()
    assert "<html" not in text and "No request in these days" in text


def test_by_tenant_is_for_people_of_several(tenant: Tenant, member: User) -> None:
    other = factories.make_tenant()
    factories.make_member(other, Role.OWNER, user=member)
    for one in (tenant, other):
        use(one, member, tenant_slug=one.slug, prompt_tokens=5)
    client = browser(member)
    lines = client.get(USAGE, {"by": "tenant"}).context["usage"]["lines"]
    assert {line.name for line in lines} == {tenant.slug, other.slug}
    only = client.get(USAGE, {"by": "tenant", "tenant": other.slug}).context["usage"]["lines"]
    assert [line.name for line in only] == [other.slug]
    alone = browser(factories.make_member(tenant)).get(USAGE, {"by": "tenant"})
    assert "These days can not be shown." in alone.content.decode()


@pytest.mark.parametrize("path", [USAGE, "/console/"])
def test_operators_see_all_in_both_languages(tenant: Tenant, member: User, path: str) -> None:
    use(tenant, member, prompt_tokens=12345)
    client = browser(factories.make_operator())
    address = path if path == USAGE else reverse("admin:usage_usagetotal_overview")
    for language, word in (("en", "Tokens"), ("zh-hans", "词元")):
        client.post(reverse("set_language"), {"language": language, "next": "/"})
        text = client.get(address).content.decode().replace(",", "")
        assert word in text and "12345" in text
        # The console's own script takes what is of this class for a canvas, and throws.
        assert "bars" in text and 'class="chart"' not in text
    assert "These days" not in text
    bad = client.get(address, {"from": "never"}).content.decode().replace(",", "")
    assert "12345" not in bad
    UsageRecord.objects.all().delete()
    assert "12345" not in client.get(address).content.decode().replace(",", "")
