"""What a soak complains of: calls that failed otherwise than their engine made them, records that are not the
calls, what grew or stayed. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from apps.usage.record import Ending, UsageEntry
from bench.gateway_soak.callers import Called
from bench.gateway_soak.engine import PIECES, PROMPT_TOKENS

KILLED = "begun"
"""The last that an engine noted of a call which it had when it was killed."""
BROKEN_OFF = {"status 502 upstream_truncated", "event upstream_truncated"}
# What an engine did to a call at last -> as what its caller may see that, if not as a whole answer.
EXCUSED = {
    "hang": {"status 504 upstream_timeout", "event upstream_timeout"},
    "reset": BROKEN_OFF,
    KILLED: BROKEN_OFF,
    "garbage": BROKEN_OFF
    | {"status 502 upstream_unreadable", "wrong event", "wrong text or model", "wrong kind"},
}
ENDINGS = {
    "upstream_timeout": Ending.UPSTREAM_ERROR,
    "upstream_unreadable": Ending.UPSTREAM_ERROR,
    "upstream_truncated": Ending.UPSTREAM_TRUNCATED,
}


def fates(journals: Iterable[str]) -> dict[str, str]:
    """By request id the last step that an engine noted; of a call that was repeated, that of its last try."""
    steps = sorted(
        (int(moment), request_id, step)
        for journal in journals
        for moment, request_id, step in (line.split() for line in journal.splitlines())
    )
    found: dict[str, str] = {}
    for _, request_id, step in steps:
        # What was done to a call counts, and not that the gateway then closed its connection.
        if step == KILLED or found.get(request_id) == KILLED:
            found[request_id] = step
    return found


def complaints(calls: list[Called], fate_of: dict[str, str], records: list[UsageEntry]) -> Counter[str]:
    """How often what was not well; nothing where all was."""
    said: Counter[str] = Counter()
    recorded = defaultdict(list)
    for record in records:
        recorded[record.request_id.rpartition(".")[0]].append(record)
    for call in calls:
        found = recorded.pop(call.call_id, [])
        if not (found or call.sent) and call.outcome == "left":
            continue  # on a busy machine its time was over before it had said a word
        if len(found) != 1:
            said[f"{len(found)} records of a call that ended as: {call.outcome}"] += 1
            continue
        (record,) = found
        fate = fate_of.get(record.request_id, "no engine's")
        if not _is_expected(call, fate):
            said[f"{call.outcome} (engine: {fate})"] += 1
        elif not _is_right(record, call, fate):
            tokens = f"{record.prompt_tokens} + {record.completion_tokens} tokens"
            said[f"{call.outcome} (engine: {fate}) recorded as {record.ending}, {tokens}"] += 1
    if recorded:
        said["records of calls that nobody made"] = len(recorded)
    return said


def _is_expected(call: Called, fate: str) -> bool:
    if call.outcome == "whole":
        return fate == "served"
    if call.outcome == "left":
        return call.leaves
    return call.outcome in EXCUSED.get(fate, ())


def _is_right(record: UsageEntry, call: Called, fate: str) -> bool:
    if call.outcome == "whole":
        told = (record.prompt_tokens, record.completion_tokens, record.estimated)
        return record.ending == Ending.COMPLETED and told == (PROMPT_TOKENS, PIECES, False)
    if call.outcome == "left":
        # Its engine may have been done, or have gone wrong, in the moment when it left.
        return record.ending == Ending.CLIENT_GONE or fate != "left"
    return record.ending == ENDINGS.get(call.outcome.rpartition(" ")[2], Ending.COMPLETED)


def grown(first_mb: float, last_mb: float, limit_mb: float) -> list[str]:
    """`first_mb`: once all callers had been there for a while."""
    return [f"the gateway's MiB: {first_mb:.1f} at first, {last_mb:.1f} at last"] * (
        last_mb - first_mb > limit_mb
    )
