"""Bodies are bounded before anything keeps them, whoever sends them and however they say their length."""

import json

import pytest

from heteroflow.bodies import BoundedBodies

LIMIT, AGENT_LIMIT = 100, 200


@pytest.fixture(autouse=True)
def limits(settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE, settings.AGENT_BODY_MAX_BYTES = LIMIT, AGENT_LIMIT


async def send_body(path: str, pieces: list[bytes], *headers: tuple[bytes, bytes]) -> tuple[int, dict, int]:
    """Status, JSON answer, and how many bytes the application behind was given."""
    taken, sent, waiting = 0, [], list(pieces)

    async def application(scope, receive, send):
        nonlocal taken
        while True:
            message = await receive()
            taken += len(message["body"])
            if not message["more_body"]:
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def receive():
        piece = waiting.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(waiting)}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": path, "headers": list(headers)}
    await BoundedBodies(application)(scope, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"]), taken


@pytest.mark.parametrize(
    ("path", "limit"), [("/", LIMIT), ("/api/v1/auth/token", LIMIT), ("/agent/v1/logs", 200)]
)
async def test_the_longest_body_passes_and_one_byte_more_does_not(path: str, limit: int) -> None:
    assert await send_body(path, [b"x" * (limit - 1), b"x"]) == (200, {}, limit)
    status, answer, taken = await send_body(path, [b"x" * limit, b"x", b"x" * 10_000])  # its rest is dropped
    assert (status, answer["code"]) == (413, "body_too_large")
    assert taken == limit


async def test_a_length_that_is_told_is_believed_before_a_byte_is_read() -> None:
    told = (b"content-length", str(LIMIT + 1).encode())
    assert (await send_body("/nowhere", [b"x"], told))[::2] == (413, 0)
    for nonsense in (b"-1", b"x", b"", b"9" * 5000):
        status, _, _ = await send_body("/nowhere", [b"x"], (b"content-length", nonsense))
        assert status == (413 if nonsense[:1] == b"9" else 200)


async def test_of_a_body_without_end_a_bounded_part_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heteroflow.bodies.DROPPED_BYTES", 1000)
    assert (await send_body("/nowhere", [b"x" * 500] * 10))[0] == 413
    told = (b"content-length", b"1001")
    assert (await send_body("/nowhere", [], told))[0] == 413  # not a byte of it is waited for


async def test_agents_get_their_own_shape() -> None:
    _, answer, _ = await send_body("/agent/v1/reports", [b"x" * (AGENT_LIMIT + 1)])
    assert answer["type"] == "error" and answer["detail"]
