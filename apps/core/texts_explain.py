"""Sentences that explain a service (SVC-14): what is awaited, what one node lacks, what to do. A part of
`texts.py`, which owns how codes are said."""

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

EXPLAIN: dict[str, Promise] = {
    # what is awaited
    "await_resumed": _("It waits until an operator ends the suspension of its tenant."),
    "await_retry": _("It failed a moment ago and pauses before it is placed again."),
    "await_place": _("It waits for a node with room; every node is asked again each second."),
    "await_room": _("Room was made for it on a node, which is kept for it; it starts when that is empty."),
    "await_claim": _("It waits for its node's agent to take it on."),
    "await_image": _("Its node fetches the image."),
    "await_ready": _("It starts and loads its model; it serves once its health check passes."),
    "await_ready_again": _("It runs, but is not ready now; it serves again once its health check passes."),
    "await_end": _("It runs until it ends by itself, or its timeout ends it."),
    "await_drained_then_stop": _("Running calls come to their end, then it stops."),
    "await_drained_then_sleep": _("Running calls come to their end, then it falls asleep."),
    "await_wake_possible": _("It was asked to wake and does so as soon as its node and its card allow it."),
    "await_wake_call": _("It sleeps until somebody wakes it."),
    "await_gone": _("It ends; its node confirms when nothing of it is left."),
    "await_rebuild": _("It is built anew by itself within seconds."),
    # what one node says
    "here_fits": _("It would take it now; it is next."),
    "here_node_not_allowed": _("It is not open to this tenant."),
    "here_node_offline": _("It is offline."),
    "here_door_closed": _("The server can not reach its door."),
    "here_node_cordoned": _("It is closed for new work."),
    "here_runtime_cannot": _("Its runtime can not run this engine or command."),
    "here_gpu_type_mismatch": _("It has no card of type %(wanted)s."),
    "here_card_quarantined": _(
        "%(cards)s of its cards are in quarantine: memory of an ended task is held there."
    ),
    "here_cards_short": _("%(wanted)s free card(s) are needed, %(free)s are free."),
    "here_vram_short": _("%(wanted_size)s are needed on a card, %(free_size)s are free."),
    "here_vram_short_card": _(
        "%(wanted_size)s are needed on a card; card %(card)s is nearest: %(free_size)s free."
    ),
    "here_vram_unknown": _("The free memory of its cards is unknown."),
    "here_ports_exhausted": _("It has no free port left in its range."),
    "here_refused_there": _("It refused to start it before; it is asked again once it is started again."),
    "here_port_taken": _("Port %(port)s is taken there."),
    "here_commitment_full": _(
        "%(wanted_percent)s %% of a card is wanted, at most %(largest_percent)s %% is not promised yet. Lower"
        " gpu_memory_utilization or wait."
    ),
    "here_red_line": _("Its cards are out of bounds for this tenant now."),
    "here_node_busy": _("Its %(what)s is in use to %(percent)s %%, the limit is %(limit)s %%."),
    "here_node_load_unknown": _("How busy it is, is unknown."),
    "here_volume_not_there": _("%(path)s is outside the folders that it mounts from."),
    "here_inference_cap": _("%(count)s services of at most %(cap)s stand there, those that sleep included."),
    "here_foreign_memory": _(
        "%(wanted_size)s are needed on a card, %(free_size)s are free; processes outside of the platform hold"
        " %(foreign_size)s."
    ),
    "here_foreign_memory_named": _(
        "%(wanted_size)s are needed on a card, %(free_size)s are free; processes outside of the platform hold"
        " %(foreign_size)s, most of it %(process)s."
    ),
    "here_engine_memory": _(
        "The engine takes %(percent)s %% of the card at its start, which is %(wanted_size)s; %(free_size)s"
        " are free. Lower gpu_memory_utilization or wait."
    ),
    "here_fits_part": _("It would take this part now, but the other parts need places at the same time."),
    "here_gang_short": _("It has no room for as many of its parts as would have to stand there."),
    "here_gpu_type_offline": _("It has cards of type %(wanted)s, but is offline."),
    "here_room_kept": _("Room on its cards is kept for work that waits longer."),
    # what to do
    "try_join_node": _("Join a machine, or ask an operator to open one to this tenant."),
    "try_start_agent": _("Start the machine and its agent again, or join another one."),
    "try_uncordon": _("Ask an operator to put the closed node back into service."),
    "try_open_door": _("Open the way from the server to the door of the node; its page says what is wrong."),
    "try_other_engine": _("Choose an engine that a node has, or install the missing one there."),
    "try_other_card": _("Leave gpu_type empty to take any card, or name a type that a node has."),
    "try_fewer_cards": _(
        "Ask for fewer cards or set gpu_memory_utilization to share one, stop or let sleep what you do not"
        " need, or wait until cards are free."
    ),
    "try_less_memory": _(
        "Lower gpu_memory_utilization or the context length, take a smaller or quantised model, or spread it"
        " over more cards."
    ),
    "try_lower_promise": _(
        "Lower gpu_memory_utilization to what is left, or wait until something on the card ends."
    ),
    "try_free_cards": _(
        "Wait until those cards are empty, or ask an operator for cards that this tenant may use now."
    ),
    "try_less_load": _("Wait until the node is less busy, or ask an operator what keeps it so."),
    "try_fewer_services": _(
        "Stop services that you do not need, sleeping ones too, or ask an operator to raise the node's cap."
    ),
    "try_end_foreign": _(
        "Ask an operator to end the processes that hold the card's memory outside of the platform, or take"
        " less memory."
    ),
    "try_fewer_parts": _(
        "Ask for fewer stages or cards, or wait until there is room for all of them at once."
    ),
    "try_look_at_driver": _("Look at the cards' driver on the node: nvidia-smi there must list them."),
    "try_free_card": _("End the process that holds the card's memory; the card's page names it."),
    "try_other_port": _("Leave the host port empty, or name one that is free on the node."),
    "try_ask_operator": _("Ask a platform operator to resume the tenant."),
    "try_other_image": _("Check the image's name and tag, its registry and the pull credentials."),
    "try_free_disk": _("Make room on the node's disk, or lower its agent's disk_floor_mb."),
    "try_other_path": _(
        "Check the path: it must exist on the node, inside of the folders that its agent allows."
    ),
    "try_look_at_node": _("Look at the node: does its agent run, and what does its log say?"),
    "try_longer_start": _("Raise health_check.start_period_seconds; large models take minutes to load."),
    "try_read_log": _("Read the last lines of its log; they mostly name the cause."),
    "try_longer_run": _("Raise task.timeout_seconds and start it again."),
    "try_wait_for_loan": _("Wait until the loan of its card ends, or ask an operator to end it."),
    "try_wake": _("Wake it."),
    "try_start": _("Start it again."),
}
