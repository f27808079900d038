"""LOG_FORMAT=json: one masked object a line, with the request it belongs to (OPS-04)."""

import json
import logging
import os
import subprocess
import sys

import pytest

from apps.core.json_log import JsonLines
from apps.core.masking import MaskSecrets
from apps.core.requests import AddRequestId, request_id
from tests.stack import ROOT

pytestmark = pytest.mark.req("OPS-04")
SECRET = "sk-12345678-1234-4234-8234-123456789012"


@pytest.fixture
def lines():
    """A logger as the settings make it, and what it wrote."""
    written: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(self.format(record))

    handler = Kept()
    handler.setFormatter(JsonLines())
    for one in (MaskSecrets(), AddRequestId()):
        handler.addFilter(one)
    logger = logging.getLogger("tests.json_log")
    logger.addHandler(handler)
    yield written
    logger.removeHandler(handler)


def test_a_line_is_one_object(lines: list[str]) -> None:
    token = request_id.set("req-of-this-test")
    logging.getLogger("tests.json_log").warning("two\nlines of %s", "an event")
    request_id.reset(token)
    logging.getLogger("tests.json_log").error("no request")
    first, second = (json.loads(line) for line in lines)
    assert "\n" not in lines[0]
    assert first.pop("timestamp").endswith("Z")
    assert first == {
        "event": "two\nlines of an event",
        "level": "warning",
        "logger": "tests.json_log",
        "request_id": "req-of-this-test",
    }
    assert "request_id" not in second


def test_tracebacks_are_in_it_and_secrets_are_not(lines: list[str]) -> None:
    try:
        raise RuntimeError(f"refused for {SECRET}")
    except RuntimeError:
        logging.getLogger("tests.json_log").exception("failed with %s", SECRET)
    assert SECRET not in lines[0]
    read = json.loads(lines[0])
    assert "RuntimeError: refused for sk-12345678***" in read["exception"]
    assert "Traceback" in read["exception"]


def test_the_setting_chooses_it() -> None:
    code = (
        "import django, logging; django.setup();"
        " logging.getLogger('heteroflow.x').warning('said'); logging.getLogger('heteroflow.x').info('too')"
    )
    environment = {**os.environ, "LOG_FORMAT": "json", "DJANGO_SETTINGS_MODULE": "heteroflow.settings.test"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == ["said", "too"]
