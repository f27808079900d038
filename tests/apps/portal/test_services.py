"""The services pages: empty, full, broken, and out of sight for strangers."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from agent.contract.states import State
from apps.catalog.models import CatalogModel
from apps.core.clock import utc_now
from apps.tenants.models import ApiKey, Role, Tenant, TenantStatus, User
from apps.workloads.models import Task, TaskGroup
from tests import factories
from tests.apps.portal.conftest import browser

LIST = reverse("portal:services")
CREATE = reverse("portal:service_create")


def address(group: TaskGroup, what: str = "service") -> str:
    return reverse(f"portal:{what}", args=[group.public_id])


def test_empty_list_says_what_to_do(page: Client) -> None:
    text = page.get(LIST).content.decode()
    assert "No service yet" in text
    assert CREATE in text


@pytest.mark.parametrize("name", ["services", "service_create", "keys", "usage", "playground"])
def test_person_without_a_tenant_is_told_whom_to_ask_on_every_page(db: None, name: str) -> None:
    text = browser(factories.make_user()).get(reverse(f"portal:{name}")).content.decode()
    assert text.count("You belong to no tenant yet") == 1
    assert f'href="{CREATE}"' not in text
    assert text.count("<form") == 2, "signing out and the language"


def test_an_operator_without_any_tenant_is_sent_to_make_one(db: None) -> None:
    text = browser(factories.make_operator()).get(CREATE).content.decode()
    assert reverse("admin:tenants_tenant_changelist") in text


@pytest.mark.req("SVC-14")
def test_what_waits_says_its_place_among_all_tenants(page: Client, tenant: Tenant, member: User) -> None:
    factories.make_task(factories.make_group(factories.make_tenant(), priority=1, name="theirs"))
    for number in range(2):
        mine = factories.make_group(tenant, member, name=f"mine-{number}")
        factories.make_task(mine)
    text = page.get(LIST).content.decode()
    assert "It is number 2 of 3 in the queue." in text and "It is number 3 of 3" in text
    assert "theirs" not in text
    assert "It is number 3 of 3 in the queue." in page.get(address(mine)).content.decode()


@pytest.mark.parametrize(("minutes", "told"), [(0, ""), (1, "after 1 minute w"), (9, "after 9 minutes w")])
def test_a_service_that_sleeps_by_itself_says_when(
    page: Client, tenant: Tenant, member: User, minutes: int, told: str
) -> None:
    group = factories.make_group(tenant, member, idle_timeout_minutes=minutes)
    text = page.get(address(group)).content.decode()
    assert told in text and ("Sleeps by itself" in text) == bool(minutes)


@pytest.mark.req("SVC-15")
def test_the_check_says_what_would_happen_and_makes_nothing(page: Client, body: dict[str, Any]) -> None:
    now = utc_now()
    factories.make_node("rack-<1>", now=now, last_seen_at=now)
    answer = page.post(CREATE, body | {"check": "1"})
    text = answer.content.decode()
    assert "It would start at once on node rack-&lt;1&gt;" in text and "Nothing was created." in text
    assert f'value="{body["name"]}"' in text, "what was typed stays"
    assert not TaskGroup.objects.exists()
    waits = page.post(CREATE, body | {"check": "1", "gpu_required": "1", "gpu_memory_utilization": "91"})
    assert "at most 90 % of a card" in waits.content.decode() and not TaskGroup.objects.exists()


@pytest.mark.req("SVC-13")
def test_list_shows_state_reason_replicas_engine_and_warnings(page: Client, service: TaskGroup) -> None:
    text = page.get(LIST).content.decode()
    assert 'data-state="failed"' in text
    assert ">failed<" in text
    assert "exit code 3" in text
    assert "llamacpp" in text
    assert "could not be made" in text


def test_many_services_come_in_pages(page: Client, tenant: Tenant, member: User) -> None:
    for number in range(27):
        factories.make_group(tenant, member, name=f"s{number:02}")
    first = page.get(LIST)
    assert len(first.context["services"]) == 25
    assert "Page 1 of 2" in first.content.decode()
    assert len(page.get(LIST, {"page": "2"}).context["services"]) == 2
    assert page.get(LIST, {"page": "-7 or so"}).status_code == 200


def test_polling_gets_the_list_alone(page: Client, service: TaskGroup) -> None:
    text = page.get(LIST, headers={"HX-Request": "true"}).content.decode()
    assert "chat" in text
    assert "<html" not in text


def test_detail_tells_everything_and_escapes_what_engines_wrote(page: Client, service: TaskGroup) -> None:
    text = page.get(address(service)).content.decode()
    for shown in (
        "exit code 3",
        "2 node(s): offline",
        "Its last lines",
        "OPENAI_BASE_URL=http://testserver/v1",
    ):
        assert shown in text
    assert "&lt;script&gt;alert(1)" in text
    assert "<script>alert(1)" not in text
    assert service.tasks.get().public_id in text


def test_a_given_up_service_says_what_was_wrong_in_list_and_page(page: Client, service: TaskGroup) -> None:
    service.tasks.update(
        reason_code="rebuilds_spent",
        reason_params={"max": 5},
        last_error={"code": "model_not_found_on_node", "params": {"path": "/models/none.gguf"}},
    )
    for shown_at in (LIST, address(service)):
        text = page.get(shown_at).content.decode()
        assert "Given up after 5 rebuilds" in text
        assert "/models/none.gguf does not exist on the node" in text


def test_the_call_to_copy_holds_the_model_name_as_it_is(page: Client, service: TaskGroup) -> None:
    assert '{"model": "tiny-model", "messages"' in page.get(address(service)).content.decode()


def test_detail_never_shows_more_of_the_key_than_its_prefix(page: Client, service: TaskGroup) -> None:
    key = ApiKey.objects.get()
    text = page.get(address(service)).content.decode()
    assert key.prefix in text
    assert key.sha256 not in text


@pytest.mark.req("TEN-04")
@pytest.mark.parametrize("what", ["service", "service_stop", "service_start", "service_delete"])
def test_strangers_and_wrong_ids_get_the_same_404(service: TaskGroup, what: str) -> None:
    stranger = browser(factories.make_member())
    ask = stranger.get if what == "service" else stranger.post
    theirs = ask(address(service, what))
    nobodys = ask(reverse(f"portal:{what}", args=["tg-aaaaaaaaaaaaaaaa"]))
    assert theirs.status_code == nobodys.status_code == 404
    service.refresh_from_db()
    assert service.deleted_at is None


@pytest.mark.req("TEN-02")
def test_a_viewer_reads_and_changes_nothing(tenant: Tenant, service: TaskGroup) -> None:
    reader = browser(factories.make_member(tenant, Role.VIEWER))
    text = reader.get(address(service)).content.decode()
    assert "delete-dialog" not in text
    refused = reader.post(address(service, "service_delete"))
    assert refused.status_code == 403
    assert "Your role does not allow this." in refused.content.decode()


def test_another_members_service_is_out_of_sight(tenant: Tenant, service: TaskGroup) -> None:
    colleague = browser(factories.make_member(tenant))
    assert colleague.get(address(service)).status_code == 404
    assert "chat" not in colleague.get(LIST).content.decode()


def test_suspended_tenant_is_said(tenant: Tenant, page: Client) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(
        status=TenantStatus.SUSPENDED, suspended_reason="Invoice 12 is open."
    )
    text = page.get(LIST).content.decode()
    assert "is suspended" in text
    assert "Invoice 12 is open." in text


def test_create_makes_the_service_and_shows_its_key_once(
    page: Client, body: dict[str, Any], tenant: Tenant
) -> None:
    made = page.post(CREATE, body)
    text = made.content.decode()
    group = TaskGroup.objects.get(name="fresh")
    assert made.status_code == 200
    assert group.tenant == tenant
    assert "sk-" in text
    assert "no-store" in made["Cache-Control"]
    key = text.split('id="new-key">')[1].split("<")[0]
    assert f"export OPENAI_BASE_URL=http://testserver/v1\nexport OPENAI_API_KEY={key}<" in text
    assert '{"model": "fresh", "messages"' in text
    again = page.get(address(group)).content.decode() + page.get(reverse("portal:keys")).content.decode()
    assert key not in again


@pytest.mark.req("SLEEP-06", "SVC-01")
def test_cards_memory_and_sleep_are_asked_for_as_by_the_api(page: Client, body: dict[str, Any]) -> None:
    for number in range(2):
        node = factories.make_node(cards=1, now=utc_now(), last_seen_at=utc_now())
        node.cards.update(model=("NVIDIA A800-SXM4-80GB", "NVIDIA L40S")[number])
    typed = {"gpu_type": "A800", "estimated_gpu_memory_mb": "1234", "idle_timeout_minutes": "15"}
    assert "created" in page.post(CREATE, body | typed).templates[0].name
    group = TaskGroup.objects.get()
    task = group.tasks.get()
    told = (task.gpu_type, task.estimated_gpu_memory_mb, group.idle_timeout_minutes)
    assert told == ("A800", 1234, 15)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("estimated_gpu_memory_mb", "0", "Memory needed is 0; it must be from"),
        ("idle_timeout_minutes", "-1", "Sleeps after is -1; it must be from"),
        ("gpu_type", "x" * 101, "GPU type"),
        ("image", "no tag", "Image is no tag; an image is written name:tag"),
        ("gpu_required", "-3", "Cards is -3; it must be from 0 to 64."),
        ("gpu_memory_utilization", "101", "GPU memory is 101; it must be from"),
        ("model_path", "", "Choose a model, or type the path"),
    ],
)
def test_a_refusal_stands_beside_its_field(
    page: Client, body: dict[str, Any], field: str, value: str, sentence: str
) -> None:
    answer = page.post(CREATE, {**body, field: value})
    assert any(sentence in str(error) for error in answer.context["form"].errors[field])
    assert sentence in answer.content.decode()
    assert not TaskGroup.objects.exists()


@pytest.mark.parametrize(
    ("sent", "field", "sentence"),
    [
        ({"name": "two words"}, "model_name", "Type a model name"),
        ({"image": "own/thing:1"}, "engine", "The image tells no engine"),
    ],
)
def test_a_refusal_speaks_of_the_field_that_mends_it(
    page: Client, body: dict[str, Any], sent: dict[str, str], field: str, sentence: str
) -> None:
    form = page.post(CREATE, {**body, **sent}).context["form"]
    assert sentence in str(form.errors[field])


def test_a_taken_name_is_said_beside_the_name(page: Client, body: dict[str, Any], service: TaskGroup) -> None:
    answer = page.post(CREATE, {**body, "name": service.name})
    assert "already taken" in str(answer.context["form"].errors["name"])


def test_suspended_tenant_can_not_create(page: Client, body: dict[str, Any], tenant: Tenant) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(status=TenantStatus.SUSPENDED, suspended_reason="why")
    text = page.post(CREATE, body).content.decode()
    assert "The tenant is suspended: why" in text


@pytest.mark.req("UI-02")
@pytest.mark.parametrize(
    ("cards", "starts_with", "hint"),
    [(None, 1, "0 for an engine"), (0, 0, "There are no cards on the nodes"), (2, 1, "0 for an engine")],
)
def test_the_form_starts_with_cards_where_there_are_some(
    page: Client, tenant: Tenant, cards: int | None, starts_with: int, hint: str
) -> None:
    if cards is not None:
        factories.make_node(cards=cards)
    factories.make_node(cards=4, allowed_tenants=[factories.make_tenant()])  # another tenant's
    form = page.get(CREATE).context["form"]
    assert form["gpu_required"].initial == starts_with
    assert hint in str(form["gpu_required"].help_text)


@pytest.mark.req("SVC-13")
def test_a_waiting_service_says_what_the_nearest_node_lacks(page: Client, service: TaskGroup) -> None:
    refusals = [
        {"code": "insufficient_resources", "params": {"nodes": 1}},
        {"code": "cards_short", "params": {"nodes": 1, "wanted": 2, "free": 0}},
        {"code": "node_offline", "params": {"nodes": 2}},
    ]
    service.tasks.update(state=State.PENDING, reason_code="insufficient_resources", refusals=refusals)
    TaskGroup.objects.update(state=State.PENDING)
    text = page.get(LIST).content.decode()
    assert "2 free card(s) needed, at most 0 free" in text
    assert "offline" not in text


@pytest.mark.req("UI-02")
@pytest.mark.parametrize(
    ("state", "acts"),
    [
        (State.PENDING, {"stop"}),
        (State.RUNNING, {"stop"}),
        (State.STOPPING, set()),
        (State.STOPPED, {"start-again"}),
        (State.FAILED, {"stop", "start-again"}),
        (State.COMPLETED, set()),
    ],
)
def test_acts_are_offered_where_they_do_something(
    page: Client, service: TaskGroup, state: State, acts: set[str]
) -> None:
    service.tasks.update(state=state)
    for headers in ({}, {"HX-Request": "true"}):  # the live part renews them too
        text = page.get(address(service), headers=headers).content.decode()
        assert {act for act in ("stop", "start-again") if f'id="{act}"' in text} == acts
        assert 'id="delete"' in text


@pytest.mark.req("SVC-06")
def test_a_catalog_model_fills_the_model_name_and_a_typed_path_sends_none(
    page: Client, body: dict[str, Any]
) -> None:
    model = CatalogModel.objects.create(name="Qwen", path="/m/q.gguf", image="llama.cpp:server")
    chosen = {**body, "model": model.public_id, "model_path": "", "image": "", "name": "by-choice"}
    page.post(CREATE, chosen)
    page.post(CREATE, {**body, "name": "by-hand"})
    assert TaskGroup.objects.get(name="by-choice").model_name == "Qwen"
    assert Task.objects.get(group__name="by-choice").model_path == "/m/q.gguf"
    assert TaskGroup.objects.get(name="by-hand").model_name == "by-hand"


def test_several_tenants_are_asked_for(member: User, body: dict[str, Any]) -> None:
    other = factories.make_tenant()
    factories.make_member(other, user=member)
    page = browser(member)
    assert page.post(CREATE, body).context["form"].errors["tenant"]
    page.post(CREATE, {**body, "tenant": other.slug})
    assert TaskGroup.objects.get().tenant == other


@pytest.mark.req("LIFE-04")
def test_stop_start_and_delete_go_through(page: Client, tenant: Tenant, member: User) -> None:
    group = factories.make_group(tenant, member, name="going")
    task = factories.make_task(group)
    page.post(address(group, "service_stop"))
    task.refresh_from_db()
    assert task.state == State.STOPPED
    assert "Nothing to stop" in page.post(address(group, "service_stop"), follow=True).content.decode()
    assert "told to start" in page.post(address(group, "service_start"), follow=True).content.decode()
    assert "Nothing to start" in page.post(address(group, "service_start"), follow=True).content.decode()
    task.refresh_from_db()
    assert task.state == State.PENDING
    left = page.post(address(group, "service_delete"), follow=True)
    assert "going is deleted" in left.content.decode()
    assert page.get(address(group)).status_code == 404


@pytest.mark.req("LIFE-04", "SLEEP-01")
def test_sleep_wake_and_scale_go_through_and_say_what_comes_next(
    page: Client, tenant: Tenant, member: User
) -> None:
    group = factories.make_group(tenant, member, state=State.RUNNING, max_replicas=3)
    node = factories.make_node()
    task = factories.make_task(group, state=State.RUNNING, phase="ready", attempt=1, node=node)
    factories.make_claim(task, node, incarnation="run-1")
    shown = page.get(address(group)).content.decode()
    assert 'id="sleep"' in shown and 'id="scale"' in shown and 'id="wake"' not in shown
    text = page.post(address(group, "service_sleep"), follow=True).content.decode()
    assert "Asked to sleep" in text and "takes no new calls" in text
    assert (
        "Nothing to put to sleep" in page.post(address(group, "service_sleep"), follow=True).content.decode()
    )
    Task.objects.update(state=State.SLEEPING)
    text = page.get(address(group)).content.decode()
    assert 'id="wake"' in text and 'id="sleep"' not in text
    text = page.post(address(group, "service_wake"), follow=True).content.decode()
    assert "is offline" in text and "wakes by itself" in text  # a node that was never heard of now
    text = page.post(address(group, "service_scale"), {"replicas": "3"}, follow=True).content.decode()
    assert "now has 3 replica(s)" in text and group.tasks.count() == 3
    for wrong in ("4", "many", "", "-1"):
        assert page.post(address(group, "service_scale"), {"replicas": wrong}).status_code == 400
    assert group.tasks.count() == 3


def test_changes_need_a_post_with_a_token(member: User, service: TaskGroup) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(member)
    assert client.get(address(service, "service_delete")).status_code == 405
    assert client.post(address(service, "service_delete")).status_code == 403
    service.refresh_from_db()
    assert service.deleted_at is None


def test_tasks_and_faults_share_a_column_beside_what_happened(page: Client, service: TaskGroup) -> None:
    """Three panels in a grid of two columns would leave a hole as tall as the events."""
    text = page.get(address(service)).content.decode()
    left = text[text.index('<div class="columns">') : text.index("<h2>What happened</h2>")]
    assert "<h2>Tasks</h2>" in left and "<h2>Faults</h2>" in left
    assert left.count("<div") - left.count("</div>") == 1  # the grid itself; the column is closed
