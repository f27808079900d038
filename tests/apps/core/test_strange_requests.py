"""What the framework itself turns away is one line in the log, however it was made."""

import io
import logging

import pytest
from django.conf import settings
from django.test import Client
from django.utils.module_loading import import_string


@pytest.fixture
def logged():
    """What the handler of the settings would write."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    for name in settings.LOGGING["handlers"]["console"]["filters"]:
        handler.addFilter(import_string(settings.LOGGING["filters"][name]["()"])())
    handler.setFormatter(logging.Formatter(settings.LOGGING["formatters"]["line"]["format"]))
    root = logging.getLogger()
    root.addHandler(handler)
    yield stream
    root.removeHandler(handler)


@pytest.mark.req("OPS-04")
@pytest.mark.parametrize("host", ["evil.example", "x" * 5000, "a b", "evil.example\u00e9"])
def test_a_strange_host_is_one_short_warning(host, logged):
    answer = Client(raise_request_exception=False).get("/sign-in/", headers={"Host": host})
    assert answer.status_code == 400
    lines = [line for line in logged.getvalue().splitlines() if "HTTP_HOST" in line]
    assert len(lines) == 1 and " WARNING " in lines[0] and len(lines[0]) < 500
    assert "Traceback" not in logged.getvalue()
