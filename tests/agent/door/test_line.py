"""The door's line: only the very line that the other side built opens it (AGENT-16)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract.door import (
    LONGEST_LINE,
    NO,
    OK,
    Fault,
    Line,
    Purpose,
    build_line,
    build_ping,
    build_pong,
    check_line,
    check_pong,
    derive_key,
)
from agent.door.nonces import Nonces

pytestmark = pytest.mark.req("AGENT-16")
KEY = derive_key("ab" * 32)
NOW = 1_700_000_000.0
NONCE = "0123456789abcdef" * 2

tasks = st.from_regex(r"task-[a-z2-7]{16}", fullmatch=True)
nonces = st.from_regex(r"[0-9a-f]{32}", fullmatch=True)
moments = st.floats(min_value=1_000_000_000, max_value=4_000_000_000)


def line(**changes: object) -> bytes:
    values: dict[str, object] = {"task_id": "task-a", "attempt": 3, "now_s": NOW, "nonce": NONCE, **changes}
    return build_line(KEY, **values)  # type: ignore[arg-type]


@given(tasks, st.integers(0, 2**31 - 1), moments, nonces)
def test_a_line_says_what_was_put_in(task_id: str, attempt: int, now_s: float, nonce: str) -> None:
    built = build_line(KEY, task_id=task_id, attempt=attempt, now_s=now_s, nonce=nonce)
    assert len(built) <= LONGEST_LINE
    assert built.count(b"\n") == 1 and built.endswith(b"\n")
    asked = check_line(KEY, built, now_s=now_s)
    assert asked == Line(Purpose.OPEN, task_id, attempt, int(now_s), nonce)


def test_a_ping_is_told_from_a_request_for_a_task() -> None:
    asked = check_line(KEY, build_ping(KEY, now_s=NOW, nonce=NONCE), now_s=NOW)
    assert isinstance(asked, Line)
    assert (asked.purpose, asked.task_id, asked.attempt) == (Purpose.PING, "-", 0)


@given(st.data(), st.sampled_from([line(), build_ping(KEY, now_s=NOW, nonce=NONCE)]))
def test_any_other_byte_anywhere_is_refused(data: st.DataObject, built: bytes) -> None:
    place = data.draw(st.integers(0, len(built) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != built[place]))
    flipped = built[:place] + bytes([byte]) + built[place + 1 :]
    assert isinstance(check_line(KEY, flipped, now_s=NOW), Fault)


@given(st.data())
def test_a_line_cut_or_made_longer_is_refused(data: st.DataObject) -> None:
    built = line()
    end = data.draw(st.integers(0, len(built) - 1))
    more = data.draw(st.binary(min_size=1, max_size=600))
    assert check_line(KEY, built[:end], now_s=NOW) is Fault.MALFORMED
    assert check_line(KEY, built + more, now_s=NOW) is Fault.MALFORMED
    assert check_line(KEY, more + built, now_s=NOW) is Fault.MALFORMED


@given(st.binary(max_size=700))
def test_no_bytes_break_the_check(raw: bytes) -> None:
    assert isinstance(check_line(KEY, raw, now_s=NOW), Fault)


def test_another_nodes_key_opens_nothing() -> None:
    assert check_line(derive_key("cd" * 32), line(), now_s=NOW) is Fault.MAC


@given(st.integers(-60, 60))
def test_a_clock_may_be_a_minute_off(off_s: int) -> None:
    assert isinstance(check_line(KEY, line(), now_s=NOW + off_s), Line)


@given(st.floats(min_value=61, max_value=1e9), st.sampled_from([1, -1]))
def test_and_no_more_than_that(off_s: float, sign: int) -> None:
    assert check_line(KEY, line(), now_s=NOW + sign * off_s) is Fault.SKEW


@pytest.mark.parametrize(
    "wrong",
    [
        {"task_id": "task a"},
        {"task_id": ""},
        {"task_id": "x" * 65},
        {"task_id": "-"},
        {"task_id": "t\n"},
        {"attempt": -1},
        {"attempt": 10**10},
        {"nonce": "0" * 31},
        {"nonce": "G" * 32},
        {"nonce": ""},
    ],
)
def test_what_can_not_stand_in_a_line_is_not_built(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        line(**wrong)


@given(nonces, nonces)
def test_a_pong_answers_its_own_ping_only(mine: str, other: str) -> None:
    answer = build_pong(KEY, mine)
    assert check_pong(KEY, answer, mine)
    assert check_pong(KEY, answer, other) is (mine == other)
    assert not check_pong(derive_key("cd" * 32), answer, mine)
    assert not any(check_pong(KEY, other_answer, mine) for other_answer in (OK, NO, b"", line()))


# --- each nonce once ------------------------------------------------------------------------------


@given(st.lists(st.tuples(nonces, st.integers(-60, 60), st.integers(0, 30)), max_size=30))
def test_no_line_is_taken_twice_in_its_time(uses: list[tuple[str, int, int]]) -> None:
    memory, now_s, taken = Nonces(), NOW, set()
    for nonce, off_s, pause_s in uses:
        now_s += pause_s
        sent_at = int(now_s) + off_s
        new = memory.take(nonce, until_s=sent_at + 60, now_s=now_s)
        assert not (new and nonce in {n for n, until in taken if until >= now_s})
        if new:
            taken.add((nonce, sent_at + 60))


def test_a_full_memory_takes_nothing_new_until_something_is_old() -> None:
    memory = Nonces(longest=2)
    assert memory.take("a", until_s=NOW + 10, now_s=NOW)
    assert memory.take("b", until_s=NOW + 20, now_s=NOW)
    assert not memory.take("c", until_s=NOW + 20, now_s=NOW)
    assert not memory.take("a", until_s=NOW + 20, now_s=NOW)
    assert memory.take("c", until_s=NOW + 20, now_s=NOW + 11)
    assert len(memory) == 2
