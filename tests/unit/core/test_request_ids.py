"""Ids of requests are drawn many at a time, and still no two are the same: in no thread and no child."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from apps.core.request_id import carry_on

pytestmark = pytest.mark.req("GW-12")


def draw(count: int) -> list[str]:
    return [carry_on("") for _ in range(count)]


def test_threads_share_none() -> None:
    with ThreadPoolExecutor(4) as pool:
        drawn = [one for some in pool.map(draw, [2000] * 4) for one in some]
    assert len(set(drawn)) == len(drawn)


def test_a_child_shares_none_with_its_parent() -> None:
    draw(1)  # so that some are ready
    theirs, ours = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ours, " ".join(draw(100)).encode())
        os._exit(0)
    os.close(ours)
    of_child = os.read(theirs, 65_536).decode().split()  # so few bytes come at once
    os.close(theirs)
    assert os.waitpid(child, 0)[1] == 0
    assert len(of_child) == 100 and not set(of_child) & set(draw(100))
