"""Several schedulers by mistake at once on one database, killed and paused at any moment.

`rounds` times: the fleet changes a little, then so many schedulers decide on what they read and commit it,
each with a lease of its own, or all with the one that they take from each other. Some are killed, some stand
still for a while. What is in the database then must be possible (`check`). They are forks, since a start
costs more than what is tried here. Prints what happened as one line of JSON; ends with an AssertionError
otherwise.
"""

import json
import os
import random
import signal
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models import F, Q
from msgspec.structs import replace

from agent.contract.states import Desired, Parallelism, Phase, State, TaskType
from apps.core import hints, leases, ticks
from apps.fleet.models import Card, Node, Port
from apps.scheduling import loop
from apps.scheduling.policy.snapshot import Snapshot
from apps.tenants import redline
from apps.tenants.models import SharedGroup
from apps.workloads.models import CardClaim, Claim, Event, Loan, Reservation, Task
from apps.workloads.policy.moves import ENDED, RUNS_ON_NODE
from apps.workloads.services.ending import release
from tests import factories

TRIED = ("killed", "clashed", "shared cards", "borrowed cards", "preempted", "gangs placed")
WAITING_MAX = 10
ROUND_S = 200
PATIENCE_S = 60.0
ENDLESS = timedelta(days=3650)

ENDED_WELL, FAILED, OVERTAKEN, CLASHED, KILLED = range(5)
ENDS = {ENDED_WELL: "ended", OVERTAKEN: "overtaken", CLASHED: "clashed", KILLED: "killed"}


class Fleet:
    """Four machines and four tenants, two of which share cards at a time."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now: datetime = factories.NOW
        self.told: Counter[str] = Counter()
        self.tenants = [factories.make_tenant() for _ in range(4)]
        self.people = {tenant.pk: factories.make_member(tenant) for tenant in self.tenants}
        self.shared = SharedGroup.objects.create(name="shared")
        seen = {"now": self.now + ENDLESS, "last_seen_at": self.now + ENDLESS}
        for cards, ipc in ((1, None), (2, None), (2, False), (4, True)):
            factories.make_node(cards=cards, host_ipc=ipc, inference_cap=4, **seen)

    # --- what goes on between two rounds: agents and people

    def change(self) -> None:
        """Some of what was placed runs, sleeps, wakes or ends; what was told to leave is gone, mostly; more
        comes."""
        self.now += timedelta(seconds=ROUND_S)
        self.shared.tenants.set(self.chance.sample(self.tenants, 2))
        for claim in Claim.objects.select_related("task__group").filter(released_at__isnull=True):
            self._go_on(claim, claim.task)
        for task in Task.objects.filter(state=State.PENDING).order_by("pk")[WAITING_MAX:]:
            Task.objects.filter(group=task.group_id).update(state=State.STOPPED, desired=Desired.STOP)
        for _ in range(self.chance.randint(2, 6)):
            self._arrive()

    def _go_on(self, claim: Claim, task: Task) -> None:
        if claim.attempt != task.attempt or task.state in (State.PENDING, *ENDED):
            if self.chance.random() < 0.7:
                release(claim, now=self.now)
        elif task.state == State.SCHEDULING and claim.incarnation == "":
            Claim.objects.filter(pk=claim.pk).update(incarnation="run-1", claimed_at=self.now)
            _put(task, State.RUNNING, phase=Phase.READY)
        elif task.state == State.SLEEPING and self.chance.random() < 0.3:
            lent = Loan.objects.filter(card__claim=claim, ended_at__isnull=True).exists()
            _put(task, State.SLEEPING if lent else State.RUNNING, desired=Desired.RUN)
        elif self._may_sleep(task) and self.chance.random() < 0.3:
            _put(task, State.SLEEPING, desired=Desired.SLEEP)
        elif self.chance.random() < 0.3:
            Task.objects.filter(group=task.group_id).update(state=State.STOPPED, desired=Desired.STOP)

    @staticmethod
    def _may_sleep(task: Task) -> bool:
        alone = task.group.parallelism != Parallelism.PIPELINE_PARALLEL
        return alone and task.group.task_type == TaskType.INFERENCE

    def _arrive(self) -> None:
        tenant = self.chance.choice(self.tenants)
        kind: dict[str, Any] = self.chance.choice(
            [
                {"gpu_memory_utilization": 30},
                {"gpu_memory_utilization": 45},
                {},
                {"parallelism": Parallelism.TENSOR_PARALLEL},
                {"parallelism": Parallelism.PIPELINE_PARALLEL, "world_size": 2},
                {"task_type": TaskType.TRAINING},
            ]
        )
        group = factories.make_group(
            tenant,
            self.people[tenant.pk],
            priority=self.chance.randint(0, 3),
            preemptible=self.chance.random() < 0.6,
            now=self.now,
            **kind,
        )
        cards = 2 if group.parallelism == Parallelism.TENSOR_PARALLEL else 1
        for _ in range(2 if group.parallelism == Parallelism.PIPELINE_PARALLEL else 1):
            factories.make_task(
                group, gpu_required=cards, ports=[{"container_port": 8000}], engine="vllm", now=self.now
            )

    # --- one round

    def run(self, many: int) -> None:
        """So many schedulers at once, some killed, some paused."""
        alone = self.chance.random() < 0.5
        self.told["with one lease" if alone else "with leases of their own"] += 1
        connection.close()
        children = [self._fork(number, alone) for number in range(many)]
        fates = sorted(
            (self.chance.random() * 0.2, self.chance.choice([signal.SIGKILL, signal.SIGSTOP]), pid)
            for pid in children
            if self.chance.random() < 0.5
        )
        stopped, began = [], time.monotonic()
        for at, fate, pid in fates:
            time.sleep(max(0.0, began + at - time.monotonic()))
            os.kill(pid, fate)
            stopped += [pid] if fate == signal.SIGSTOP else []
        time.sleep(0.05)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        self._await(children)

    def _fork(self, number: int, alone: bool) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = FAILED
        see = partial(_part_of, loop.load_snapshot, random.Random(f"{self.now} {number}"))
        loop.load_snapshot = see
        try:
            done = self._schedule(f"mistake-{number}", alone)
            code = CLASHED if done and done.get("clashed") else ENDED_WELL
        except leases.LeaseLost:
            code = OVERTAKEN
        except BaseException:
            traceback.print_exc()
        os._exit(code)

    def _schedule(self, name: str, alone: bool) -> dict[str, Any] | None:
        if alone:
            return ticks.run_tick("scheduling.place", self.now)
        lease = leases.acquire(name, f"{name}-{os.getpid()}", 3600)
        if lease is None:  # its last holder was killed
            leases.Lease.objects.filter(name=name).update(expires_at=None)
            lease = leases.acquire(name, f"{name}-{os.getpid()}", 3600)
        assert lease is not None
        done = loop.place(lease, self.now)
        lease.release()
        return done

    def _await(self, children: list[int]) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        left = set(children)
        while left:
            assert time.monotonic() < give_up_at, f"{len(left)} schedulers wait for each other"
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                time.sleep(0.005)
                continue
            left.discard(pid)
            code = KILLED if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            assert code != FAILED, "a scheduler failed; see above"
            self.told[ENDS[code]] += 1

    def misses(self) -> list[str]:
        """What did not happen yet, by chance, so that it was not tried."""
        return [kind for kind in TRIED if not self.told[kind]]

    # --- what must hold

    def check(self) -> None:
        """Raises AssertionError for what may not be."""
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            self._check_tasks()
            self._check_cards()
            self._check_nodes()
            self._check_preemptions()

    def _check_tasks(self) -> None:
        live = Claim.objects.filter(released_at__isnull=True, attempt=F("task__attempt"))
        held = Counter(live.values_list("task_id", flat=True))
        for task in Task.objects.select_related("group").filter(state=State.SCHEDULING):
            assert held[task.pk] == 1, f"{task} is placed {held[task.pk]} times"
            claim = live.get(task=task)
            assert claim.cards.count() == task.gpu_required and claim.node_id == task.node_id
            ports = Port.objects.filter(owner=task.public_id, attempt=task.attempt).count()
            assert ports == _ports_of(task), f"{task} has {ports} ports"
            self.told["placed"] += claim.created_at == self.now
        gangs: dict[int, set[str]] = defaultdict(set)
        staged = Task.objects.filter(group__parallelism=Parallelism.PIPELINE_PARALLEL)
        for group, state in staged.values_list("group_id", "state"):
            gangs[group].add(state)
        assert all(len(states) == 1 for states in gangs.values()), f"parts of gangs: {gangs}"
        self.told["gangs placed"] += sum(states == {State.SCHEDULING} for states in gangs.values())
        events = Counter(Event.objects.filter(code="placed").values_list("task_id", "attempt"))
        assert set(events.values()) <= {1}, "an attempt was placed twice"
        assert Claim.objects.count() == len(events), "as many claims as placements"

    def _check_cards(self) -> None:
        shared = redline.sharing()
        lent = set(Loan.objects.filter(ended_at__isnull=True).values_list("borrower_id", "card__card_id"))
        rows: dict[int, list[CardClaim]] = defaultdict(list)
        live = CardClaim.objects.filter(claim__released_at__isnull=True)
        for share in live.select_related("claim__task__group", "card"):
            rows[share.card_id].append(share)
        for card, shares in rows.items():
            own = [share for share in shares if (share.claim_id, card) not in lent]
            borrowers = len(shares) - len(own)
            assert borrowers <= 1, "one borrower a card"
            alone = [share for share in own if share.percent is None]
            assert not alone or len(own) == 1, "what has a card alone has it alone"
            promised = sum(share.percent or 0 for share in own)
            assert promised <= 100 - round(settings.VRAM_RESERVE_RATIO * 100), f"{promised} % promised"
            self._check_company([(s.claim, s.claim.task.group.tenant_id) for s in shares], shared)
            self.told["shared cards"] += len(own) > 1
            self.told["borrowed cards"] += borrowers
        for loan in Loan.objects.filter(ended_at__isnull=True).select_related(
            "card__claim__task", "borrower"
        ):
            assert loan.card.claim.task.state not in RUNS_ON_NODE, "no lender is awake"
            assert loan.card.claim.released_at is None and loan.borrower.released_at is None

    def _check_nodes(self) -> None:
        shared = redline.sharing()
        for node in Node.objects.all():
            live = Claim.objects.filter(node=node, released_at__isnull=True).select_related("task__group")
            claims = list(live)
            count = sum(claim.task.group.task_type == TaskType.INFERENCE for claim in claims)
            assert count <= (node.inference_cap or 0), f"{count} inference containers on {node}"
            wide = [claim for claim in claims if _is_host_wide(claim.task, node)]
            for claim in wide:
                for other in claims:
                    pair = [(one, one.task.group.tenant_id) for one in (claim, other)]
                    self._check_company(pair, shared)
        ports = list(Port.objects.values_list("node_id", "number"))
        assert len(ports) == len(set(ports))

    def _check_company(self, those: list[tuple[Claim, int]], shared: dict[int, frozenset[int]]) -> None:
        """Who came in this round shares with all that are there."""
        for claim, tenant in those:
            if claim.created_at == self.now:
                strangers = {other for _, other in those} - {tenant} - shared.get(tenant, frozenset())
                assert not strangers, f"{claim} stands beside tenants that it may not meet"

    def _check_preemptions(self) -> None:
        pause = timedelta(seconds=settings.PREEMPTION_PAUSE_S)
        last: dict[int, datetime] = {}
        for event in Event.objects.filter(code="preempted").order_by("at", "pk"):
            assert event.task_id is not None
            before = last.get(event.task_id)
            assert before is None or event.at >= before + pause, "evicted twice within the pause"
            last[event.task_id] = event.at
        self.told["preempted"] = Event.objects.filter(code="preempted").count()
        kept: dict[int, list[Reservation]] = defaultdict(list)
        for row in Reservation.objects.filter(until__gt=self.now, task__state=State.PENDING):
            for card in row.cards.all():
                kept[card.pk].append(row)
        for card_id, rows in kept.items():
            alone = any(row.percent is None for row in rows)
            assert len(rows) == 1 or not alone, f"card {Card.objects.get(pk=card_id)} is kept for several"
            late = CardClaim.objects.filter(
                Q(claim__created_at=self.now), card=card_id, claim__released_at__isnull=True
            )
            since = max(row.created_at for row in rows)
            assert since == self.now or not (alone and late.exists()), "kept room was given away"


def _is_host_wide(task: Task, node: Node) -> bool:
    several = task.group.task_type == TaskType.INFERENCE and task.gpu_required > 1
    return task.group.parallelism == Parallelism.PIPELINE_PARALLEL or (several and node.host_ipc is not False)


def _ports_of(task: Task) -> int:
    """A pipeline's head has the one where its stages meet besides, they have none."""
    if task.group.parallelism != Parallelism.PIPELINE_PARALLEL:
        return 1
    return 0 if task.rank else 2


def _part_of(
    read: Callable[[datetime], Snapshot | None], chance: random.Random, now: datetime
) -> Snapshot | None:
    """What one scheduler saw a while ago, and not of all that waits: equal views would choose equally."""
    seen = read(now)
    if seen is None:
        return None
    time.sleep(chance.random() * 0.1)
    groups = {task.group_id for task in seen.tasks}
    mine = {group for group in sorted(groups) if chance.random() < 0.5}
    return replace(seen, tasks=tuple(task for task in seen.tasks if task.group_id in mine))


def _put(task: Task, state: State, **fields: Any) -> None:
    Task.objects.filter(pk=task.pk).update(state=state, version=F("version") + 1, **fields)


def main(rounds: int, many: int, seed: int) -> None:
    """Call after django.setup(), with an empty PostgreSQL database."""
    hints._put = lambda *_: None  # nobody listens
    settings.COMMIT_SLICE, settings.TICK_LEASE_TTL_S = 3, 0.05
    call_command("migrate", verbosity=0)
    fleet = Fleet(random.Random(seed))
    while fleet.told["rounds"] < rounds or (fleet.misses() and fleet.told["rounds"] < 3 * rounds):
        fleet.change()
        fleet.run(many)
        fleet.check()
        fleet.told["rounds"] += 1
    assert not fleet.misses(), f"never tried: {fleet.misses()}"
    print(json.dumps(fleet.told), flush=True)
