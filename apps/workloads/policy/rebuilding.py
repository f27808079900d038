"""What becomes of a failed inference task: next template, another node, rebuild, or no more (RECOV-01, -03).

Pure: no Django, no clock. Codes stand for what went wrong; `services/mending.py` carries the answer out.
"""

from dataclasses import dataclass
from enum import StrEnum

from agent.contract.codes import Code

# Why a task stays failed until somebody starts it again: nothing that the platform may do would help.
GIVEN_UP = frozenset(
    {Code.REBUILDS_SPENT, Code.TEMPLATES_SPENT, Code.REFUSED_EVERYWHERE, Code.STAGE_GIVEN_UP}
)

# An engine that did not start by these may do better with another template of the chain.
TEMPLATE_FAULTS = frozenset(
    {
        Code.START_FAILED,
        Code.IMAGE_MISSING,
        Code.PULL_FAILED,
        Code.ENGINE_UNAVAILABLE,
        Code.CARDS_UNREACHABLE,
        Code.EXITED,
        Code.LOAD_TIMEOUT,
        Code.UNHEALTHY,
    }
)

# The same node would refuse the same again, as long as nobody changes something there.
NODE_FAULTS = frozenset(
    {
        Code.PATH_NOT_ALLOWED,
        Code.MODEL_NOT_FOUND_ON_NODE,
        Code.ENGINE_UNAVAILABLE,
        Code.RUNTIME_CANNOT,
        Code.IMAGE_MISSING,
        Code.CARDS_UNREACHABLE,
    }
)


class Step(StrEnum):
    NEXT_TEMPLATE = "next_template"
    NEXT_NODE = "next_node"
    REBUILD = "rebuild"
    GIVE_UP = "give_up"


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt. `code`: why it failed. `ran`: it was ready before. `rebuild`: the number of the next
    rebuild, None when they are spent. `template`: its place in a chain of `templates` behind the task's own.
    `elsewhere`: a node that has not refused it might take it."""

    code: str
    ran: bool
    rebuild: int | None
    template: int
    templates: int
    elsewhere: bool


@dataclass(frozen=True, slots=True)
class Mend:
    """What to do; `code` says it to people. `template`: the place in the chain from now on."""

    step: Step
    code: Code
    template: int


def decide(failure: Failure) -> Mend:
    """The next template and another node cost no rebuild, for each is tried once only. The last template
    failed: the next rebuild begins with the first one again."""
    at_start = not failure.ran
    last = failure.template >= failure.templates
    by_template = at_start and failure.code in TEMPLATE_FAULTS
    if by_template and not last:
        return Mend(Step.NEXT_TEMPLATE, Code.TEMPLATE_NEXT, failure.template + 1)
    if at_start and failure.code in NODE_FAULTS and not (by_template and failure.templates):
        if failure.elsewhere:
            return Mend(Step.NEXT_NODE, Code.NEXT_NODE, failure.template)
        return Mend(Step.GIVE_UP, Code.REFUSED_EVERYWHERE, failure.template)
    if failure.rebuild is None:
        spent = Code.TEMPLATES_SPENT if by_template and failure.templates else Code.REBUILDS_SPENT
        return Mend(Step.GIVE_UP, spent, failure.template)
    template = 0 if by_template and last else failure.template
    return Mend(Step.REBUILD, Code.REBUILD, template)
