"""Sentences about faults and what is done about them; a part of `texts.py`, which owns the rules."""

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

TELLS_WHY = (
    "template_next",
    "templates_spent",
    "next_node",
    "refused_everywhere",
    "load_timeout",
    "wake_failed",
    "sleep_call_failed",
)
"""Their `why` is the code of another reason, whose values stand beside it as `why_NAME`."""

RECOVERY: dict[str, Promise] = {
    "run_timeout": _("It ran for %(after_s)s s, which is all that its timeout allows; it was stopped."),
    "retry": _("Started again after its failure, retry %(retry)s of %(max)s."),
    "template_next": _(
        "Its engine did not start with template %(from)s; template %(to)s is tried. What was wrong: %(why)s"
    ),
    "templates_spent": _(
        "None of its %(templates)s engine template(s) started; the last one failed with: %(why)s"
    ),
    "evictions_capped": _(
        "Its node or card is lost, but %(max)s tasks were taken off within a minute already; it follows when"
        " the minute is over."
    ),
    "rebuild": _("Rebuilt, attempt %(rebuild)s of %(max)s."),
    "rebuilds_spent": _("Given up after %(max)s rebuilds; the last error stands beside it."),
    "next_node": _("Node %(node)s refused to start it; another node is tried. What it said: %(why)s"),
    "refused_there": _("%(nodes)s node(s): refused to start it before."),
    "stage_lost": _("Stage %(rank)s of its pipeline has ended, so that all stages start again together."),
    "stage_given_up": _("Stage %(rank)s of its pipeline can not run, so that none of them does."),
    "refused_everywhere": _(
        "Every node that it may use now refused to start it. Mend what the last one said, then start it"
        " again: %(why)s"
    ),
    # the fault timeline: what was done at once, and how a fault ended
    "fault_moved": _("Moved to another place."),
    "fault_open": _("not over"),
    "fault_serving": _("serves again"),
    "fault_failed_again": _("failed again"),
    "fault_ended": _("ended"),
    # alerts
    "all_nodes_silent": _(
        "All %(nodes)s nodes are silent at once: the fault may be here, so nothing is moved meanwhile."
    ),
    "evictions_held_back": _(
        "%(tasks)s task(s) of lost nodes or cards wait: no more than %(max)s are taken off within a minute."
    ),
}
