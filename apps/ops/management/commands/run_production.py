"""`manage.py run_production`: the production profile on this machine, to try and test it whole
(`make run-production`).

The checks before Django's settings are in apps/ops/production/prelaunch.py, which manage.py runs first.
"""

import os
import shlex
import sys
import threading
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import psycopg
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connection
from psycopg import sql
from psycopg.conninfo import make_conninfo
from redis import Redis
from redis.exceptions import RedisError

from apps.core.clock import utc_now
from apps.ops import first_start, greeting
from apps.ops.children import Child, Program
from apps.ops.demo_run import DemoRun
from apps.ops.draining import drain_gateways
from apps.ops.engine_ports import hold_range
from apps.ops.layout import Layout
from apps.ops.preflight import NotReady
from apps.ops.production import parts, prelaunch
from apps.ops.production.prelaunch import Place
from apps.ops.rest import Api
from apps.ops.supervisor import Printer, Stage, Supervisor
from apps.tenants.scope import viewer_of


class Command(BaseCommand):
    help = "Starts PostgreSQL, Redis, two of each server process, a front proxy with TLS and a local node."
    requires_system_checks = ()  # its database is not there yet

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--no-demo", action="store_true", help="start empty: no demo tenant, no service")
        parser.add_argument(
            "--stores-only", action="store_true", help="PostgreSQL and Redis alone, for a restore"
        )
        parser.add_argument("--model", type=Path, help="serve this GGUF file as the demo instead")

    def handle(self, *args: Any, **options: Any) -> None:
        if not prelaunch.prepared:
            raise CommandError("Start it as: python manage.py run_production")
        place, self.say = prelaunch.prepared[0], Printer()
        self.layout, self.base_url = Layout(place.root), os.environ["LOCAL_URL"]
        self.options = options
        try:
            self.port_guard, self.engine_ports = hold_range(int(os.environ["PORT"]))
        except NotReady as refusal:
            raise CommandError(str(refusal)) from None
        servers = parts.servers(place, os.environ, drain_s=settings.DRAIN_S, at_once=settings.TICKS_AT_ONCE)
        node = parts.agent(str(self.layout.agent_config), os.environ, settings.AGENT_STOP_S)
        api = Api(self.base_url, timeout_s=2.0)
        serving = self._children(servers)
        gateways = [
            (child, direct(port))
            for name, port in parts.gateways(place).items()
            for child in serving
            if child.program.name == name
        ]
        stores = Stage(self._children(parts.stores(place)), ready=stores_answer)
        stages = [
            stores,
            Stage(
                serving,
                prepare=lambda: self._prepare(place),
                ready=lambda: servers_answer(place),
                drain=lambda hurry: drain_gateways(gateways, settings.DRAIN_S, hurry),
            ),
            Stage(self._children([parts.front(place)]), ready=lambda: api.answers("/readyz")),
            Stage(self._children([node])),
        ]
        if options["stores_only"]:
            stages = [stores, Stage([], prepare=lambda: self._tell_of_stores(place))]
        self.supervisor = Supervisor(stages)
        self.supervisor.take_signals()
        self.say("Starting PostgreSQL and Redis ...")
        try:
            self.supervisor.run()
        except (NotReady, OSError, DatabaseError) as error:
            raise CommandError(f"It could not be started: {error}") from None
        self.say("Stopped.")
        sys.stdout.flush()
        os._exit(0)  # a demo thread in the middle of a request must not hold up the end

    def _children(self, programs: list[Program]) -> list[Child]:
        return [Child(program, os.getpid(), self.say) for program in programs]

    def _tell_of_stores(self, place: Place) -> None:
        """The database is there, empty or not, and how to restore into it is said."""
        ensure_database()
        folder = shlex.quote(str(place.root))
        self.say(
            "PostgreSQL and Redis run. Restore in another terminal: "
            f"DATA_DIR={folder} .venv/bin/python manage.py restore FILE"
        )

    def _prepare(self, place: Place) -> None:
        """Database, operator, local agent, demo. Raises NotReady, DatabaseError or OSError."""
        self.say("Preparing the database ...")
        ensure_database()
        first_start.migrate()
        operator, password = first_start.ensure_operator()
        first_start.ensure_agent(
            self.layout,
            operator=viewer_of(operator),
            server_url=self.base_url,
            server_sha256=place.fingerprint,
            ports=self.engine_ports,
            now=utc_now(),
            runtime=place.runtime,
        )
        people = greeting.People(operator.username, password, make_with=f"DATA_DIR={place.root}")
        for line in greeting.sign_in_lines(self.base_url, people):
            self.say(line)
        self.say(f"Certificate (self-made): export SSL_CERT_FILE={place.certificate}")
        demo = None
        if not self.options["no_demo"]:
            made, model = str(place.certificate), self.options["model"]
            demo = DemoRun.prepare(self.base_url, self.layout, people, model, made)
        connection.close()
        pooled: Any = connection  # PostgreSQL's, by the production settings
        pooled.close_pool()  # from here on the server processes alone write
        if demo is not None:
            arguments = (self.say, self.supervisor.stop, settings.DEMO_WAIT_S)
            threading.Thread(target=demo.run, args=arguments, daemon=True).start()


def stores_answer() -> bool:
    """Whether PostgreSQL takes connections and Redis answers."""
    try:
        maintenance().close()
        with Redis.from_url(os.environ["REDIS_URL"], socket_timeout=1, socket_connect_timeout=1) as redis:
            return bool(redis.ping())
    except (psycopg.Error, RedisError):
        return False


def servers_answer(place: Place) -> bool:
    """Whether every web process can serve."""
    ports = [*place.wsgi_ports, *place.asgi_ports]
    return all(direct(port).answers("/readyz") for port in ports)


def direct(port: int) -> Api:
    """A web process of this machine, past the front proxy."""
    return Api(f"http://127.0.0.1:{port}", timeout_s=2.0)


def ensure_database() -> None:
    """Make our database in the cluster unless it is there."""
    with maintenance() as link:
        if (
            link.execute("SELECT 1 FROM pg_database WHERE datname = %s", [prelaunch.DATABASE]).fetchone()
            is None
        ):
            link.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(prelaunch.DATABASE)))


def maintenance() -> "psycopg.Connection[Any]":
    """A connection to the cluster's own database. Raises psycopg.Error."""
    address = make_conninfo(os.environ["DATABASE_URL"], dbname="postgres", connect_timeout=2)
    return psycopg.connect(address, autocommit=True)
