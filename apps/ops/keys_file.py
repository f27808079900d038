"""The embedded profile's keys: made once, kept in DATA_DIR/secrets.json with mode 0600.

Runs before Django's settings are read, so standard library only. Never prints or changes a key.
"""

import base64
import json
import os
import secrets
from pathlib import Path


def ensure_keys(data_dir: Path) -> Path:
    """Make the file unless it is there; whole or not at all, also when two starts race."""
    target = data_dir / "secrets.json"
    if target.exists():
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
