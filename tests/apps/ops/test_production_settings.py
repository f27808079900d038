"""What the production profile refuses to start with, and where it takes its values from (OPS-05)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from heteroflow.refusals import refusals
from tests.architecture.tree import ROOT

pytestmark = pytest.mark.req("OPS-05")

FERNET = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
RANDOM = "kQ4vXo2mZr8sLw1yTn6bHd3jUf9cGe5pAi7x"
GOOD = {
    "secret_key": RANDOM,
    "encryption_keys": [FERNET],
    "debug": False,
    "allowed_hosts": ["flow.example.com"],
    "public_url": "https://flow.example.com",
    "database_url": f"postgres://user:{RANDOM}@db.example.com/name",
    "redis_url": f"redis://:{RANDOM}@redis.example.com/0",
}


def said(**changes: object) -> list[str]:
    return list(refusals(**(GOOD | changes)))  # type: ignore[arg-type]


def test_good_values_are_taken() -> None:
    assert said() == []
    assert said(public_url="http://127.0.0.1:8000") == []
    assert said(public_url="http://[::1]:8000") == []
    assert said(database_url="postgres:///name", redis_url="redis://exchange.example/0") == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"secret_key": ""}, "SECRET_KEY is not set"),
        ({"secret_key": RANDOM[:31]}, "SECRET_KEY is too weak (31 characters)"),
        ({"secret_key": "ab" * 30}, "SECRET_KEY is too weak"),
        ({"secret_key": "change-me-" + RANDOM}, "SECRET_KEY is the one of an example"),
        ({"secret_key": "only-for-tests-" + RANDOM}, "SECRET_KEY is the one of an example"),
        ({"encryption_keys": []}, "ENCRYPTION_KEYS is not set"),
        ({"encryption_keys": [FERNET, "c2hvcnQ="]}, "ENCRYPTION_KEYS: number 2 is no Fernet key"),
        ({"encryption_keys": ["not base64!"]}, "ENCRYPTION_KEYS: number 1 is no Fernet key"),
        ({"debug": True}, "DEBUG is on"),
        ({"allowed_hosts": []}, "ALLOWED_HOSTS is not set"),
        ({"allowed_hosts": ["*"]}, "ALLOWED_HOSTS=*"),
        ({"public_url": ""}, "PUBLIC_URL= is no address"),
        ({"public_url": "http://flow.example.com"}, "would send passwords and node secrets in the clear"),
        ({"public_url": "http://10.0.0.7"}, "would send passwords and node secrets in the clear"),
        ({"database_url": ""}, "DATABASE_URL is not set"),
        ({"database_url": "postgres://u:PASSWORD@h/n"}, "DATABASE_URL has the password of an example"),
        ({"database_url": "postgres://u:change-me@h/n"}, "DATABASE_URL has the password of an example"),
        ({"database_url": "postgres://u:%3Cpassword%3E@h/n"}, "DATABASE_URL has the password of an example"),
        ({"database_url": f"postgres://u:{RANDOM}[@h/n"}, "DATABASE_URL is no address"),
        ({"redis_url": ""}, "REDIS_URL is not set"),
        ({"redis_url": "redis://:PASSWORD@h/0"}, "REDIS_URL has the password of an example"),
        ({"redis_url": f"redis://:changeme{RANDOM}@h/0"}, "REDIS_URL has the password of an example"),
    ],
)
def test_each_is_refused_in_one_sentence(change: dict[str, object], named: str) -> None:
    sentences = said(**change)
    assert len(sentences) == 1
    assert named in sentences[0]
    assert RANDOM not in sentences[0], "a secret is not shown"


def start(tmp_path: Path, code: str, **changes: str | None) -> "subprocess.CompletedProcess[str]":
    """`manage.py` with the production settings and these variables; None leaves one out."""
    values = {
        "PATH": os.environ["PATH"],
        "DJANGO_SETTINGS_MODULE": "heteroflow.settings.production",
        "DATA_DIR": str(tmp_path),
        "SECRET_KEY": RANDOM,
        "ENCRYPTION_KEYS": FERNET,
        "ALLOWED_HOSTS": "flow.example.com",
        "PUBLIC_URL": "https://flow.example.com",
        "DATABASE_URL": "postgres://user:word@127.0.0.1:1/name",
        "REDIS_URL": "redis://127.0.0.1:1/0",
        **changes,
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={name: value for name, value in values.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=100,
    )


SHOW = """
import json
from django.conf import settings
database = settings.DATABASES["default"]
print(json.dumps({
    "secret_key": settings.SECRET_KEY, "password": database["PASSWORD"], "age": database["CONN_MAX_AGE"],
    "pool": database["OPTIONS"]["pool"],
    "cookies": [settings.SESSION_COOKIE_SECURE, settings.CSRF_COOKIE_SECURE],
    "hsts": settings.SECURE_HSTS_SECONDS, "debug": settings.DEBUG, "redis": settings.CELERY_BROKER_URL,
}))
"""


@pytest.mark.req("OPS-03")
def test_secrets_may_come_from_files(tmp_path: Path) -> None:
    for name, text in (
        ("key", RANDOM + "file"),
        ("database", "postgres://u:from-file@h/n"),
        ("redis", "redis://h:2"),
    ):
        (tmp_path / name).write_text(text)
    done = start(
        tmp_path,
        SHOW,
        SECRET_KEY=None,
        SECRET_KEY_FILE=str(tmp_path / "key"),
        DATABASE_URL=None,
        DATABASE_URL_FILE=str(tmp_path / "database"),
        REDIS_URL=None,
        REDIS_URL_FILE=str(tmp_path / "redis"),
        DB_POOL_MAX="7",
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert (shown["secret_key"], shown["password"], shown["redis"]) == (
        RANDOM + "file",
        "from-file",
        "redis://h:2",
    )
    assert (shown["age"], shown["pool"]["max_size"]) == (0, 7)
    assert shown["cookies"] == [True, True]
    assert shown["hsts"] > 0
    assert shown["debug"] is False


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("SECRET_KEY", None, "SECRET_KEY is not set"),
        ("ENCRYPTION_KEYS", None, "ENCRYPTION_KEYS is not set"),
        ("DEBUG", "true", "DEBUG is on"),
        ("DATABASE_URL", None, "DATABASE_URL is not set"),
        ("DATABASE_URL", "sqlite:///x.sqlite3", "DATABASE_URL must begin with postgres://"),
        ("REDIS_URL", None, "REDIS_URL is not set"),
        ("REDIS_URL", "redis://:PASSWORD@127.0.0.1:6379/0", "REDIS_URL has the password of an example"),
    ],
)
def test_manage_py_says_one_sentence_and_ends(
    tmp_path: Path, name: str, value: str | None, named: str
) -> None:
    code = "import sys; sys.argv = ['manage.py', 'check']; import manage; manage.main()"
    done = start(tmp_path, code, **{name: value})
    assert done.returncode != 0
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
