"""No credential survives in a log line, whatever stands round it."""

import io
import logging
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.core import ids, masking, secrets

pytestmark = pytest.mark.req("OPS-08")

AROUND = st.sampled_from(["", " ", '"', "'", "key=", "(", ")", "\n", ", ", "https://x/?k=", "Bearer ", ": "])
UUIDS = st.uuids(version=4)


@given(AROUND, UUIDS, AROUND)
def test_a_gateway_key_never_survives(before, number, after):
    key = f"sk-{number}"
    masked = masking.mask(f"{before}{key}{after}")

    assert key not in masked
    assert key[12:] not in masked


@given(AROUND, st.binary(min_size=32, max_size=32), AROUND)
def test_a_bearer_header_of_a_node_never_survives(before, random, after):
    import base64

    secret = base64.urlsafe_b64encode(random).rstrip(b"=").decode()
    node = ids.new_id("node")
    masked = masking.mask(f"{before}Authorization: Bearer {node}:{secret}{after}")

    assert secret not in masked


@pytest.mark.parametrize(
    "make", [lambda: secrets.new_token("jt-"), lambda: secrets.derive_engine_key("t", 1)]
)
@given(before=AROUND, after=AROUND)
def test_tokens_and_engine_keys_never_survive(make, before, after):
    token = make()
    assert token not in masking.mask(f"{before}{token}{after}")
    assert token[8:] not in masking.mask(f"{before}{token}{after}")


@pytest.mark.parametrize(
    "line",
    [
        '{"password": "hunter2hunter2"}',
        "password=hunter2hunter2&next=/",
        "API_KEY: hunter2hunter2",
        "api-key=hunter2hunter2",
        '"secret":"hunter2hunter2"',
        "token = hunter2hunter2",
        "401 for hf_hunter2hunter2",
    ],
)
def test_values_behind_telling_names_never_survive(line):
    assert "hunter2" not in masking.mask(line)


@pytest.mark.parametrize(
    "line",
    ["", "placed task-abcdefghijklmnop on node-abcdefghijklmnop", "sk-12345678 revoked", "200 tokens in 3 s"],
)
def test_other_lines_stay_as_they_are(line):
    assert masking.mask(line) == line


def logger_into(stream: io.StringIO) -> logging.Logger:
    handler = logging.StreamHandler(stream)
    handler.addFilter(masking.MaskSecrets())
    log = logging.Logger("masked")
    log.addHandler(handler)
    return log


def test_arguments_and_tracebacks_are_masked_too():
    key, stream = f"sk-{uuid.uuid4()}", io.StringIO()
    log = logger_into(stream)
    log.info("called with %s", key)
    try:
        raise ValueError(f"bad key {key}")
    except ValueError:
        log.exception("it failed")

    assert key not in stream.getvalue()
    assert "ValueError: bad key sk-" in stream.getvalue()


def test_a_line_with_wrong_arguments_is_still_written_and_masked():
    key, stream = f"sk-{uuid.uuid4()}", io.StringIO()
    logger_into(stream).info("100% of %d", key)

    assert "100% of %d" in stream.getvalue()
    assert key not in stream.getvalue()
