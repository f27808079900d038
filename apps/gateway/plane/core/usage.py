"""Token counts as an engine reports them, and the one policy that turns a call into a record.

The policy is written out in docs/usage.md. Never guesses over a reported number: an engine that
says 0 is billed 0.
"""

from functools import lru_cache
from typing import Any

import msgspec

from apps.core.masking import mask
from apps.gateway.plane.core.request import Call, estimate_prompt_tokens
from apps.usage.record import Ending, UsageEntry

MAX_TOKENS = 2_000_000_000
MAX_NAME_CHARS = 200


class Usage(msgspec.Struct, frozen=True):
    """Counts that an engine itself reported."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


class CallFacts(msgspec.Struct):
    """What is known of a call so far; the shell fills it as the call goes on.

    `delivered` counts the content pieces that were handed to the caller.
    """

    request_id: str
    started_at: float
    path: str
    tenant_id: str = ""
    tenant_slug: str = ""
    member: str = ""
    key_id: str = ""
    key_prefix: str = ""
    model: str = ""
    route_id: str = ""
    group_id: str = ""
    task_id: str = ""
    attempt: int = 0
    stream: bool = False
    usage: Usage | None = None
    delivered: int = 0
    ttft_ms: int | None = None


def decode_usage(raw: bytes) -> Any:
    """A `usage` as its JSON stands there, for `parse_usage`; empty where it has numbers beyond all sizes."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return {}


def parse_usage(value: Any) -> Usage | None:
    """Reads a decoded `usage` object; None when there is none or it makes no sense."""
    if not isinstance(value, dict):
        return None
    prompt = _count(value.get("prompt_tokens"))
    completion = _count(value.get("completion_tokens"))
    if prompt is None:
        return None
    if completion is None:
        # Embeddings report no completion; anything else that omits it reports nothing usable.
        if "completion_tokens" in value or "total_tokens" not in value:
            return None
        completion = 0
    return read_counts(prompt, completion, value.get("prompt_tokens_details"))


def read_counts(prompt: int, completion: int, details: Any) -> Usage | None:
    """The counts of a `usage` that has both as integers; None where they make no sense."""
    if not (0 <= prompt <= MAX_TOKENS and 0 <= completion <= MAX_TOKENS):
        return None
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    return Usage(prompt, completion, min(cached or 0, prompt))


def settle(
    facts: CallFacts,
    ending: Ending,
    *,
    http_status: int,
    duration_ms: int,
    call: Call | None = None,
) -> UsageEntry:
    """The record of an ended call (GW-12), by the policy of docs/usage.md.

    Reported usage is billed as it is. Without it: nothing delivered costs nothing, else the
    estimated prompt and what was delivered, marked `estimated`.
    """
    prompt = completion = cached = 0
    estimated = False
    if ending in (Ending.REFUSED, Ending.NO_BACKEND):
        pass
    elif facts.usage is not None:
        prompt, completion, cached = (
            facts.usage.prompt_tokens,
            facts.usage.completion_tokens,
            facts.usage.cached_tokens,
        )
    elif facts.delivered > 0 or ending is Ending.COMPLETED:
        prompt = 0 if call is None else estimate_prompt_tokens(call)
        completion = facts.delivered
        estimated = True
    # By position, in the order of the record: it is done for every call.
    return UsageEntry(
        facts.request_id,
        facts.started_at,
        facts.path,
        ending,
        http_status,
        facts.tenant_id,
        facts.tenant_slug,
        facts.member,
        facts.key_id,
        facts.key_prefix,
        _named(facts.model),
        facts.route_id,
        facts.group_id,
        facts.task_id,
        facts.attempt,
        facts.stream,
        prompt,
        completion,
        cached,
        estimated,
        facts.ttft_ms,
        duration_ms,
    )


@lru_cache(maxsize=1024)
def _named(model: str) -> str:
    """PostgreSQL takes no NUL in text, and a refused name can be anything, a key by mistake, too."""
    return mask(model.replace("\x00", ""))[:MAX_NAME_CHARS]


def _count(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS:
        return value
    return None
