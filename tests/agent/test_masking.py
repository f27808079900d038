"""Secrets are masked in place, whatever is around them."""

import logging
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.masking import MaskingFilter, mask, printable, secret_values


@pytest.mark.req("AGENT-10", "OPS-08")
@pytest.mark.parametrize(
    "text",
    [
        "key sk-abcdefgh12345678",
        "Authorization: Bearer abcdef.ghijkl",
        "HF hf_abcdefghijkl",
        "api_key=supersecretvalue",
        '"password": "supersecretvalue"',
        "MY_TOKEN = supersecretvalue",
    ],
)
def test_known_shapes_are_masked_in_place(text: str) -> None:
    masked = mask(text.encode()).decode()
    assert len(masked) == len(text)
    assert "****" in masked
    for secret in ("abcdefgh", "ghijkl", "supersecret"):
        assert secret not in masked


@given(st.binary(max_size=200))
def test_printable_keeps_length_and_is_text(raw: bytes) -> None:
    clean = printable(raw)
    assert len(clean) == len(raw)
    assert b"\0" not in clean
    clean.decode()


@pytest.mark.req("AGENT-10")
def test_printing_binary_costs_one_pass() -> None:
    """A piece of a log is made printable in the agent's own loop, beside heartbeats."""
    cost = [min(_seconds(b"\xff" * size) for _ in range(3)) for size in (20_000, 200_000)]
    assert cost[1] < 40 * cost[0], cost  # ten times the bytes; it was a hundred times the time


def _seconds(raw: bytes) -> float:
    begun = time.thread_time()
    printable(raw)
    return time.thread_time() - begun


@given(
    st.text(min_size=4, max_size=20).filter(lambda s: "*" not in s),
    st.text(max_size=30),
    st.text(max_size=30),
)
def test_told_secrets_never_come_through(secret: str, before: str, after: str) -> None:
    raw = (before + secret + after).encode("utf-8", "replace")
    masked = mask(raw, [secret.encode("utf-8", "replace").decode()])
    assert len(masked) == len(raw)
    assert secret.encode("utf-8", "replace") not in masked


def test_words_about_tokens_are_left_alone() -> None:
    text = b"21 tokens per second, key rotation: none, secret of the sea"
    assert mask(text) == text


def test_log_filter_masks_arguments_too() -> None:
    masking = MaskingFilter()
    masking.add("node-secret-value")
    record = logging.LogRecord("a", 20, "", 0, "said %s", ("node-secret-value",), None)
    assert masking.filter(record)
    assert record.getMessage() == "said " + "*" * 17


def test_secret_values_go_by_name() -> None:
    assert secret_values({"HF_TOKEN": "abcdef", "LLAMA_ARG_CTX_SIZE": "4096", "K_KEY": "x"}) == ["abcdef"]
