"""Two servers' loops on one database, for tests of what happens when one ends inside one of them.

Makes work for each loop in an empty database (TEST_DATABASE_URL). Then one process for each loop runs that
loop once, up to a point of its first transaction that writes. `before` it the process stands still (SIGSTOP);
`inside` it, and `after` its end, it is killed. One more process, the other server, runs all loops again and
again from SIGUSR1 to SIGTERM. Each says its name, its process and a word on a line: `there` at the point,
`ready` to begin, and once it was continued what became of its run. All are forks, since a start costs more
than what is tried here.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from django.core.management import call_command
from django.db import connection

import heteroflow.celery  # noqa: F401 - hints go through the configured Celery application
from agent.contract.codes import Code
from agent.contract.states import Desired, FileKind, Phase, State
from apps.alerts.models import Delivery, Webhook
from apps.core import leases, ticks
from apps.core.clock import utc_now
from apps.files.models import FileRequest
from apps.fleet.models import Duty
from apps.streams.models import LogChunk
from apps.usage.models import UsageRecord
from apps.workloads.models import Task
from tests import factories
from tests.apps.upkeep.work import serving

PERIOD_S = 0.2
OWN = "NVIDIA L20"
ROOMY = "RTX 4090"


# --- work for each loop, by its name; `tests/faults/test_killed_holders.py` counts what was done -----------


def wait_for_a_place(now: datetime) -> None:
    factories.make_task(named("placed", now), gpu_required=1, gpu_type=OWN, now=now)


def wait_for_a_rebuild(now: datetime) -> None:
    long_ago = now - timedelta(hours=1)
    group = named("rebuilt", long_ago, state=State.FAILED)
    # Of another kind than what waits for a place: it is older, and would take that one's only card.
    factories.make_task(group, state=State.FAILED, gpu_required=1, gpu_type=ROOMY, now=long_ago)


def lose_a_card(now: datetime) -> None:
    factories.make_node("lost-card", cards=[{"present": False}], **seen(now), cordoned=True)


def send_a_message(now: datetime) -> None:
    address = os.environ["RECEIVER"]
    webhook = Webhook.objects.create(name="told", url=address, secret="s" * 40, created_at=now)
    Delivery.objects.create(webhook=webhook, event="opened", body="{}", created_at=now)


def empty_a_node(now: datetime) -> None:
    node = factories.make_node("emptied", **seen(now), duty=Duty.DRAIN)
    serving(node, named("moved", now, state=State.RUNNING), gpu_required=1, gpu_type=ROOMY)


def dial_a_door(now: datetime) -> None:
    nowhere = {"kind": "door", "host": "127.0.0.1", "port": 9, "fingerprint": "0" * 64}
    factories.make_node("behind-a-door", dial=nowhere, **seen(now), cordoned=True)


def keep_a_long_log(now: datetime) -> None:
    task = factories.make_task(named("talks", now, state=State.COMPLETED), state=State.COMPLETED, now=now)
    for start in (0, 1000, 2000):
        LogChunk.objects.create(
            task=task, attempt=1, start=start, end=start + 1000, file=f"logs/{start}", created_at=now
        )


def keep_an_old_file(now: datetime) -> None:
    task = factories.make_task(named("asked", now, state=State.COMPLETED), state=State.COMPLETED, now=now)
    FileRequest.objects.create(
        task=task,
        created_by=factories.make_operator(),
        kind=FileKind.LIST,
        path="/data",
        created_at=now,
        touched_at=now,
        expires_at=now - timedelta(hours=1),
    )


def let_one_idle(now: datetime) -> None:
    """It has left the routes, and no gateway has a call of it."""
    node = factories.make_node("sleeps", **seen(now), cordoned=True)
    idle = {"desired": Desired.SLEEP, "reason_code": Code.IDLE, "deadline_at": now + timedelta(hours=1)}
    task = serving(node, named("idles", now, state=State.DRAINING), state=State.DRAINING, **idle)
    Task.objects.filter(pk=task.pk).update(phase=Phase.READY)


def hold_a_card(now: datetime) -> None:
    """For an hour, until now."""
    node = factories.make_node("held", **seen(now), cordoned=True)
    group = named("counted", now, state=State.COMPLETED)
    task = factories.make_task(group, state=State.COMPLETED, gpu_required=1, attempt=1, now=now)
    factories.make_claim(task, node, incarnation="run-1", now=now - timedelta(hours=1), released_at=now)


def add_up_a_record(now: datetime) -> None:
    made = {"path": "/v1/completions", "ending": "completed", "http_status": 200, "prompt_tokens": 7}
    UsageRecord.objects.create(request_id="counted-once", started_at=now, model="counted", **made)


WORLD: dict[str, Callable[[datetime], None]] = {
    "scheduling.place": wait_for_a_place,
    "recovery.sweep": wait_for_a_rebuild,
    "ops.watch": lose_a_card,
    "alerts.deliver": send_a_message,
    "upkeep.drain": empty_a_node,
    "fleet.doors": dial_a_door,
    "streams.tidy": keep_a_long_log,
    "files.tidy": keep_an_old_file,
    "scaling.idle": let_one_idle,
    "usage.card_time": hold_a_card,
    "usage.totals": add_up_a_record,
}


def seen(now: datetime) -> dict[str, Any]:
    return {"now": now, "last_seen_at": now + timedelta(hours=1)}


def named(name: str, now: datetime, **fields: Any) -> Any:
    return factories.make_group(name=name, now=now, **fields)


def make_world() -> None:
    """A fleet with room, and something to do for each loop."""
    call_command("migrate", verbosity=0)
    now = utc_now()
    factories.make_node("roomy", cards=4, **seen(now))
    factories.make_node("own", cards=1, card_model=OWN, **seen(now))  # no two loops want the same place
    for make in WORLD.values():
        make(now)


# --- running them ----------------------------------------------------------------------------------


def other_server() -> None:
    """Each loop in a thread of its own, as workers run them beside each other."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})

    def repeat(name: str) -> None:
        while not over.wait(PERIOD_S):
            ticks.run_tick(name)

    threads = [threading.Thread(target=repeat, args=(name,)) for name in ticks.REGISTRY]
    say("other", "ready")
    signal.sigwait({signal.SIGUSR1})
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def stop_at(name: str, point: str) -> None:
    """Run one loop up to a point of its first transaction that writes."""
    whole, been = leases.Held.transaction, False

    @contextmanager
    def stopping(lease: leases.Held) -> Iterator[None]:
        writes = False

        def note(execute: Any, sql: str, *more: Any) -> Any:
            nonlocal writes
            writes = writes or sql.lstrip().startswith(("INSERT", "UPDATE", "DELETE"))
            return execute(sql, *more)

        if point == "before":
            arrive(signal.SIGSTOP)
        with whole(lease):
            with connection.execute_wrapper(note):
                yield
            if point == "inside" and writes:
                arrive(signal.SIGKILL)
        if point == "after" and writes:
            arrive(signal.SIGKILL)

    def arrive(fate: signal.Signals) -> None:
        nonlocal been
        if not been:
            been = True
            say(name, "there")
            os.kill(os.getpid(), fate)

    leases.Held.transaction = stopping
    done = ticks.run_tick(name)
    say(name, f"done {done}" if done is not None else "overtaken")


def say(name: str, word: str) -> None:
    os.write(1, f"{name} {os.getpid()} {word}\n".encode())


def fork(act: Callable[..., None], *args: str) -> int:
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        act(*args)
        connection.close()
        os._exit(0)
    return pid


def main(point: str) -> None:
    """Call after django.setup()."""
    make_world()
    connection.close()
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    children = {fork(other_server), *(fork(stop_at, name, point) for name in ticks.REGISTRY)}
    while children:
        children.discard(os.wait()[0])
