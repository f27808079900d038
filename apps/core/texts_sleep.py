"""Sentences about sleep, wake, stop and scale (LIFE-04, SLEEP-01 to -06): a part of `texts.py`, which owns
how codes are said. `next_...` says what comes after an action."""

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

SLEEP: dict[str, Promise] = {
    "sleep_requested": _(
        "Asked to sleep: running calls end first, then the container stops and its cards stay reserved."
    ),
    "idle": _("No request for %(idle_minutes)s minute(s), which is its idle timeout: put to sleep."),
    "asleep": _("Asleep: its container is stopped, its place and cards stay reserved."),
    "sleep_call_skipped": _(
        "The engine %(engine)s has no sleep call of its own; its container was stopped all the same, "
        "which frees all of its memory."
    ),
    "sleep_call_failed": _(
        "The engine's own sleep call failed (%(why)s); its container was stopped all the same, which "
        "frees all of its memory."
    ),
    "sleep_routes_closed": _("its sleep routes are not open"),
    "node_says_nothing": _("its node says nothing of it"),
    "drain_cut": _("%(requests)s request(s) were still running after %(after_s)s s and were cut."),
    "still_used": _("It was used again before it slept, so it goes on serving."),
    "wake_requested": _("Asked to wake."),
    "wake_new_container": _("Its container is gone; a new one is built from the task."),
    "wake_node_offline": _(
        "Its node %(node)s is offline; it is rebuilt on another node as soon as one has room."
    ),
    "wake_card_lent": _(
        "Its card is lent to %(borrower)s until %(until)s at the latest; it wakes when the loan ends."
    ),
    "wake_failed": _("It did not wake within %(after_s)s s: %(why)s"),
    "canary_failed": _("It is up, but a first request for one token failed: %(why)s"),
    "loan_ended": _("The loan of its card has ended."),
    "scaled_out": _("Added by hand: the service now has %(replicas)s replica(s)."),
    "scaled_in": _("Taken away by hand: the service keeps %(replicas)s replica(s)."),
    "asleep_no_container": _(
        "Asleep without a container: it is gone from its node. Place and cards stay reserved; to wake it"
        " builds a new one."
    ),
    "asleep_no_place": _(
        "Asleep without a place: node %(node)s was emptied. To wake it is to place it anew."
    ),
    "sleep_unconfirmed": _(
        "Its node did not confirm the sleep within %(after_s)s s; until it does, its card may not be empty."
    ),
    "wake_new_place": _("Its node takes nothing on any more; it is placed anew, with a new container."),
    # answers to actions
    "already_asleep": _("It sleeps already."),
    "already_falling_asleep": _("It is falling asleep already."),
    "already_awake": _("It is awake already."),
    "already_waking": _("It is waking already."),
    "already_starting": _("It does not sleep; it is on its way to run."),
    "already_stopping": _("It is on its way to stop already."),
    "already_stopped": _("It has stopped already."),
    "already_ended": _("It has ended by itself; nothing of it runs."),
    "already_so": _("Nothing to do: the service has %(replicas)s replica(s) already."),
    "wake_withdrawn": _("It does not wait to wake any more; it stays asleep."),
    "wake_after_sleep": _("It is just falling asleep; it is woken as soon as it sleeps."),
    "stopped_at_once": _("Stopped: nothing of it existed on a node."),
    "stopping_tasks": _("%(tasks)s task(s) were told to stop."),
    "nothing_to_stop": _("Nothing to stop: all of it has stopped, or is on its way there."),
    "starting_tasks": _("%(tasks)s task(s) were told to start."),
    "nothing_to_start": _("Nothing to start: no task of it is stopped or failed."),
    # what comes next
    "next_nothing": _("Nothing more comes."),
    "next_falls_asleep": _(
        "It takes no new calls. Its container stops when no call has run for %(settle_s)s s, at the latest"
        " after %(drain_s)s s."
    ),
    "next_stays_asleep": _("It sleeps until somebody wakes it."),
    "next_wakes": _(
        "Its container starts; calls reach it when it has answered a first one. If that takes longer than"
        " %(within_s)s s, it fails and is rebuilt."
    ),
    "next_serves": _("It serves."),
    "next_ready": _("Calls reach it when it is ready."),
    "next_is_placed": _("It starts as soon as a node has room."),
    "next_wakes_by_itself": _("Nothing has moved. It wakes by itself; there is no need to ask again."),
    "next_node_confirms": _("Cards and ports are freed when its node confirms the end."),
    "next_recovers": _(
        "It did not wake; it is rebuilt by itself while rebuilds are left. See its last error."
    ),
    "nothing_to_sleep": _("Nothing to put to sleep: no replica of it runs, or those that run are leaving."),
    "nothing_to_wake": _("Nothing to wake: no replica of it sleeps."),
    "next_scales": _("%(coming)s replica(s) start, %(leaving)s end their running calls and stop."),
    # refusals
    "cannot_sleep": _(
        "It is %(state)s; only what runs can be put to sleep. Start it and wait until it runs."
    ),
    "cannot_wake": _("It is %(state)s; only what sleeps can be woken. Start the service instead."),
    "sleeps_not": _("Tasks of type %(task_type)s do not sleep; stop it instead."),
    "replica_in_exchange": _(
        "Its node is being emptied and it is being exchanged; ask again when that is done."
    ),
    "pipeline_scales_not": _(
        "A pipeline is one replica, however many stages it has, and can not be scaled; create another one."
    ),
    "scales_not": _("Services of type %(task_type)s can not be scaled; create another one."),
    "above_max_replicas": _("%(field)s is %(value)s, above max_replicas %(max)s."),
    "below_min_replicas": _("%(field)s is %(value)s, below min_replicas %(min)s."),
    "did_sleep_task": _("put the task to sleep"),
    "did_wake_task": _("woke the task"),
    "did_scale_service": _("scaled the service"),
    "did_end_loan": _("ended the loan of a card"),
}
