"""What the agent's log says at its start of what an operator has to mend."""

import asyncio
from pathlib import Path

import pytest

from agent.config import Settings
from agent.contract.states import RuntimeKind
from agent.node import wait_until_known, warn_of_missing_folders
from tests.agent.fakes import FakeRuntime


@pytest.mark.req("AGENT-01")
async def test_a_node_that_waits_for_docker_says_where_and_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = FakeRuntime(tmp_path, RuntimeKind.DOCKER, silent=True)
    settings = Settings(
        "https://server", docker_host="unix:///run/other.sock", docker_silence_s=0.01, heartbeat_s=0.01
    )
    told = []

    async def tell() -> None:
        told.append(True)

    waiting = asyncio.ensure_future(wait_until_known(runtime, settings, tell))
    async with asyncio.timeout(30):
        while "unix:///run/other.sock" not in caplog.text or len(told) < 3:
            assert not waiting.done()
            await asyncio.sleep(0.01)
        assert caplog.text.count("does not answer") == 1
        assert "offline" in caplog.text and "docker_host" in caplog.text
        runtime.silent = False
        await waiting


async def test_a_node_whose_runtime_answers_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def tell() -> None:
        pytest.fail("there is nothing to tell")

    await wait_until_known(FakeRuntime(tmp_path), Settings("https://server", docker_silence_s=0.01), tell)
    assert not caplog.records


@pytest.mark.req("AGENT-05")
def test_an_allowed_folder_that_is_not_there_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    both = f"{tmp_path},{tmp_path}"  # a comma where ':' separates
    warn_of_missing_folders(Settings("https://server", allowed_volume_prefixes=[str(tmp_path), both]))
    (warning,) = caplog.records
    assert repr(both) in warning.getMessage() and "':' separates" in warning.getMessage()
