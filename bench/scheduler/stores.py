"""PostgreSQL and Redis of the production profile for the time of a run, as `make run-production` starts them,
and this process's Django on them. Everything lies in a folder that is gone afterwards.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from apps.ops.production import kept
from bench.processes import free_port

ROOT = Path(__file__).resolve().parents[2]
READY_S = 120.0
STOP_S = 60.0
SAYS = "PostgreSQL and Redis run."


@contextmanager
def running_stores() -> Iterator[None]:
    """Django is set up on an empty, migrated database. Ends the program where the stores do not come up."""
    with tempfile.TemporaryDirectory(prefix="heteroflow-scheduler-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # PostgreSQL's account passes through
        os.environ["DATA_DIR"] = name
        env = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
        env |= {"PORT": str(free_port()), "HOST": "127.0.0.1", "RUNTIME": "process", "DATA_DIR": name}
        log = folder / "log"
        with log.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "manage.py", "run-production", "--stores-only"],
                cwd=ROOT,
                env=env,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            _await(process, log)
            _set_up()
            yield
        finally:
            process.terminate()
            process.wait(STOP_S)


def _await(process: subprocess.Popen[bytes], log: Path) -> None:
    give_up_at = time.monotonic() + READY_S
    while SAYS not in log.read_text():
        if process.poll() is not None or time.monotonic() > give_up_at:
            raise SystemExit(f"the stores do not come up:\n{log.read_text()[-2000:]}")
        time.sleep(0.1)


def _set_up() -> None:
    kept.take(os.environ)
    os.environ["DJANGO_SETTINGS_MODULE"] = "heteroflow.settings.production"
    import django
    from django.core.management import call_command

    import heteroflow.celery  # noqa: F401  # hints go to this broker

    django.setup()
    call_command("migrate", verbosity=0)
