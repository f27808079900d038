"""kill -9 of a gateway with dozens of calls and streams under way: each answered one is one row, no other is
two (GW-12). What is left in the killed one's file becomes rows by the gateways beside it and after it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import aiohttp
import psutil
import pytest

from tests.fakes.tiny_model import ANSWER
from tests.production_stack import ProductionStack
from tests.stack import until

CALLERS, KILLS, MOST_KILLS, SPOKEN = 40, 2, 8, 8
ROWS = "SELECT request_id, completion_tokens FROM usage_usagerecord WHERE key_id = ?"
SUMS = "SELECT coalesce(sum(requests), 0), coalesce(sum(completion_tokens), 0) FROM usage_usagetotal"


@dataclass
class Answers:
    """`answered`: ids of calls whose whole answer came; `cut`: how many others were begun."""

    answered: set[str] = field(default_factory=set)
    cut: int = 0
    enough: bool = False

    async def go_on(self, session: aiohttp.ClientSession, url: str, model: str, *, stream: bool) -> None:
        said = [{"role": "user", "content": "hi"}]
        body = {"model": model, "messages": said, "max_tokens": 16, "stream": stream}
        while not self.enough:
            try:
                async with session.post(url, json=body) as response:
                    text = await response.text()
            except aiohttp.ClientError:
                text = ""
            if text.endswith("data: [DONE]\n\n") or ANSWER in text:
                self.answered.add(response.headers["x-request-id"])
            else:
                self.cut += 1
                await asyncio.sleep(0.1)


async def call(stack: ProductionStack, key: str, kill: Callable[[], None]) -> Answers:
    """Callers all the while that a gateway is killed, again and again."""
    answers, url = Answers(), f"{stack.base_url}/v1/chat/completions"
    headers, connector = {"Authorization": f"Bearer {key}"}, aiohttp.TCPConnector(limit=0, ssl=stack.trust)
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(headers=headers, connector=connector, timeout=timeout) as session:
        callers = [
            asyncio.create_task(answers.go_on(session, url, stack.model, stream=number % 2 == 0))
            for number in range(CALLERS)
        ]
        kills = 0
        while kills < KILLS or (kills < MOST_KILLS and not answers.cut):  # it may be met between two calls
            kills += 1
            more = len(answers.answered) + 3 * CALLERS
            async with asyncio.timeout(60):
                while len(answers.answered) < more:
                    await asyncio.sleep(0.01)
            await asyncio.to_thread(kill)
        answers.enough = True
        await asyncio.gather(*callers)
    return answers


def listening(stack: ProductionStack) -> list[int]:
    """The ports of all its gateways."""
    found = []
    for process in stack.processes("asgi"):
        with suppress(psutil.NoSuchProcess):
            found += [one.laddr.port for one in process.net_connections("tcp") if one.status == "LISTEN"]
    return sorted(found)


@pytest.mark.req("GW-12", "OPS-06")
def test_each_answered_call_is_one_row_whatever_is_killed(production: ProductionStack) -> None:
    key = production.api().call("POST", "/api/v1/api-keys", {"name": "killed"})
    before = listening(production)

    def kill() -> None:
        production.part("asgi").kill()
        until(lambda: listening(production) == before, "it is started again and takes connections")

    answers = asyncio.run(call(production, key["key"], kill))
    assert answers.cut, "none was under way"
    rows: dict[str, int] = {}

    def all_are_rows() -> bool:
        found = production.rows(ROWS, key["id"])
        assert len(found) == len(dict(found))
        rows.update(found)
        return answers.answered <= rows.keys()

    until(all_are_rows, lambda: f"{len(answers.answered)} were answered, {len(rows)} are rows")
    assert {rows[request_id] for request_id in answers.answered} == {SPOKEN}

    def summed() -> bool:
        """By hour and by day alike, with what was cut off and got its row meanwhile."""
        rows.update(production.rows(ROWS, key["id"]))
        told = (len(rows), sum(rows.values()))
        of = [
            production.rows(f"{SUMS} WHERE key_id = ? AND span = ?", key["id"], span)[0]
            for span in ("hour", "day")
        ]
        return all((int(requests), int(tokens)) == told for requests, tokens in of)

    until(summed, lambda: f"the sums say the same as {len(rows)} rows")
    assert len(rows) <= len(answers.answered) + answers.cut
    production.api().call("DELETE", f"/api/v1/api-keys/{key['id']}")
