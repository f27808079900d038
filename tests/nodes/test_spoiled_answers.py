"""A server that answers nonsense, or nothing, for as long as it likes: its nodes remove nothing (AGENT-09,
AGENT-14)."""

import pytest

from tests.breaks.page import assert_shown
from tests.fakes.switch import MODES
from tests.fakes.tiny_model import ANSWER
from tests.nodes.fleet import CARDS, Fleet
from tests.nodes.servers import BareStack, any_server
from tests.nodes.test_outages import pids_of
from tests.stack import until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("docker")]

# Of each node: an agent would act on two. Five minutes are sixty of a true length.
HEARTBEATS = 12


@pytest.mark.req("AGENT-09", "AGENT-14")
@any_server
def test_whatever_the_server_answers_what_runs_goes_on(fleet: Fleet) -> None:
    stack = fleet.stack
    assert isinstance(stack, BareStack)
    groups = {name: fleet.serve(f"on-{name}", kind=CARDS[name]) for name in ("two", "three")}
    tasks = {name: fleet.task(group) for name, group in groups.items()}

    def there() -> dict[str, object]:
        return {
            name: (fleet.machines[name].containers(task["id"]), pids_of(fleet.machines[name], task["id"]))
            for name, task in tasks.items()
        }

    before = there()
    for mode in MODES[1:]:
        enough = 3 if mode == "hang" else HEARTBEATS
        seen, stack.switch.mode = stack.switch.seen[mode], mode
        try:
            until(
                lambda mode=mode, most=seen + enough * len(CARDS): stack.switch.seen[mode] >= most,
                lambda mode=mode: f"{mode}: {stack.switch.seen}\n{fleet.told('two')}",
                90,
            )
            assert there() == before, mode
            for name in tasks:
                assert fleet.ask(f"on-{name}") == ANSWER
        finally:
            stack.switch.mode = "well"
    for name in tasks:
        until(lambda name=name: fleet.is_up(name), lambda name=name: fleet.told(name), 30)
        for words in ("what runs goes on", "the server answers again"):
            assert words in fleet.machines[name].log()
            assert_shown(words)
        now = fleet.task(groups[name])
        assert (now["status"], now["attempt"]) == ("running", tasks[name]["attempt"])
    assert there() == before
