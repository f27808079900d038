"""Two, four and eight schedulers by mistake at once on PostgreSQL, killed and paused at random: two hundred
rounds, after each of which nothing is given twice (SCHED-12)."""

import json
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import urlparse

import psycopg
import pytest

from tests.postgres import running_cluster
from tests.stack import ROOT, clean_environment

BEGIN = (
    "import sys, django; django.setup();"
    " from tests.breaks.schedulers import main; main(*map(int, sys.argv[1:]))"
)
SEED = 5


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with running_cluster() as address:
        yield address


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.req("SCHED-12", "SCHED-05", "SCHED-06", "SCHED-09", "SCHED-11", "SHARE-04", "SHARE-05")
@pytest.mark.parametrize(("many", "rounds"), [(2, 80), (4, 80), (8, 40)])
def test_nothing_is_given_twice_however_many_schedulers_run(cluster: str, many: int, rounds: int) -> None:
    with psycopg.connect(cluster, autocommit=True) as link:
        link.execute(f"CREATE DATABASE of_{many}")
    address = urlparse(cluster)._replace(path=f"/of_{many}").geturl()
    run = subprocess.run(
        ["setpriv", "--pdeathsig", "KILL", sys.executable, "-c", BEGIN, *map(str, (rounds, many, SEED))],
        cwd=ROOT,
        env=clean_environment(DJANGO_SETTINGS_MODULE="heteroflow.settings.test", TEST_DATABASE_URL=address),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    told = json.loads(run.stdout.splitlines()[-1])
    assert told["rounds"] >= rounds and told["placed"] >= rounds, told
