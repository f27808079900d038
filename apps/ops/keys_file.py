"""The embedded profile's keys: made once, kept in DATA_DIR/secrets.json with mode 0600.

Runs before Django's settings are read, so standard library only. Never prints or changes a key.
"""

import base64
import binascii
import json
import os
import secrets
from pathlib import Path
from typing import Any

from apps.ops.preflight import NotReady

FERNET_BYTES = 32


def ensure_keys(data_dir: Path) -> Path:
    """Make the file unless it is there; whole or not at all, also when two starts race.

    Raises NotReady where the file that is there holds no usable keys: new ones would leave all that
    was encrypted closed for ever.
    """
    target = data_dir / "secrets.json"
    if target.exists():
        _check(target)
        return target
    part = data_dir / f".secrets.{os.getpid()}"
    keys = {
        "secret_key": secrets.token_urlsafe(64),
        # A Fernet key: 32 random bytes, in base64's URL alphabet.
        "encryption_keys": [base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()],
    }
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(keys, file)
            file.flush()
            os.fsync(file.fileno())
        os.link(part, target)
    except FileExistsError:
        pass  # another start was first; its keys count
    finally:
        part.unlink()
    return target


def _check(file: Path) -> None:
    try:
        stored = json.loads(file.read_text())
        keys = stored["encryption_keys"]
        usable = (
            bool(stored["secret_key"])
            and bool(keys)
            and all(len(base64.b64decode(key, altchars=b"-_", validate=True)) == FERNET_BYTES for key in keys)
        )
    except (OSError, ValueError, TypeError, KeyError, binascii.Error):
        usable = False
    if not usable:
        raise NotReady(
            f"{file} holds no usable keys (it is damaged or can not be read); put it back from a backup, or "
            "start with another DATA_DIR=: without its keys, what the database keeps encrypted stays closed."
        )


def read_keys(data_dir: Path) -> dict[str, Any]:
    """`secret_key` and `encryption_keys` of a file that `ensure_keys` has made or checked."""
    stored: dict[str, Any] = json.loads((data_dir / "secrets.json").read_text())
    return stored
