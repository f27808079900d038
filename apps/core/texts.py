"""Sentences for codes, in English here and in Chinese through gettext.

Owns the only place where a reason, refusal or warning becomes a sentence. Each names the thing, the
value, the rule and the way out. A code that is missing here fails the suite.
"""

from collections.abc import Mapping
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from apps.core.texts_alerts import ALERTS
from apps.core.texts_explain import EXPLAIN
from apps.core.texts_files import FILES
from apps.core.texts_gateway import GATEWAY
from apps.core.texts_placing import FULLER, PLACING, WHAT
from apps.core.texts_recovery import RECOVERY, TELLS_WHY
from apps.core.texts_sleep import SLEEP

TEXTS: dict[str, Promise] = {
    **ALERTS,
    **EXPLAIN,
    **FILES,
    **GATEWAY,
    **PLACING,
    **RECOVERY,
    **SLEEP,
    # the request as a whole
    "invalid": _("The request breaks the rules named in `errors`."),
    "no_such_address": _("There is no such address; /api/schema.json lists those there are."),
    "not_found": _("There is no such object, or you may not see it."),
    "forbidden": _("Your role does not allow this."),
    "not_signed_in": _("Sign in first: no valid session or access token came with the request."),
    "sign_in_failed": _("User name and password do not match an active account."),
    "sign_in_locked": _("Too many failed attempts; try again in %(retry_after_s)s s."),
    "metrics_token_wrong": _("Send METRICS_TOKEN as a bearer token to read the metrics."),
    "malformed_json": _("The body is not valid JSON."),
    "not_an_object": _("The body must be a JSON object."),
    "body_too_large": _("The body is too large."),
    "unsupported_media_type": _("Send application/json."),
    "method_not_allowed": _("This address does not take that method."),
    "throttled": _("Too many requests; try again in %(retry_after_s)s s."),
    "database_away": _("The database does not answer; try again shortly."),
    "unavailable": _("A part of the platform is away; try again shortly."),
    "internal": _("Something unexpected went wrong; the request id leads to the log line."),
    # fields
    "required": _("%(field)s is required."),
    "unknown_field": _("%(field)s is not a field of this request; check its spelling or remove it."),
    "field_belongs_in_task": _("%(field)s belongs inside `task`, as task.%(field)s."),
    "not_offered": _("%(field)s can not be set: %(why)s"),
    "wrong_type": _("%(field)s must be %(expected)s."),
    "out_of_range": _("%(field)s is %(value)s; it must be from %(min)s to %(max)s."),
    "not_a_choice": _("%(field)s is %(value)s; it must be one of: %(choices)s."),
    "too_long": _("%(field)s is longer than %(max)s characters."),
    "blank": _("%(field)s must not be blank."),
    "bad_characters": _("%(field)s holds characters that are not allowed there (control characters or NUL)."),
    "bad_name": _(
        "%(field)s is %(value)s; use letters, digits, dot, underscore, colon, slash and hyphen,"
        " without blanks."
    ),
    "bad_image": _("%(field)s is %(value)s; an image is written name:tag or name@sha256:digest."),
    "model_name_from_name": _(
        "%(field)s is absent, so callers would send the name %(value)s; for that it may hold letters, digits,"
        " dot, underscore, colon, slash and hyphen only, without blanks. Send a model_name, or rename."
    ),
    "bad_key": _("%(field)s has the key %(value)s; use letters, digits and underscores, a letter first."),
    "bad_volume": _("%(field)s is %(value)s; a volume is written /on/the/node:/in/the/container[:ro]."),
    "bad_url_path": _("%(field)s is %(value)s; it must begin with a slash and hold no blanks."),
    "bad_time_zone": _(
        "%(field)s is %(value)s; use a name of the time zone database, such as Asia/Shanghai."
    ),
    "bad_time_of_day": _("%(field)s is %(value)s; write hours and minutes as HH:MM."),
    "bad_engine_option": _("%(field)s is %(value)s, but for the engine's command line it %(rule)s."),
    "too_many": _("%(field)s has %(value)s entries; at most %(max)s are allowed."),
    "duplicate": _("%(field)s names %(value)s twice."),
    "world_size_mismatch": _("%(field)s is %(value)s, but %(parallelism)s needs %(expected)s."),
    "replicas_order": _("%(field)s is %(value)s, above max_replicas %(max)s."),
    "model_path_or_command": _(
        "An inference service needs task.model_path, or a task.command of its own; both are missing."
    ),
    "co_schedule_closed": _("co_schedule is not offered; gpu_memory_utilization decides what shares a card."),
    "operators_only": _("%(field)s is %(value)s; only a platform operator may set that."),
    "one_target": _("Name either group_id or external_id: a route leads to one of them."),
    "bad_engine_url": _(
        "%(field)s is %(value)s; use https:// (http:// needs EXTERNAL_ENGINES_ALLOW_HTTP=true in the server's"
        " environment), a host, no user name and no query."
    ),
    "engine_unresolved": _("%(field)s is %(value)s, whose host's name leads to no address."),
    "private_engine": _(
        "%(field)s is %(value)s, which leads to an address of the inner network; allow those by"
        " EXTERNAL_ENGINES_ALLOW_PRIVATE=true in the server's environment, or use another."
    ),
    "port_not_declared": _(
        "%(field)s is %(value)s; it must be one of the group's declared or mapped ports: %(ports)s."
    ),
    "engine_not_told": _("The image %(value)s tells no engine; name one in task.engine: %(offered)s."),
    "not_yet_offered": _("%(field)s is %(value)s, which this version does not run yet; use %(offered)s."),
    "tenant_required": _("You belong to several tenants; name one in `tenant`: %(choices)s."),
    "no_tenant": _("You belong to no tenant; ask a platform operator to add you to one."),
    "validation": _("%(field)s: %(message)s"),
    # conflicts and limits
    "name_taken": _("The name %(value)s is already taken; choose another, or delete the old one first."),
    "route_exists": _("A route of %(value)s to there exists already; change that one."),
    "quota_exceeded": _(
        "The quota of %(what)s is %(limit)s and %(used)s are in use; %(asked)s more do not fit."
        " Free some, or ask a platform operator for more."
    ),
    "tenant_suspended": _("The tenant is suspended: %(why)s"),
    "already_revoked": _("The key is revoked; issue a new one."),
    "key_expired": _("The key expired at %(expired_at)s; issue a new one."),
    "viewer_holds_no_key": _("%(field)s is %(value)s, a viewer of this tenant; viewers hold no keys."),
    "not_a_member": _("%(field)s is %(value)s, who is no member of this tenant; add them first."),
    "already_a_member": _("%(field)s is %(value)s, who is a member of this tenant already; change the role."),
    "role_above_own": _("%(field)s is %(value)s, above your own role %(own)s in this tenant."),
    "last_owner": _("This is the tenant's last owner; make another member owner first."),
    "scopes_needed": _("%(field)s is empty, so that the key could do nothing; name some of: %(choices)s."),
    "not_a_network": _(
        "%(field)s holds %(value)s; write an address, or a network without host bits such as 10.0.0.0/8."
    ),
    "wider_than_set": _(
        "%(field)s would allow %(value)s; an owner, admin or operator set it to %(bound)s, which you may only"
        " narrow. Stay within that, or ask one of them."
    ),
    "not_in_future": _("%(field)s is %(value)s; it must lie in the future."),
    "no_such_name": _("%(field)s names %(value)s, which does not exist; check its spelling."),
    "of_another_tenant": _(
        "%(field)s is %(value)s, which is of another tenant than the rest of the request."
    ),
    "no_such_user": _("%(field)s is %(value)s, whom nobody here is called; send a password to create them."),
    "join_token_unknown": _("The join token is not one of this server's; ask an operator for a fresh one."),
    "join_token_expired": _("The join token has expired; ask an operator for a fresh one."),
    "join_token_used": _("The join token was redeemed by another machine; each machine needs its own."),
    "machine_mismatch": _(
        "Node %(node)s belongs to another machine; join this machine with a token of its own."
    ),
    # states as words
    "state_pending": _("pending"),
    "state_scheduling": _("scheduling"),
    "state_running": _("running"),
    "state_sleeping": _("sleeping"),
    "state_waking": _("waking"),
    "state_draining": _("draining"),
    "state_stopping": _("stopping"),
    "state_completed": _("completed"),
    "state_failed": _("failed"),
    "state_stopped": _("stopped"),
    "phase_placed": _("placed"),
    "phase_claimed": _("taken on"),
    "phase_pulling": _("fetching the image"),
    "phase_creating": _("creating"),
    "phase_loading": _("loading the model"),
    "phase_ready": _("ready"),
    "phase_unhealthy": _("unhealthy"),
    "phase_leaving": _("leaving"),
    # why a task is as it is
    "created": _("Created."),
    "placed": _("Placed on node %(node)s."),
    "claimed": _("Its node has taken it on."),
    "ready": _("Ready."),
    "start_failed": _("The engine did not start: %(why)s"),
    "start_timeout": _("Its node did not take it on within %(after_s)s s."),
    "load_timeout": _("It was not ready within %(after_s)s s: %(why)s"),
    "port_conflict": _("Port %(port)s is in use on the node by something else."),
    "port_moved": _("Port %(port)s is in use on the node by something else; port %(to)s was taken instead."),
    "model_not_found_on_node": _("The model path %(path)s does not exist on the node."),
    "path_not_allowed": _("The path %(path)s is outside the folders that the node allows."),
    "engine_unavailable": _("The node can not run the engine %(engine)s: %(why)s"),
    "image_missing": _("The image %(image)s is not on the node, and no registry gave it."),
    "pull_failed": _("The image %(image)s could not be fetched: %(why)s"),
    "disk_short": _("The node has %(free_mb)s MB free for images; at least %(floor_mb)s MB must stay free."),
    "cards_unreachable": _("Docker can not hand on cards of vendor %(vendor)s: %(why)s"),
    "unhealthy": _("The health check failed %(failures)s times in a row: %(why)s"),
    "stalled": _("%(requests)s request(s) are in work, but it has made no step for %(after_s)s s."),
    "exited": _("It ended by itself with exit code %(exit_code)s."),
    "out_of_memory": _("The kernel ended it: out of memory."),
    "container_gone": _("Its container or process is gone."),
    "agent_restarted": _("The node's agent started anew; its engines end with it."),
    "node_lost": _("Node %(node)s has been silent for %(silent_s)s s."),
    "stop_requested": _("Stop was asked for."),
    "start_requested": _("It was told to start again; it waits for a place on a node."),
    "delete_requested": _("Deletion was asked for."),
    "delete_waits_for_nodes": _(
        "Hidden at once; cards and ports of %(tasks)s task(s) are freed when their nodes confirm the end."
    ),
    "delete_complete": _("Hidden at once; nothing of it runs any more."),
    "stop_confirmed": _("The node confirms that it is gone."),
    "stop_unconfirmed": _(
        "Its node did not confirm the stop within %(after_s)s s; its card stays held until it does."
    ),
    "card_busy": _(
        "Memory of card %(card)s is still held (%(used_mb)s MB) by process %(pid)s; nothing starts "
        "there until it is free."
    ),
    "completed": _("Completed."),
    "claim_lost": _("The placement is not this node's any more."),
    "claim_superseded": _("A newer run of the agent holds the claim."),
    "claim_unknown": _("There is no such placement."),
    "not_this_nodes": _("That is not this node's: each node speaks for itself and its own placements alone."),
    # what agents are told
    "contract_unsupported": _(
        "This server speaks contract %(supported)s, the agent %(offered)s; install the matching agent."
    ),
    "node_credential_wrong": _("The node credential is missing or wrong; join this machine again."),
    "join_refused": _("This machine is not taken on. %(why)s"),
    "join_guesses_spent": _("Too many failed joins from this address; try again in %(retry_after_s)s s."),
    "dial_not_local": _(
        "%(field)s is %(value)s, said from %(address)s: engines are dialled directly on the server's own"
        ' machine and its loopback only; set dial = "door" in the agent\'s settings.'
    ),
    "foreign_placement": _(
        "Node %(node)s was refused: its %(what)s names task %(task)s, which another node holds. Somebody may"
        " use its credential; delete the node and join it anew if you don't know why."
    ),
    "report_failed": _("A report on task %(task)s could not be applied: %(why)s"),
    # why a node's door is closed
    "door_unreachable": _("No connection: check the address it advertises, and firewalls on the way."),
    "door_timed_out": _("No answer in time: check the address it advertises, and firewalls on the way."),
    "door_other_certificate": _(
        "Another certificate than the node's: something else answers at that address."
    ),
    "door_refuses": _("It refuses the server's line: the two clocks are far apart, or it is another node."),
    "door_no_door": _("What answers there is no door."),
    # what was done, in the audit trail
    "did_acknowledge_alert": _("acknowledged the alert"),
    "did_create_webhook": _("created the webhook"),
    "did_change_webhook": _("changed the webhook"),
    "did_delete_webhook": _("deleted the webhook"),
    "did_test_webhook": _("sent a test to the webhook"),
    "did_sign_in": _("signed in"),
    "did_fail_sign_in": _("failed to sign in"),
    "did_lock_sign_in": _("was locked out of signing in"),
    "did_sign_out": _("signed out"),
    "did_create_tenant": _("created the tenant"),
    "did_change_tenant": _("changed the tenant"),
    "did_suspend_tenant": _("suspended the tenant"),
    "did_resume_tenant": _("resumed the tenant"),
    "did_create_user": _("created the person"),
    "did_open_account": _("opened the account"),
    "did_close_account": _("closed the account"),
    "did_change_profile": _("changed the profile"),
    "did_change_password": _("changed the password"),
    "did_set_password": _("set a new password"),
    "did_invite": _("invited somebody"),
    "did_accept_invitation": _("accepted the invitation"),
    "did_offer_reset": _("made a link for a new password"),
    "did_reset_password": _("set a new password by a link"),
    "did_withdraw_link": _("withdrew the link"),
    "did_end_session": _("ended the session"),
    "did_end_sessions": _("ended the sessions"),
    "did_add_member": _("added the member"),
    "did_change_role": _("changed the role"),
    "did_remove_member": _("removed the member"),
    "did_issue_key": _("issued the key"),
    "did_change_key": _("changed the key"),
    "did_rotate_key": _("rotated the key"),
    "did_revoke_key": _("revoked the key"),
    "did_create_join_token": _("made a join token"),
    "did_join_node": _("joined as a node"),
    "did_change_node": _("changed the node"),
    "did_drain_node": _("began to empty the node"),
    "did_release_cards": _("released cards in quarantine"),
    "did_maintain_node": _("put the node into maintenance"),
    "did_force_node": _("set when the node is emptied by force"),
    "did_resume_node": _("put the node back into service"),
    "did_delete_node": _("deleted the node"),
    "did_create_model": _("registered the model"),
    "did_create_service": _("created the service"),
    "did_stop_service": _("stopped the service"),
    "did_start_service": _("started the service again"),
    "did_delete_service": _("deleted the service"),
    "did_stop_task": _("stopped the task"),
    "did_create_route": _("created the route"),
    "did_delete_route": _("deleted the route"),
    "did_create_external_engine": _("added the external engine"),
    "did_change_external_engine": _("changed the external engine"),
    "did_delete_external_engine": _("deleted the external engine"),
    "did_change_route": _("changed the route"),
    "did_create_endpoint": _("created the endpoint"),
    "did_change_endpoint": _("changed the endpoint"),
    "did_delete_endpoint": _("deleted the endpoint"),
    "did_console_add": _("added, in the console,"),
    "did_console_change": _("changed, in the console,"),
    "did_console_delete": _("deleted, in the console,"),
    # people: invitations, links, passwords, sessions
    "link_unknown": _("This link is not valid: it was used, withdrawn, has expired, or never was one."),
    "wrong_password": _("%(field)s is not your present password."),
    "reset_by_operator_only": _(
        "This person also stands in tenants that you don't own, or is an operator: only a platform operator"
        " may reset their password."
    ),
    # node operations
    "card_not_quarantined": _("No such card of node %(node)s is in quarantine; there is nothing to release."),
    "cards_released": _(
        "%(cards)s card(s): the node's agent ends their quarantine with its next heartbeat, whatever is held"
        " there."
    ),
    "node_leaving": _(
        "Node %(node)s is being emptied or in maintenance; put it back into service instead of uncordoning"
        " it."
    ),
    "node_holds_tasks": _(
        "Node %(node)s still holds %(tasks)s task(s). Drain it first and wait until it is empty, or send"
        " force=%(node)s: then their claims are released though the engines may go on there."
    ),
    "node_in_service": _(
        "Node %(node)s is in service: drain it first, then say when what is left is to be stopped."
    ),
    "node_draining": _("Node %(node)s is being emptied; moved to another."),
    "node_forced": _("An operator emptied node %(node)s by force; it begins anew where there is a place."),
    "replacement_created": _("Node %(node)s is being emptied: this one is to serve in place of another."),
    "replacement_dropped": _("The replacement on node %(node)s is not needed any more; the old one stays."),
    "node_removed": _("Node %(node)s was deleted by an operator."),
    "drain_no_place": _("It serves on until another node can take it. %(why)s"),
    "drain_in_line": _("It waits its turn: %(at_once)s replacements start at once."),
    "drain_starting": _("It serves on; its replacement starts on node %(on)s (%(phase)s)."),
    "drain_failing": _("It serves on; its replacement failed and is tried again. %(why)s"),
    "drain_done": _("moved"),
    "drain_switched": _("Its replacement serves; here the running calls come to their end."),
    "drain_in_turn": _("It waits until the service's other replicas are ready."),
    "drain_needs_word": _(
        "It is no inference service: it stays until it ends, or somebody stops it, or the node is emptied by"
        " force."
    ),
    "drain_needs_word_stage": _(
        "It is a stage of a pipeline, which is not exchanged alone: it stays until somebody stops it, or the"
        " node is emptied by force; then all stages start again together elsewhere."
    ),
    "drain_leaving": _("It is on its way out; its node confirms the end."),
    "drain_moving": _("It is next to move."),
    "upkeep_in_service": _("In service. It takes new work."),
    "upkeep_closed": _("Closed for new work; what runs there goes on."),
    "upkeep_emptying": _(
        "It takes no new work. Inference moves to other nodes: each replica serves here until its replacement"
        " is ready there. %(left)s task(s) left."
    ),
    "upkeep_empty": _("Nothing is left on it. Put it back into service, or delete it."),
    "upkeep_deleted": _(
        "Deleted. Its agent is refused from now on and says so in its log; engines that still run there go on"
        " until somebody ends them on the machine."
    ),
    # warnings
    "endpoint_without_port": _(
        "enable_api was asked for, but no port is mapped, so no endpoint was made; add one to task.ports."
    ),
    "task_without_port": _("%(name)s has no port mapped, so no call is sent to it; add one to task.ports."),
    "route_not_created": _("The route of this service could not be made; add it under model routes."),
    "endpoint_not_created": _("The endpoint of this service could not be made; add it under endpoints."),
    "not_in_effect_yet": _("%(field)s is kept, but this version does not act on it yet."),
    "not_counted_on_card": _("Without a port the service is not counted on its card."),
    "estimate_skipped": _(
        "The size of the model is not known here, so that nobody checked whether it fits on a card."
        " Have an operator register it with its size, or send task.estimated_gpu_memory_mb."
    ),
    "runtime_silent": _(
        "Docker on node %(node)s does not answer: nothing can be started or stopped there until it does."
    ),
    "clock_skew": _("The node's clock is off by %(skew_s)s s."),
}


class _Params(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        """`NAME_size` is `NAME_mb` as people read it."""
        size = self.get(f"{key.removesuffix('_size')}_mb") if key.endswith("_size") else None
        return "?" if size is None else say_size(int(size))


def say_size(mb: int) -> str:
    """Memory of so many MB (2**20 bytes), in GB from 1 GB up."""
    return f"{mb / 1024:.1f} GB" if abs(mb) >= 1024 else f"{mb} MB"


def say(code: str, params: Mapping[str, Any] | None = None) -> str:
    """The sentence of a code in the active language; the bare code where it has none."""
    values = _Params(params or {})
    value, fuller = FULLER.get(code, ("", ""))
    text = TEXTS.get(fuller if values.get(value) not in (None, "") else code)
    if text is None:
        return str(values.get("message") or code)
    if code in TELLS_WHY and "why" in values:
        inner = {
            name.removeprefix("why_"): value for name, value in values.items() if name.startswith("why_")
        }
        values["why"] = say(str(values["why"]), inner)
    if code in WHAT and "what" in values:
        values["what"] = say(f"what_{values['what']}")
    return str(text) % values
