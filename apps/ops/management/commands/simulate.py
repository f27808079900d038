"""`manage.py simulate FLEET WORKLOAD`: what the scheduler would do, on paper (SCHED-15). No database."""

import json
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from apps.core import texts
from apps.fleet.selectors import inference_cap
from apps.scheduling.selectors import reserve, thresholds
from apps.scheduling.simulation.files import TEN_YEARS_S, BadFile
from apps.scheduling.simulation.fleet import read_fleet
from apps.scheduling.simulation.replay import DecisionFailed, Replay, Rules
from apps.scheduling.simulation.report import report
from apps.scheduling.simulation.table import tables
from apps.scheduling.simulation.workload import read_workload


def rules() -> Rules:
    """As this installation is set."""
    return Rules(
        reserve=reserve(),
        thresholds=thresholds(),
        weights=settings.SCHEDULING_WEIGHTS,
        fair_share=settings.FAIR_SHARE,
        period_s=settings.SCHEDULING_PERIOD_S,
        silent_s=settings.NODE_SILENT_S,
        stop_s=settings.STOP_GRACE_S,
        hold_s=settings.PREEMPTION_HOLD_S,
        pause_s=settings.PREEMPTION_PAUSE_S,
        loan_max_s=settings.LOAN_MAX_S,
    )


def seconds(text: str) -> float:
    """A number of seconds. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= TEN_YEARS_S:
        raise ArgumentTypeError(f"{text} is no number of seconds from 0 to {TEN_YEARS_S:.0f}")
    return value


class Command(BaseCommand):
    help = "Replays a workload file against a fleet file with the scheduler's own decision."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("fleet", type=Path, help="YAML or JSON; see docs/simulate.md")
        parser.add_argument("workload", type=Path)
        parser.add_argument("--json", action="store_true", help="everything, as JSON")
        parser.add_argument("--until", type=seconds, metavar="SECONDS", help="stop there")
        parser.add_argument("--seed", type=int, help="of draws, instead of the workload file's")

    def handle(self, *args: Any, **options: Any) -> None:
        began = time.monotonic()
        try:
            fleet = read_fleet(options["fleet"], inference_cap)
            workload = read_workload(options["workload"], options["seed"])
        except BadFile as error:
            raise CommandError(str(error)) from None
        until = workload.until_s if options["until"] is None else options["until"]
        replay = Replay(fleet, workload, rules())
        try:
            record = replay.run(until)
        except DecisionFailed as error:
            raise CommandError(str(error)) from error
        found = report(fleet, workload, record, replay.places)
        if options["json"]:
            self.stdout.write(json.dumps(found, indent=1, ensure_ascii=False))
            return
        self.stdout.write(tables(found, texts.say))
        print(f"{time.monotonic() - began:.1f} s", file=sys.stderr)
