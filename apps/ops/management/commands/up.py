"""`manage.py up`: everything on this machine, in one command (`make run`).

The checks before Django's settings are in apps/ops/prelaunch.py, which manage.py runs first.
"""

import os
import sys
import threading
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connections

from apps.core.clock import utc_now
from apps.ops import docker_run, first_start, greeting, prelaunch
from apps.ops.agent_environment import agent_environment
from apps.ops.children import Child, Program
from apps.ops.demo_run import DemoRun
from apps.ops.draining import drain_gateways
from apps.ops.engine_ports import hold_range
from apps.ops.layout import Layout
from apps.ops.preflight import NotReady
from apps.ops.rest import Api
from apps.ops.supervisor import Printer, Stage, Supervisor
from apps.tenants.scope import viewer_of


class Command(BaseCommand):
    help = "Starts server, loops and a local node, and serves a demo model."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--no-demo", action="store_true", help="start empty: no demo tenant, no service")
        parser.add_argument("--model", type=Path, help="serve this GGUF file as the demo instead")

    def handle(self, *args: Any, **options: Any) -> None:
        if not prelaunch.held_locks:
            raise CommandError("Start it as: python manage.py up")
        say = Printer()
        layout = Layout(Path(os.environ["DATA_DIR"]))
        host, port = os.environ["HOST"], int(os.environ["PORT"])
        base_url = f"http://{prelaunch.LOCAL_ADDRESS[host]}:{port}"
        try:
            self.runtime = docker_run.chosen(os.environ)
            self.port_guard, engine_ports = hold_range(port)  # open as long as this process lives
        except NotReady as refusal:
            raise CommandError(str(refusal)) from None
        say("Preparing the database ...")
        try:
            people, demo = self.prepare(layout, base_url, engine_ports, options)
        except NotReady as refusal:
            raise CommandError(str(refusal)) from None
        except (DatabaseError, OSError) as error:
            raise CommandError(first_start.explain(error, layout)) from None
        for line in greeting.sign_in_lines(base_url, people):
            say(line)
        if demo is None and not options["no_demo"]:
            say("No demo model is installed, so it starts empty; `make install` brings it.")
        connections.close_all()  # from here on the server process alone writes
        self.supervise(say, layout, host, port, base_url, demo)

    def prepare(
        self, layout: Layout, base_url: str, engine_ports: tuple[int, int], options: dict[str, Any]
    ) -> tuple[greeting.People, DemoRun | None]:
        """Database, operator, local agent, demo. Raises NotReady, DatabaseError or OSError."""
        first_start.migrate()
        operator, password = first_start.ensure_operator()
        first_start.ensure_agent(
            layout,
            operator=viewer_of(operator),
            server_url=base_url,
            ports=engine_ports,
            now=utc_now(),
            runtime=self.runtime,
        )
        people = greeting.People(operator.username, password, make_with=prelaunch.named_data_dir(layout.root))
        if options["no_demo"]:
            return people, None
        return people, DemoRun.prepare(base_url, layout, people, options["model"])

    def supervise(
        self, say: Printer, layout: Layout, host: str, port: int, base_url: str, demo: DemoRun | None
    ) -> None:
        api = Api(base_url, timeout_s=2.0)
        server = Program(
            "server",
            ["manage.py", "serve", "--host", host, "--port", str(port)],
            dict(os.environ),
            stop_s=settings.DRAIN_S + 3,
        )
        agent = Program(
            "agent",
            ["-m", "agent", "--config", str(layout.agent_config)],
            agent_environment(dict(os.environ)),
            stop_s=settings.AGENT_STOP_S,
        )
        serving = Child(server, os.getpid(), say)
        supervisor = Supervisor(
            [
                Stage(
                    [serving],
                    ready=lambda: api.answers("/readyz"),
                    drain=lambda hurry: drain_gateways([(serving, api)], settings.DRAIN_S, hurry),
                ),
                Stage([Child(agent, os.getpid(), say)]),
            ]
        )
        supervisor.take_signals()
        if demo is not None:
            threading.Thread(
                target=demo.run, args=(say, supervisor.stop, settings.DEMO_WAIT_S), daemon=True
            ).start()
        supervisor.run()
        say("Stopped.")
        sys.stdout.flush()
        os._exit(0)  # a demo thread in the middle of a request must not hold up the end
