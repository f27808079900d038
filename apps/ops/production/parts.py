"""The command lines of the production profile's parts, as deploy/ has them too.

Workers run Celery's `threads` pool: a tick waits for the database most of its time, leases and
deadlines in rows replace Celery's time limits, and PostgreSQL's pool does not survive a fork.
"""

import os
from collections.abc import Mapping, Sequence

from apps.ops.agent_environment import agent_environment
from apps.ops.children import Program
from apps.ops.production import cluster
from apps.ops.production.prelaunch import COPIES, Place

KEEP_ALIVE_S = 75  # longer than an agent's heartbeat, as in the embedded server
QUIET = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
# A supervisor's own matters that no server needs to see.
SUPERVISORS = ("SSL_CERT_FILE", "LOCAL_URL")


def wsgi(port: int) -> list[str]:
    """granian: console, portal, REST API, agents' protocol."""
    return [
        *["-m", "granian", "--interface", "wsgi", "heteroflow.wsgi:application", "--no-ws"],
        *["--host", "127.0.0.1", "--port", str(port), "--workers", "1", "--blocking-threads", "4"],
        *["--respawn-failed-workers", "--workers-kill-timeout", "10", "--no-access-log"],
        *["--log-level", "warning"],
    ]


def asgi(port: int, drain_s: float) -> list[str]:
    """uvicorn: the websockets, and in the same process the gateway, whose calls come by its own listener."""
    return [
        *["-m", "uvicorn", "heteroflow.asgi:application", "--host", "127.0.0.1", "--port", str(port)],
        *["--lifespan", "on", "--no-access-log", "--no-server-header", "--log-level", "warning"],
        *["--timeout-keep-alive", str(KEEP_ALIVE_S), "--timeout-graceful-shutdown", str(int(drain_s))],
        *["--ws-ping-interval", "20", "--forwarded-allow-ips", "127.0.0.1"],
    ]


def worker(name: str, queues: Sequence[str], at_once: int) -> list[str]:
    """A Celery worker with threads."""
    return [
        *["-m", "celery", "-q", "-A", "heteroflow", "worker", "-n", f"{name}@%h", "-Q", ",".join(queues)],
        *["-P", "threads", "-c", str(at_once), *QUIET, "-l", "warning"],
    ]


def beat() -> list[str]:
    """Celery's beat without a file; a second one only means that a tick finds its lease taken."""
    return [
        *["-m", "celery", "-q", "-A", "heteroflow", "beat", "--scheduler", "celery.beat:Scheduler"],
        *["--max-interval", "1", "-l", "warning", "--pidfile="],
    ]


def stores(place: Place) -> list[Program]:
    """PostgreSQL and Redis."""
    return [
        cluster.server_program(place.programs.postgresql, place.cluster, place.postgres_port),
        Program(
            "redis",
            [str(place.redis_configuration)],
            {"PATH": os.environ.get("PATH", os.defpath), "DATA_DIR": str(place.root)},
            stop_s=5,
            executable=str(place.programs.redis),
        ),
    ]


def servers(place: Place, environ: Mapping[str, str], *, drain_s: float, at_once: int) -> list[Program]:
    """All our server processes."""
    seen = {name: value for name, value in environ.items() if name not in SUPERVISORS}
    # Celery warns of root with the same words at each start; a trial on one machine is mostly root's.
    seen.setdefault("PYTHONWARNINGS", "ignore:You're running the worker with superuser privileges")
    lines: list[tuple[str, list[str], float]] = []
    calls = {
        f"asgi-{number + 1}": {"GATEWAY_LISTEN": f"127.0.0.1:{port}"}
        for number, port in enumerate(place.gateway_ports)
    }
    for number in range(COPIES):
        lines += [
            (f"wsgi-{number + 1}", wsgi(place.wsgi_ports[number]), 12),
            (f"asgi-{number + 1}", asgi(place.asgi_ports[number], drain_s), drain_s + 3),
            (f"worker-{number + 1}", worker(f"worker-{number + 1}", ["ticks", "work"], at_once), 5),
            (f"scheduler-{number + 1}", worker(f"scheduler-{number + 1}", ["scheduling"], 1), 5),
            (f"beat-{number + 1}", beat(), 3),
        ]
    return [Program(name, line, seen | calls.get(name, {}), stop_s) for name, line, stop_s in lines]


def gateways(place: Place) -> dict[str, int]:
    """The port of each process that serves calls, by the name of its program."""
    return {f"asgi-{number + 1}": port for number, port in enumerate(place.asgi_ports)}


def front(place: Place) -> Program:
    """The front proxy."""
    return Program(
        "nginx",
        ["-e", "stderr", "-p", str(place.root / "nginx"), "-c", str(place.nginx_configuration)],
        {"PATH": os.environ.get("PATH", os.defpath)},
        stop_s=5,
        executable=str(place.programs.nginx),
    )


def agent(configuration: str, environ: Mapping[str, str], stop_s: float) -> Program:
    """The local node."""
    return Program(
        "agent", ["-m", "agent", "--config", configuration], agent_environment(dict(environ)), stop_s
    )
