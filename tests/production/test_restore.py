"""Backup under traffic, and its way back on the same and on a fresh place: the production profile with its
engines in containers, which nothing removes before the operator's word (OPS-03)."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from apps.ops.demo import IMAGE
from tests.fakes.docker.engines import DockerNode, sweep
from tests.fakes.tiny_model import ANSWER
from tests.production.traffic import traffic_of
from tests.production_stack import ProductionStack, running_production
from tests.stack import ROOT, clean_environment, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("docker"),
    pytest.mark.req("OPS-03"),
]

LABEL = "heteroflow.task"
HELD = "SELECT 1 FROM core_lease WHERE name = 'agents.removals' AND holder <> ''"
GROUPS = "SELECT name FROM workloads_taskgroup ORDER BY name"
# What runs where under which attempt, and what it holds.
STATE = """
SELECT g.name, g.state, t.public_id, t.state, t.phase, t.attempt, n.public_id, c.attempt, p.number
FROM workloads_task t
JOIN workloads_taskgroup g ON g.id = t.group_id
LEFT JOIN fleet_node n ON n.id = t.node_id
LEFT JOIN workloads_claim c ON c.task_id = t.id AND c.released_at IS NULL
LEFT JOIN fleet_port p ON p.owner = t.public_id
ORDER BY g.name, t.rank
"""
EQUAL_WITHIN_S = 30.0


@pytest.fixture
def stack(docker_node: DockerNode) -> Iterator[ProductionStack]:
    with running_production(RUNTIME="docker", DOCKER_HOST=docker_node.socket) as made:
        yield made
    sweep(docker_node.api, LABEL)


def command(stack: ProductionStack, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "manage.py", *words],
        cwd=ROOT,
        env=clean_environment(DATA_DIR=str(stack.data_dir)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def manage(stack: ProductionStack, *words: str) -> str:
    with command(stack, *words) as done:
        said = done.communicate(timeout=300)[0]
    assert done.returncode == 0, said
    return said


@contextmanager
def stores_of(stack: ProductionStack) -> Iterator[None]:
    """PostgreSQL and Redis alone."""
    with stack.log_file.open("wb") as log:
        stack.process = subprocess.Popen(
            [sys.executable, "manage.py", "run-production", "--stores-only"],
            cwd=ROOT,
            env=stack.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    until(lambda: "PostgreSQL and Redis run." in stack.printed(), stack.printed, 60)
    try:
        yield
    finally:
        stack.stop()


def die(stack: ProductionStack) -> None:
    """The whole machine but Docker: every process of the stack by kill -9."""
    assert stack.process is not None
    supervisor = psutil.Process(stack.process.pid)
    all_of_it = [supervisor, *supervisor.children(recursive=True)]
    for process in all_of_it:
        if process.is_running():
            process.send_signal(signal.SIGKILL)
    stack.process.wait(30)
    psutil.wait_procs(all_of_it, timeout=30)


def running_tasks(node: DockerNode) -> set[str]:
    return {row["Id"] for row in node.api.containers(filters={"label": LABEL})}


def create_later(stack: ProductionStack) -> None:
    """A service that no backup knows."""
    (model,) = stack.rows("SELECT model_path FROM workloads_task LIMIT 1")[0]
    body = {
        "name": "later",
        "model_name": "later",
        "parallelism": "single",
        "world_size": 1,
        "enable_api": True,
        "task": {"image": IMAGE, "gpu_required": 0, "model_path": model},
        "health_check": {"type": "http", "path": "/health", "start_period_seconds": 100},
    }
    made = stack.api().call("POST", "/api/v1/task-groups", body)
    path = f"/api/v1/task-groups/{made['id']}"
    until(lambda: stack.api().call("GET", path)["status"] == "running", "the later service runs")


def content(stack: ProductionStack) -> dict[str, Any]:
    """Each table's rows, in one order."""
    with psycopg.connect(stack.kept("DATABASE_URL"), connect_timeout=5) as link:
        tables = link.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
        ).fetchall()
        return {
            name: link.execute(f'SELECT t::text FROM "{name}" t ORDER BY 1').fetchall() for (name,) in tables
        }


def files_of(stack: ProductionStack) -> dict[str, bytes]:
    folder = stack.data_dir / "files"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def kill_in_the_middle(stack: ProductionStack, backup: Path) -> None:
    """Once its transaction is open. All of the old stays; a death after its last word is the new, held."""
    restore = command(stack, "restore", str(backup), "--replace")
    with psycopg.connect(stack.kept("DATABASE_URL"), dbname="postgres", autocommit=True) as link, restore:
        look = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'psql' AND xact_start IS NOT NULL"
        until(lambda: link.execute(look).fetchone() or restore.poll() is not None, "it loads")
        restore.kill()
        gone = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'psql'"
        until(lambda: link.execute(gone).fetchone() is None, "PostgreSQL has ended its transaction")
    found = [name for (name,) in stack.rows(GROUPS)], bool(stack.rows(HELD))
    assert found in ((["demo", "later"], False), (["demo"], True))


def test_a_backup_under_traffic_comes_back_here_and_elsewhere(
    stack: ProductionStack, docker_node: DockerNode, tmp_path: Path
) -> None:
    backup, counted = tmp_path / "one.tar", "SELECT count(*) FROM usage_usagerecord"
    (known,) = running_tasks(docker_node)  # a container, as RUNTIME=docker says
    with traffic_of(stack) as traffic:
        until(lambda: traffic.good["model"] > 2, "calls are answered")
        before, state = stack.rows(counted)[0][0], stack.rows(STATE)
        manage(stack, "backup", str(backup))
    assert traffic.wrong == [] and traffic.good["model"] > 2
    create_later(stack)
    (unknown,) = running_tasks(docker_node) - {known}
    after = stack.rows(counted)[0][0]
    die(stack)
    assert running_tasks(docker_node) == {known, unknown}

    with stores_of(stack):
        kill_in_the_middle(stack, backup)
        manage(stack, "restore", str(backup), "--replace")
        assert stack.rows(GROUPS) == [("demo",)]
        assert stack.rows(HELD)
        assert before <= stack.rows(counted)[0][0] <= after
        here = content(stack), files_of(stack)
    elsewhere = stack.data_dir.with_name("elsewhere")
    elsewhere.mkdir(mode=0o700)
    shutil.copy2(stack.data_dir / "secrets.json", elsewhere)
    environment = {**stack.environment, "DATA_DIR": str(elsewhere)}
    fresh = ProductionStack(elsewhere, stack.port, stack.model_file, environment)
    try:
        with stores_of(fresh):
            manage(fresh, "restore", str(backup))
            assert (content(fresh), files_of(fresh)) == here
    finally:
        fresh.end()

    stack.start()
    until(lambda: stack.rows(STATE) == state, lambda: f"{stack.rows(STATE)} is {state}", EQUAL_WITHIN_S)
    assert stack.ask() == ANSWER
    seen_since = stack.rows("SELECT extract(epoch FROM now())::float8")[0][0] + 4
    beats = "SELECT 1 FROM fleet_liveness WHERE extract(epoch FROM last_seen_at) > %s"
    until(lambda: stack.rows(beats, seen_since), "the agent has heard eight lists or more")
    assert running_tasks(docker_node) == {known, unknown}
    assert stack.rows(STATE) == state
    assert "Removals go on." in manage(stack, "resume-removals")
    until(lambda: running_tasks(docker_node) == {known}, "what no service wants is gone")
    assert stack.ask() == ANSWER
    assert stack.stop() == 0
