"""Which gateways are dead, by proof and never by silence (SLEEP-06)."""

import os
import signal
import subprocess
from datetime import timedelta

import pytest

from apps.core.clock import utc_now
from apps.gateway.incarnation import is_dead, new_name
from apps.routing import gateways
from apps.routing.load import Load
from apps.usage.files import process_start
from tests.fakes.gateway import until

pytestmark = pytest.mark.req("SLEEP-06")


def name_of(pid: int, start: int) -> str:
    place, _, mark = new_name().rsplit(":", 2)
    return f"{place}:{pid}-{start}:{mark}"


def test_names_differ_and_ones_own_lives() -> None:
    assert new_name() != new_name() and len(new_name()) <= 200
    assert not is_dead(new_name())


async def test_a_process_that_stands_still_lives_until_it_is_killed() -> None:
    process = subprocess.Popen(["sleep", "600"])
    try:
        name = name_of(process.pid, process_start(process.pid) or 0)
        process.send_signal(signal.SIGSTOP)
        assert not is_dead(name)
    finally:
        process.kill()
    await until(lambda: is_dead(name))  # ended, and nobody has asked how
    process.wait()
    assert is_dead(name)


def test_a_successor_with_the_same_pid_is_another_one() -> None:
    assert is_dead(name_of(os.getpid(), 1))


def test_of_elsewhere_nothing_is_known() -> None:
    host, boot, space, process, mark = new_name().split(":")
    gone = process.partition("-")[0] + "-1"
    assert is_dead(":".join((host, boot, space, gone, mark)))
    for place in ((f"{host}x", boot, space), (host, "another", space), (host, boot, "1"), (host,)):
        assert not is_dead(":".join((*place, gone, mark)))


@pytest.mark.django_db
def test_what_the_dead_had_in_work_is_over_and_who_speaks_counts() -> None:
    now = utc_now()
    for name in ("dead", "lives"):
        gateways.say(name, Load(3, {"task-a": 1}, {"tg-a": 1}, {"tg-a": 5.0}), now - timedelta(seconds=9))
    gateways.end_dead(lambda name: name == "dead")
    words = {source.name: source for source in gateways.read()}
    assert words["dead"].left and words["dead"].load == Load(3, used={"tg-a": 5.0})
    assert not words["lives"].left and words["lives"].load.in_flight == {"task-a": 1}
    gateways.say("dead", Load(3, {"task-a": 1}), now)
    words = {source.name: source for source in gateways.read()}
    assert not words["dead"].left and words["dead"].load.in_flight == {"task-a": 1}
