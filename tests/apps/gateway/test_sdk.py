"""The official openai SDK, sync and async, against the gateway. With engines: tests/nodes/test_sdks.py."""

import asyncio
from pathlib import Path

import certifi
import openai
import pytest

from apps.usage.record import Ending
from tests.fakes.gateway import MODEL, SECRET, FakeSource, RunningGateway, make_route, make_table
from tests.fakes.mock_engine import MockEngine
from tests.sdks import node, openai_python
from tests.sdks.asked import Asked

pytestmark = pytest.mark.usefixtures("each_shell")
SAY = [{"role": "user", "content": "hi"}]


@pytest.mark.req("GW-01", "GW-09")
async def test_async_client(gateway: RunningGateway, engine: MockEngine) -> None:
    async with openai.AsyncOpenAI(api_key=SECRET, base_url=gateway.url + "/v1", max_retries=0) as client:
        whole = await client.chat.completions.create(model=MODEL, messages=SAY)
        assert (whole.choices[0].message.content, whole.model) == ("www", MODEL)
        assert whole.usage is not None
        stream = await client.chat.completions.create(model=MODEL, messages=SAY, stream=True)
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "www"
        asked = await client.chat.completions.create(
            model=MODEL, messages=SAY, stream=True, stream_options={"include_usage": True}
        )
        assert [chunk.usage.total_tokens async for chunk in asked if chunk.usage] == [24]
        assert [model.id async for model in client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).id == MODEL
        assert (await client.embeddings.create(model=MODEL, input="x", encoding_format="float")).data
        engine.plan.cut_after = 1
        with pytest.raises(openai.APIError, match="broke off"):
            async for _ in await client.chat.completions.create(model=MODEL, messages=SAY, stream=True):
                pass
    assert len(gateway.records()) == 5


@pytest.mark.req("GW-01", "GW-09")
async def test_sync_client(gateway: RunningGateway) -> None:
    def talk() -> tuple[str, str, str]:
        with openai.OpenAI(api_key=SECRET, base_url=gateway.url + "/v1", max_retries=0) as client:
            whole = client.completions.create(model=MODEL, prompt="hi")
            chunks = list(client.completions.create(model=MODEL, prompt="hi", stream=True))
            chat = list(client.chat.completions.create(model=MODEL, messages=SAY, stream=True))
            text = "".join(chunk.choices[0].text for chunk in chunks)
            return (
                whole.choices[0].text,
                text,
                "".join(chunk.choices[0].delta.content or "" for chunk in chat),
            )

    assert await asyncio.to_thread(talk) == ("www", "www", "www")
    assert {record.ending for record in gateway.records()} == {Ending.COMPLETED}


@pytest.mark.req("GW-02")
async def test_errors_are_the_sdks_own_classes(source: FakeSource, engine: MockEngine, tmp_path) -> None:
    table = make_table(make_route())
    async with RunningGateway(FakeSource(table), tmp_path) as gateway:
        bad = openai.AsyncOpenAI(api_key="sk-no", base_url=gateway.url + "/v1", max_retries=0)
        with pytest.raises(openai.AuthenticationError) as refused:
            await bad.models.list()
        assert refused.value.code == "invalid_api_key"
        good = openai.AsyncOpenAI(api_key=SECRET, base_url=gateway.url + "/v1", max_retries=0)
        with pytest.raises(openai.NotFoundError) as missing:
            await good.chat.completions.create(model="nope", messages=SAY)
        assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.InternalServerError) as none_ready:
            await good.chat.completions.create(model=MODEL, messages=SAY)
        assert none_ready.value.status_code == 503
        await bad.close()
        await good.close()


@pytest.mark.req("GW-09")
async def test_a_stream_that_breaks_off_is_an_error_of_each_sdk(
    gateway: RunningGateway, engine: MockEngine, tmp_path: Path
) -> None:
    from tests.sdks import langchain  # here, since it takes a second, which other tests needn't wait for

    asked = Asked(
        base_url=f"{gateway.url}/v1",
        key=SECRET,
        wrong_key="",
        models=[],
        vectors="",
        away="",
        slow=MODEL,
        certificate=Path(certifi.where()),
    )
    engine.plan.cut_after = 2
    for break_off in (openai_python.break_off, langchain.break_off):
        assert await asyncio.to_thread(break_off, asked) == ["ww", "APIError", "upstream_truncated"]
    seen = await asyncio.to_thread(node.run, asked, "break_off", tmp_path)
    assert seen == ["ww", "APIError", "upstream_truncated"]
    assert [record.ending for record in gateway.records()] == [Ending.UPSTREAM_TRUNCATED] * 3
