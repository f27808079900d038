"""Bodies that come packed: what is inside counts, and nothing of the packing reaches an engine (GW-01)."""

import asyncio
import gzip
import json
import tracemalloc
import zlib
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.gateway.plane.core.errors import CallError
from apps.gateway.plane.core.packed import read_coding, unpack
from apps.usage.record import Ending
from tests.fakes.gateway import BODY, SECRET, FakeSource, RunningGateway
from tests.fakes.mock_engine import MockEngine

pytestmark = pytest.mark.req("GW-01", "GW-02")
CHAT = "/v1/chat/completions"
PACKERS = {"gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress}
MIB = 1024 * 1024
PACKED = gzip.compress(b"{}")


async def post(gateway: RunningGateway, body: bytes, coding: str) -> tuple[int, dict, dict]:
    """Sends the bytes as they are; aiohttp would pack them a second time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET}\r\nContent-Encoding: {coding}\r\n"
    )
    writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    got = await reader.read()
    writer.close()
    head, _, answer = got.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    return int(lines[0].split()[1]), json.loads(answer), headers


@pytest.mark.usefixtures("each_shell")
@pytest.mark.parametrize("coding", [*PACKERS, "GZip"])
async def test_the_engine_gets_it_unpacked(gateway: RunningGateway, engine: MockEngine, coding: str) -> None:
    asked = {**BODY, "x": "ü\u2028" * 200_000}
    for body in (BODY, asked):
        status, _, _ = await post(gateway, PACKERS[coding.lower()](json.dumps(body).encode()), coding)
        assert status == 200
        assert engine.seen[-1] == {**body, "model": "engine-name"}
        assert "Content-Encoding" not in engine.seen_headers[-1]
    assert {record.prompt_tokens for record in gateway.records()} == {21}


@pytest.mark.usefixtures("each_shell")
async def test_a_client_that_packs_by_itself(gateway: RunningGateway, http: aiohttp.ClientSession) -> None:
    async with http.post(gateway.url + CHAT, json=BODY, compress="gzip") as response:
        assert response.status == 200


@pytest.mark.usefixtures("each_shell")
@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "identity, gzip", "gzip;q=1", "compress"])
async def test_any_other_coding_is_415_and_says_what_is_taken(
    gateway: RunningGateway, engine: MockEngine, coding: str
) -> None:
    status, answer, headers = await post(gateway, gzip.compress(b"{}"), coding)
    assert (status, answer["error"]["code"]) == (415, "unsupported_media_type")
    assert coding in answer["error"]["message"] and "gzip, deflate" in answer["error"]["message"]
    assert headers["accept-encoding"] == "gzip, deflate"
    assert engine.seen == []
    assert gateway.records()[0].ending is Ending.REFUSED


@pytest.mark.usefixtures("each_shell")
async def test_two_codings_in_two_headers_are_two(gateway: RunningGateway) -> None:
    status, _, _ = await post(gateway, gzip.compress(b"{}"), "br\r\nContent-Encoding: gzip")
    assert status == 415


@pytest.mark.usefixtures("each_shell")
@pytest.mark.parametrize("limit", [1000, 2 * MIB])
async def test_what_is_inside_is_what_is_capped(
    source: FakeSource, engine: MockEngine, tmp_path: Path, limit: int
) -> None:
    frame = json.dumps({**BODY, "x": ""}).encode()
    async with RunningGateway(source, tmp_path, max_body_bytes=limit) as gateway:
        for more, expected in ((0, 200), (1, 413)):
            body = frame.replace(b'"x": ""', b'"x": "%b"' % (b"y" * (limit - len(frame) + more)))
            assert len(body) == limit + more
            packed = gzip.compress(body, 1)
            status, answer, _ = await post(gateway, packed, "gzip")
            assert status == expected
        error = answer["error"]
        assert (error["code"], error["type"]) == ("request_too_large", "invalid_request_error")
        assert str(limit) in error["message"] and str(len(packed)) in error["message"]
        assert len(engine.seen) == 1


@pytest.mark.usefixtures("each_shell")
async def test_packed_it_is_capped_too(source: FakeSource, tmp_path: Path) -> None:
    async with RunningGateway(source, tmp_path, max_body_bytes=1000) as gateway:
        status, answer, _ = await post(gateway, gzip.compress(b"{}") + bytes(1000), "gzip")
        assert (status, answer["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_of_a_bomb_no_more_is_made_than_the_cap(coding: str) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31 if coding == "gzip" else 15)
    bomb = b"".join(packer.compress(bytes(MIB)) for _ in range(40)) + packer.flush()
    assert len(bomb) < MIB
    tracemalloc.start()
    try:
        with pytest.raises(CallError) as fault:
            unpack(coding, bomb, MIB)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert fault.value.status == 413
    assert most < 4 * MIB


@pytest.mark.usefixtures("each_shell")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        PACKED[:-1],
        PACKED + b"x",
        PACKED * 2,
        PACKED[:-8] + bytes(8),
        zlib.compress(b"{}"),
    ],
    ids=["empty", "plain", "cut off", "more behind", "two", "wrong check", "another coding"],
)
async def test_what_is_not_packed_so_is_400(gateway: RunningGateway, engine: MockEngine, body: bytes) -> None:
    status, answer, _ = await post(gateway, body, "gzip")
    assert (status, answer["error"]["code"]) == (400, "invalid_content_encoding")
    assert engine.seen == [] and gateway.records()[0].ending is Ending.REFUSED


@pytest.mark.usefixtures("each_shell")
async def test_what_is_inside_is_read_like_any_body(gateway: RunningGateway) -> None:
    for inside, code in (
        (b"{", "invalid_json"),
        (b"", "invalid_json"),
        (b"{}", "missing_required_parameter"),
    ):
        status, answer, _ = await post(gateway, gzip.compress(inside), "gzip")
        assert (status, answer["error"]["code"]) == (400, code)


@pytest.mark.parametrize("header", [None, b"", b" ", b"identity", b"Identity "])
def test_no_coding_is_none(header: bytes | None) -> None:
    assert read_coding(header) is None


@given(st.sampled_from(sorted(PACKERS)), st.binary(max_size=300), st.integers(0, 300), st.binary(max_size=5))
def test_it_comes_out_whole_or_not_at_all(coding: str, body: bytes, limit: int, tail: bytes) -> None:
    packed = PACKERS[coding](body)
    try:
        assert unpack(coding, packed + tail, limit) == body
        assert len(body) <= limit and not tail
    except CallError as fault:
        assert fault.status == (413 if len(body) > limit else 400)
        assert len(body) > limit or tail


@given(st.sampled_from(sorted(PACKERS)), st.binary(max_size=300))
def test_rubbish_is_refused_in_order(coding: str, body: bytes) -> None:
    try:
        unpack(coding, body, 1000)
    except CallError as fault:
        assert fault.status in (400, 413)
