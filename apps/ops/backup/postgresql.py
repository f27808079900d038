"""PostgreSQL's copy and its way back: pg_dump, and pg_restore's script in one transaction of psql.

The present rows go, the copy's come and are settled in that one transaction: a restore that fails or
is killed leaves the database as it was, and nothing to clear away. The password is in the programs'
environment, never in a command line.
"""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psycopg
from psycopg.conninfo import make_conninfo

from apps.ops.preflight import NotReady
from apps.ops.production.packages import find_client

CHUNK = 1024 * 1024
# Written by a pg_restore from 17 on, and unknown to a server before it.
NEWER_SETTING, KNOWN_FROM = b"SET transaction_timeout = 0;\n", 17
# How libpq's environment names what may stand behind the `?` of DATABASE_URL.
OPTIONS = {name: f"PG{name.upper()}" for name in ("sslmode", "sslrootcert", "sslcert", "sslkey")}
# One role owns what is in the schema; the schema itself may be another's (up to PostgreSQL 14 it is).
EMPTY = """
SET LOCAL lock_timeout = '10s';
SET LOCAL client_min_messages = warning;
DO $$
DECLARE one record;
BEGIN
  FOR one IN
    SELECT CASE relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' WHEN 'S' THEN 'SEQUENCE'
           ELSE 'TABLE' END AS kind, relname
    FROM pg_catalog.pg_class c
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'S')
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')
    ORDER BY relkind = 'S'  -- most go with their tables
  LOOP
    EXECUTE format('DROP %s IF EXISTS public.%I CASCADE', one.kind, one.relname);
  END LOOP;
END
$$;
"""


def connect(database: Mapping[str, Any]) -> "psycopg.Connection[Any]":
    """A connection of our own, beside Django's. Raises NotReady."""
    given = {
        "host": database.get("HOST"),
        "port": database.get("PORT"),
        "user": database.get("USER"),
        "password": database.get("PASSWORD"),
        **_options(database),
    }
    known = {name: str(value) for name, value in given.items() if value}
    try:
        return psycopg.connect(make_conninfo(**known, dbname=str(database["NAME"]), connect_timeout=5))
    except psycopg.Error as error:
        raise NotReady(f"PostgreSQL does not answer: {' '.join(str(error).split())}") from None


def require_client(database: Mapping[str, Any]) -> int:
    """The major version of the programs. Raises NotReady where they are missing or older than the server,
    whose rows they could not be trusted with."""
    with connect(database) as link:
        server = link.info.server_version // 10000
    client = _version_of("pg_dump")
    if client < server:
        raise NotReady(
            f"The server is PostgreSQL {server}, and pg_dump, pg_restore and psql are of version {client}, "
            f"which is too old for it; install the newer ones (apt-get install postgresql-client-{server}), "
            f"or run this where they are."
        )
    return client


def dump(database: Mapping[str, Any], target: Path) -> None:
    """Write all rows as of one moment into `target`. Raises NotReady."""
    more = ["--format=custom", "--no-owner", "--no-privileges", "--no-comments", f"--file={target}"]
    _run("pg_dump", more, _environment(database))


def check(source: Path) -> None:
    """Raises NotReady where the copy's list of contents can not be read."""
    _run("pg_restore", ["--list", str(source)], _environment(None))


def load(database: Mapping[str, Any], source: Path, settling: Sequence[str]) -> None:
    """One transaction: what is there goes, the copy comes, `settling` runs. Raises NotReady."""
    with connect(database) as link:
        server = link.info.server_version // 10000
    script = ["--no-owner", "--no-privileges", "--no-comments", "--file=-", str(source)]
    quiet = ["--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--output=/dev/null", "--file=-"]
    with (
        subprocess.Popen(  # noqa: S603
            [find("psql"), *quiet],
            env=_environment(database),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as taker,
        subprocess.Popen(  # noqa: S603
            [find("pg_restore"), *script],
            env=_environment(None),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as giver,
    ):
        assert taker.stdin and taker.stderr and giver.stdout and giver.stderr
        try:
            taker.stdin.write(f"BEGIN;{EMPTY}".encode())
            _pass_on(giver.stdout, taker.stdin, server)
            # Without this last word, psql finds the end of its input and PostgreSQL takes all back.
            if giver.wait() == 0:
                end = ["SET LOCAL search_path TO public", *settling, "COMMIT"]
                taker.stdin.write("".join(f"{statement};\n" for statement in end).encode())
            taker.stdin.close()
        except BrokenPipeError:  # psql has ended; it says why
            giver.kill()
            with suppress(BrokenPipeError):
                taker.stdin.close()
        said = taker.stderr.read()
        if taker.wait() != 0:
            raise NotReady(_failed("psql", said))
        if giver.wait() != 0:
            raise NotReady(_failed("pg_restore", giver.stderr.read()))


def _pass_on(source: IO[bytes], target: IO[bytes], server: int) -> None:
    """The script, chunk by chunk; its first lines set what a server of this version knows."""
    chunk = source.read(CHUNK)
    if server < KNOWN_FROM:
        chunk = chunk.replace(NEWER_SETTING, b"", 1)
    while chunk:
        target.write(chunk)
        chunk = source.read(CHUNK)
    target.flush()


def find(program: str) -> str:
    """The newest of PostgreSQL's client programs with this name. Raises NotReady."""
    found = find_client(program, os.environ.get("PATH", os.defpath))
    if found is None:
        raise NotReady(f"{program} is not installed; install it by: apt-get install postgresql-client")
    return str(found)


def _version_of(program: str) -> int:
    said = _run(program, ["--version"], _environment(None))
    number = re.search(r"\(PostgreSQL\) (\d+)", said)
    if number is None:
        raise NotReady(f"{program} does not tell its version; it says: {said.strip()[:100]}")
    return int(number[1])


def _environment(database: Mapping[str, Any] | None) -> dict[str, str]:
    kept = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}
    if database is None:
        return kept
    return kept | {
        "PGHOST": str(database.get("HOST") or ""),
        "PGPORT": str(database.get("PORT") or 5432),
        "PGUSER": str(database.get("USER") or ""),
        "PGPASSWORD": str(database.get("PASSWORD") or ""),
        "PGDATABASE": str(database["NAME"]),
        "PGCONNECT_TIMEOUT": "5",
        **{OPTIONS[name]: value for name, value in _options(database).items()},
    }


def _options(database: Mapping[str, Any]) -> dict[str, str]:
    given = database.get("OPTIONS") or {}
    return {name: str(given[name]) for name in OPTIONS if name in given}


def _run(program: str, arguments: list[str], environment: Mapping[str, str]) -> str:
    """What it prints. Raises NotReady with its last word."""
    done = subprocess.run(  # noqa: S603
        [find(program), *arguments], env=environment, capture_output=True, check=False
    )
    if done.returncode != 0:
        raise NotReady(_failed(program, done.stderr))
    return done.stdout.decode(errors="replace")


def _failed(program: str, said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines() or ["no reason given"]
    named = [line for line in lines if "error:" in line.lower()]  # after it come its place and context
    return f"{program} failed: {(named or lines)[-1]}"
