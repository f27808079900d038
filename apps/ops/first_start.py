"""What the embedded profile needs in the database and on the disk before its children start.

Repeatable: what is there stays. Owns the operator's first password, the local agent's settings and
its join token. The password is returned once and only its hash is stored.
"""

import json
import secrets
from datetime import datetime
from pathlib import Path
from typing import Any

from django.core.management import CommandError, call_command
from django.db import DatabaseError

from apps.fleet import services as fleet
from apps.ops.layout import Layout
from apps.ops.preflight import NotReady
from apps.tenants import services as tenants
from apps.tenants.models import User
from apps.tenants.scope import Viewer

OPERATOR = "admin"
JOIN_TOKEN_TTL_S = 3600
# What SQLite says, and the way out.
DATABASE_FAULTS = {
    "locked": "another program holds it; end that one and start again",
    "full": "the disk is full; free some space and start again",
    "readonly": "it can not be written; make it writable for this user, or choose another DATA_DIR=",
    "not a database": "it is damaged; put it back from a backup, or choose another DATA_DIR=",
    "malformed": "it is damaged; put it back from a backup, or choose another DATA_DIR=",
}


def new_password() -> str:
    """96 random bits in letters, digits, hyphen and underscore."""
    return secrets.token_urlsafe(12)


def migrate() -> None:
    """Bring the database to the present schema. Raises NotReady where it can not be brought there."""
    try:
        call_command("migrate", verbosity=0, interactive=False)
    except CommandError as error:
        raise NotReady(str(error)) from None


def ensure_operator() -> tuple[User, str | None]:
    """The first operator, and the password when it was made just now."""
    found = User.objects.filter(username=OPERATOR).first()
    if found is not None:
        return found, None
    password = new_password()
    return tenants.create_user(username=OPERATOR, password=password, is_operator=True), password


def ensure_agent(
    layout: Layout,
    *,
    operator: Viewer,
    server_url: str,
    ports: tuple[int, int],
    now: datetime,
    runtime: dict[str, Any] | None = None,
    server_sha256: str = "",
) -> None:
    """Write the local agent's settings, and a join token unless it has joined already.

    `runtime` holds the settings of another runtime than local processes; `server_sha256` is the
    fingerprint of the server's certificate, where it made its own.
    """
    layout.agent_state.mkdir(mode=0o700, parents=True, exist_ok=True)
    layout.models.mkdir(mode=0o700, parents=True, exist_ok=True)
    joined = _joined(layout.agent_state / "identity.json")
    if not joined:
        _, token = fleet.create_join_token(actor=operator, ttl_s=JOIN_TOKEN_TTL_S, now=now)
        _write(layout.join_token, token)
    settings = {
        "server_url": server_url,
        "server_sha256": server_sha256,
        "state_dir": str(layout.agent_state),
        "join_token_file": str(layout.join_token),
        **(runtime or {"runtime": "process"}),
        "allowed_volume_prefixes": [str(layout.models)],
        "relative_model_root": str(layout.models),
        "port_range": list(ports),
    }
    # JSON's strings, numbers and lists are TOML's too.
    _write(
        layout.agent_config, "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    )


def explain(error: DatabaseError | OSError, layout: Layout) -> str:
    """One sentence for what went wrong with the database or the data directory, with the way out."""
    if isinstance(error, OSError):
        return f"{error.filename or layout.root} can not be used: {error.strerror}; choose another DATA_DIR=."
    words = str(error)
    way_out = next((way for sign, way in DATABASE_FAULTS.items() if sign in words), None)
    return (
        f"The database {layout.database} can not be used ({words}): "
        f"{way_out or 'look after that file, or choose another DATA_DIR='}."
    )


def _joined(identity: Path) -> bool:
    """Raises NotReady where the file is damaged: a new identity would make another node of this one."""
    if not identity.exists():
        return False
    try:
        return bool(json.loads(identity.read_text())["node_id"])
    except (ValueError, KeyError, TypeError):
        raise NotReady(
            f"{identity} is damaged, so the local node can not prove who it is; put it back from a backup, "
            "or remove it, and the node joins anew."
        ) from None


def _write(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    part.touch(mode=0o600)
    part.write_text(text)
    part.replace(path)
