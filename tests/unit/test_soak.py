"""What `make soak` complains of: failed calls, what grew or was replaced. Its minutes are not run here."""

from collections import Counter

import pytest

from bench.soak.__main__ import GROWTH_FILES, GROWTH_MB, failures, grown
from bench.soak.faults import AFTER_S, Fault, Faults
from bench.soak.growth import Held, _name
from bench.soak.traffic import Seen

pytestmark = pytest.mark.req("OPS-03")
FIRST = Held({"wsgi-1": 7}, {"wsgi-1": 100.0}, {"wsgi-1": 50}, {})


def test_nothing_is_said_of_a_process_that_stays_as_it_is() -> None:
    assert grown(FIRST, FIRST) == []
    within = Held({"wsgi-1": 7}, {"wsgi-1": 100.0 + GROWTH_MB}, {"wsgi-1": 50 + GROWTH_FILES}, {})
    assert grown(FIRST, within) == []


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (Held({"wsgi-1": 7}, {"wsgi-1": 101.0 + GROWTH_MB}, {"wsgi-1": 50}, {}), "100 MiB after"),
        (Held({"wsgi-1": 7}, {"wsgi-1": 100.0}, {"wsgi-1": 51 + GROWTH_FILES}, {}), "50 descriptors after"),
        (Held({"wsgi-1": 8}, {"wsgi-1": 100.0}, {"wsgi-1": 50}, {}), "another process"),
        (Held({}, {}, {}, {}), "gone"),
    ],
    ids=["memory", "descriptors", "replaced", "gone"],
)
def test_growth_and_replaced_processes_are_told(last: Held, said: str) -> None:
    (sentence,) = grown(FIRST, last)
    assert sentence.startswith("wsgi-1: ")
    assert said in sentence


def test_files_of_postgresql_are_no_leak_of_ours() -> None:
    before = Held({"postgres-1": 1}, {"postgres-1": 90.0}, {"postgres-1": 100}, {})
    assert grown(before, Held({"postgres-1": 1}, {"postgres-1": 90.0}, {"postgres-1": 900}, {})) == []


def test_every_failed_call_is_named_by_its_kind() -> None:
    seen = {"plain": Seen([0.1, 0.2], Counter({"503": 1})), "log": Seen([1.0], Counter())}
    assert failures(seen) == {"plain: 503": 1}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("python -m celery -A heteroflow worker -n scheduler-1@%h -Q scheduling", "scheduler"),
        ("python -m celery -A heteroflow worker -n worker-1@%h -Q ticks,work", "worker"),
        ("python -m granian --interface wsgi", "granian"),
        ("/usr/lib/postgresql/15/bin/postgres -D x", "postgres"),
    ],
)
def test_processes_are_named_by_what_they_do(words: str, name: str) -> None:
    assert _name(words.split()) == name


def test_what_was_killed_may_be_another_process_and_nothing_else_may() -> None:
    first = Held(
        {"agent-1": 7, "wsgi-1": 8}, {"agent-1": 1.0, "wsgi-1": 1.0}, {"agent-1": 1, "wsgi-1": 1}, {}
    )
    last = Held({"agent-1": 9, "wsgi-1": 8}, {"agent-1": 1.0, "wsgi-1": 1.0}, {"agent-1": 1, "wsgi-1": 1}, {})
    assert grown(first, last, {"agent"}) == []
    assert grown(first, last, {"worker"}) == ["agent-1: another process than in the first minute"]


@pytest.mark.parametrize(
    ("fault", "began", "ended", "excused"),
    [
        ("503", 90.0, 99.0, False),  # before
        ("503", 99.0, 101.0, True),
        ("APIConnectionError: Connection error.", 109.0, 111.0, True),
        ("503", 110.0 + AFTER_S + 1, 120.0, False),  # it was well again
        ("APITimeoutError: Request timed out.", 101.0, 131.0, False),  # a hang is none of it
    ],
)
def test_a_call_is_excused_where_it_met_what_was_killed(
    fault: str, began: float, ended: float, excused: bool
) -> None:
    faults = Faults.__new__(Faults)
    faults.made = [Fault("agent", at=100.0, well_at=110.0)]
    assert faults.excuses(fault, began, ended) is excused
    assert faults.complaints() == []
    faults.made = [Fault("agent", at=100.0)]
    assert faults.complaints() == ["agent: no answer again"]
