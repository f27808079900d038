"""Two servers on PostgreSQL; the one that holds a loop's lease ends inside that loop (RECOV-05, OPS-06).

Every registered loop, at each point of its writing: before it, inside its transaction, after it. The other
one's next run comes within 5 s, what was to be done is done once, and a holder that was only held up and goes
on writes nothing any more.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlparse

import psutil
import psycopg
import pytest

from apps.core import ticks
from tests.apps.alerts.receiver import Receiver, receiver
from tests.postgres import running_cluster
from tests.stack import ROOT, clean_environment, until
from tests.steady import steady_clock_of

pytestmark = [pytest.mark.slow]

RESUME_S = 5.0
HOUR_MS = 3_600_000
BEGIN = "import sys, django; django.setup(); from tests.breaks.loops import main; main(sys.argv[1])"
SHORT = {
    "DJANGO_SETTINGS_MODULE": "heteroflow.settings.test",
    "WEBHOOK_TIMEOUT_S": "0.2",
    "WEBHOOK_RETRY_S": "0.5",
    "WEBHOOK_ALLOW_PRIVATE": "true",
    "REBUILD_DELAY_S": "0",
    "LOG_KEEP_BYTES": "1000",
    "DRAIN_AT_ONCE": "5",
}
# What each loop's work in `tests/breaks/loops.py` comes to, and how often, whoever did it.
MOVES = (
    "SELECT count(*) FROM workloads_event e JOIN workloads_taskgroup g ON g.id = e.group_id"
    " WHERE g.name = '{}' AND e.code = '{}'"
)
DONE = {
    "scheduling.place": (MOVES.format("placed", "placed"), 1),
    "recovery.sweep": (MOVES.format("rebuilt", "rebuild"), 1),
    "ops.watch": ("SELECT count(*) FROM alerts_alert WHERE code = 'card_lost'", 1),
    "alerts.deliver": ("SELECT count(*) FROM alerts_delivery WHERE body = '{}' AND NOT waiting", 1),
    "upkeep.drain": (MOVES.format("moved", "replacement_created"), 1),
    "fleet.doors": ("SELECT count(*) FROM fleet_liveness WHERE door_state = 'closed'", 1),
    "streams.tidy": ("SELECT count(*) FROM streams_logchunk", 1),
    "files.tidy": ("SELECT count(*) FROM files_filerequest", 0),
    "scaling.idle": (
        "SELECT sum(t.version) FROM workloads_task t JOIN workloads_taskgroup g ON g.id = t.group_id"
        " WHERE g.name = 'idles'",
        1,
    ),
    "usage.card_time": (
        "SELECT coalesce(sum(card_ms), 0) FROM usage_cardtime WHERE group_name = 'counted'",
        HOUR_MS,
    ),
    "usage.totals": (
        "SELECT coalesce(sum(prompt_tokens), 0) FROM usage_usagetotal WHERE model = 'counted'",
        2 * 7,  # by hour and by day
    ),
}


@dataclass
class Servers:
    """A database with work for every loop; one server's processes inside each loop, by the loop's name, and
    the other server's."""

    address: str
    family: "subprocess.Popen[str]"
    got: Receiver
    held: dict[str, int] = field(default_factory=dict)
    other: int = 0

    def read(self) -> tuple[str, int, str]:
        """The next line: a name, its process, its word."""
        assert self.family.stdout is not None
        said = self.family.stdout.readline()
        assert said, "all have ended"
        name, pid, word = said.rstrip("\n").split(" ", 2)
        return name, int(pid), word

    def await_all_there(self) -> None:
        while len(self.held) < len(ticks.REGISTRY) or not self.other:
            name, pid, word = self.read()
            if name == "other":
                self.other = pid
                continue
            assert word == "there", f"{name} {word}: WORLD of tests/breaks/loops.py gives it nothing to write"
            self.held[name] = pid

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.address, connect_timeout=5) as link:
            return link.execute(sql.replace("?", "%s"), values).fetchall()

    def messages(self) -> list[str]:
        """Ids of what arrived at the webhook."""
        return [headers["X-HeteroFlow-Delivery"] for headers, _ in self.got.got]

    def last_run(self, loop: str) -> float:
        """When its last run began that ended well, in epoch seconds; 0 before the first."""
        began = "SELECT extract(epoch FROM started_at)::float8 FROM core_tickrun"
        found = self.rows(f"{began} WHERE name = ? AND outcome = 'done'", loop)
        return float(found[0][0]) if found else 0.0

    def standing(self) -> str:
        runs = "SELECT name, started_at, duration_ms, outcome, detail FROM core_tickrun"
        leases = "SELECT name, holder, fence, expires_at, now() FROM core_lease"
        return "\n".join(map(str, ("", *self.rows(runs), *self.rows(leases))))

    def content(self) -> dict[str, list[Any]]:
        """Every row of every table."""
        query = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
        with psycopg.connect(self.address) as link:
            return {
                name: link.execute(f'SELECT t::text FROM "{name}" t ORDER BY 1').fetchall()
                for (name,) in link.execute(query).fetchall()
            }


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with running_cluster() as address:
        yield address


@contextmanager
def servers(cluster: str, point: str) -> Iterator[Servers]:
    """On a database of their own. One has come to the point of each loop; the other is about to begin."""
    name = f"at_{point}"
    with psycopg.connect(cluster, autocommit=True) as link:
        link.execute(f"CREATE DATABASE {name}")
    address = urlparse(cluster)._replace(path=f"/{name}").geturl()
    with receiver() as got:
        family = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", sys.executable, "-c", BEGIN, point],
            cwd=ROOT,
            env=clean_environment(TEST_DATABASE_URL=address, RECEIVER=got.url, **SHORT),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        those = Servers(address, family, got)
        try:
            those.await_all_there()
            yield those
        finally:
            with suppress(ProcessLookupError):  # all have ended
                os.killpg(family.pid, signal.SIGKILL)
            family.wait(10)


def await_all(those: Servers, moment: float) -> None:
    """The other server's run of every loop comes within 5 s of a moment, and all work is done."""
    with steady_clock_of(those) as clock:
        for name in ticks.REGISTRY:
            clock.within(
                RESUME_S,
                lambda name=name: those.last_run(name) > moment,
                lambda name=name: f"{name} runs by the other server: {those.standing()}",
            )
    until(lambda: not undone(those), lambda: f"all is done: {undone(those)}", 20)


def undone(those: Servers) -> dict[str, tuple[int, int]]:
    """Loops whose work was done too seldom or too often: found and wanted."""
    found = {name: int(those.rows(DONE[name][0])[0][0]) for name in ticks.REGISTRY}
    return {name: (number, DONE[name][1]) for name, number in found.items() if number != DONE[name][1]}


@pytest.mark.req("RECOV-05", "OPS-06")
@pytest.mark.parametrize("point", ["inside", "after"])
def test_a_holder_killed_inside_its_loop_is_followed_within_five_seconds(cluster: str, point: str) -> None:
    with servers(cluster, point) as those:
        os.kill(those.other, signal.SIGUSR1)
        await_all(those, time.time())
        again = time.time()
        until(lambda: all(those.last_run(name) > again for name in ticks.REGISTRY), "each has run again")
        assert undone(those) == {}, "nothing is done a second time"
        assert len(those.messages()) == len(set(those.messages()))


@pytest.mark.req("RECOV-05", "OPS-06")
def test_a_holder_that_was_held_up_writes_nothing_once_it_goes_on(cluster: str) -> None:
    """As when a machine sleeps: it is about to write what the other one has done since."""
    with servers(cluster, "before") as those:
        os.kill(those.other, signal.SIGUSR1)
        await_all(those, time.time())
        os.kill(those.other, signal.SIGTERM)
        until(lambda: not psutil.pid_exists(those.other), "the other server has ended its runs")
        before, told = those.content(), those.messages()
        for name, process in those.held.items():
            os.kill(process, signal.SIGCONT)
            assert those.read() == (name, process, "overtaken")
        assert those.family.wait(30) == 0
        assert those.content() == before
        assert those.messages() == told


def test_every_registered_loop_has_work_and_a_count_here() -> None:
    assert set(ticks.REGISTRY) - set(DONE) == set()
