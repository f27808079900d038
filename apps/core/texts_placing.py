"""Sentences about placing: why nodes do not take a task, with numbers and the way out (SCHED-10, SVC-14).
A part of `texts.py`, which owns how codes are said."""

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

FULLER = {
    "vram_short": ("short_mb", "vram_short_nearest"),
    "here_vram_short": ("card", "here_vram_short_card"),
    "foreign_memory": ("process", "foreign_memory_named"),
    "would_start": ("cards", "would_start_cards"),
    "here_foreign_memory": ("process", "here_foreign_memory_named"),
}
"""(a value that is not always there, the sentence that is said where it is) by code."""

WHAT = frozenset({"node_busy", "here_node_busy"})
"""Their `what` is a word of ours, said as `what_WORD`."""

PLACING: dict[str, Promise] = {
    # of all nodes
    "insufficient_resources": _("InsufficientResources: none of %(nodes)s nodes can take it now."),
    "no_node": _("No node has joined yet that this tenant may use; join one, then it is placed by itself."),
    # of some nodes
    "node_not_allowed": _("%(nodes)s node(s): not open to this tenant."),
    "node_offline": _("%(nodes)s node(s): offline."),
    "door_closed": _("%(nodes)s node(s): the server can not reach their door."),
    "node_cordoned": _("%(nodes)s node(s): closed for new work."),
    "runtime_cannot": _("%(nodes)s node(s): their runtime can not run this engine or command."),
    "gpu_type_mismatch": _("%(nodes)s node(s): no card of type %(wanted)s."),
    "cards_short": _("%(nodes)s node(s): %(wanted)s free card(s) needed, at most %(free)s free."),
    "vram_short": _("%(nodes)s node(s): %(free_size)s free on a card, %(wanted_size)s needed."),
    "vram_short_nearest": _(
        "%(nodes)s node(s): %(free_size)s free on a card, %(wanted_size)s needed; nearest: %(node)s card"
        " %(card)s, short by %(short_size)s."
    ),
    "vram_unknown": _("%(nodes)s node(s): the free memory of the cards is unknown."),
    "ports_exhausted": _("%(nodes)s node(s): no free port left in the node's range."),
    "port_taken": _("%(nodes)s node(s): port %(port)s is taken there."),
    "card_quarantined": _(
        "%(nodes)s node(s): %(cards)s card(s) in quarantine, where memory of an ended task is still held."
    ),
    "commitment_full": _(
        "%(nodes)s node(s): %(wanted_percent)s %% of a card is wanted, at most %(largest_percent)s %% is not"
        " promised yet. Lower gpu_memory_utilization or wait."
    ),
    "red_line": _("%(nodes)s node(s): their cards are out of bounds for this tenant now."),
    "node_busy": _("%(nodes)s node(s): %(what)s in use to %(percent)s %%, the limit is %(limit)s %%."),
    "node_load_unknown": _("%(nodes)s node(s): how busy they are is unknown."),
    "volume_not_there": _("%(nodes)s node(s): %(path)s is outside the folders that they mount from."),
    "inference_cap": _(
        "%(nodes)s node(s): %(count)s services of at most %(cap)s stand there, those that sleep included."
    ),
    "foreign_memory": _(
        "%(nodes)s node(s): %(wanted_size)s needed on a card, %(free_size)s free; processes outside of the"
        " platform hold %(foreign_size)s."
    ),
    "foreign_memory_named": _(
        "%(nodes)s node(s): %(wanted_size)s needed on a card, %(free_size)s free; processes outside of the"
        " platform hold %(foreign_size)s, most of it %(process)s."
    ),
    "engine_memory": _(
        "%(nodes)s node(s): the engine takes %(percent)s %% of the card at its start, which is"
        " %(wanted_size)s; %(free_size)s are free. Lower gpu_memory_utilization or wait."
    ),
    # of the task as a whole
    "gang_short": _(
        "All of its %(wanted)s parts are placed together or none; now %(found)s of them would find a place."
    ),
    "gpu_type_offline": _(
        "All cards of type %(wanted)s are on %(nodes)s node(s) that are offline; it waits for them."
    ),
    "preempted": _("Work of a higher priority needed its place; it waits for another one."),
    "room_kept": _("Room was made for it and is kept until %(until)s; it starts when that is empty."),
    # what can never be, said when a service is created
    "promise_too_large": _(
        "%(field)s is %(value)s, but at most %(max)s %% of a card can be promised: the rest is kept free."
    ),
    "memory_nowhere": _(
        "It needs %(wanted_size)s on a card, but no card that this tenant may use has more than %(free_size)s"
        " for it, were it empty. Spread it over more cards, or change gpu_type or gpu_memory_utilization."
    ),
    "model_nowhere": _(
        "By the size of its files it needs about %(wanted_size)s on a card, but no card that this tenant may"
        " use has more than %(free_size)s for it, were it empty. Take a smaller or quantised model, spread it"
        " over more cards, change gpu_type or gpu_memory_utilization, or send task.estimated_gpu_memory_mb if"
        " you know better."
    ),
    "cards_nowhere": _(
        "%(field)s is %(value)s, but no node that this tenant may use has more than %(largest)s fitting cards"
        " of one model."
    ),
    "gpu_type_nowhere": _(
        "%(field)s is %(value)s, but no node that this tenant may use has such a card; a pipeline takes none"
        " of another type."
    ),
    # what a creation would do
    "would_start": _("It would start at once on node %(node)s."),
    "would_start_cards": _("It would start at once on node %(node)s, card %(cards)s."),
    "would_borrow": _(
        "It would start at once on node %(node)s, card %(cards)s, borrowed from services that sleep: it gives"
        " way when one of them is woken or the loan is over."
    ),
    "would_preempt": _(
        "%(tasks)s task(s) of a lower priority would give way to it on node %(node)s, card %(cards)s; it"
        " would start when they are gone."
    ),
    "would_wait_for_room": _(
        "Room would be kept for it on node %(node)s, card %(cards)s, until all of it can start."
    ),
    "would_wait": _("It would wait for a place."),
    # how well a share of a card is walled off
    "qos_gold": _("QoS gold: its share is walled off by the card (MIG)."),
    "qos_silver": _("QoS silver: its share is walled off by the driver (MPS)."),
    "qos_bronze": _("QoS bronze: its share is kept by its engine's own limit."),
    # what of a node is busy
    "what_cpu": _("processor"),
    "what_memory": _("memory"),
    "what_disk": _("disk"),
}
