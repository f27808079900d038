"""Secrets: encryption at rest, hashing of credentials, keys derived for engines.

Owns OPS-08 and the arithmetic of TEN-06 and AGENT-17. Never logs, never stores a plain value.
"""

import base64
import hashlib
import hmac
import secrets as random_source
import uuid
from functools import lru_cache

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings


class SecretUnreadable(Exception):
    """No configured key opens the stored value: a key is missing from HETEROFLOW_ENCRYPTION_KEYS."""


@lru_cache(maxsize=4)
def _box(keys: tuple[str, ...]) -> MultiFernet:
    return MultiFernet([Fernet(key) for key in keys])


def encrypt(plain: str) -> str:
    """Encrypt with the newest key."""
    return _box(tuple(settings.ENCRYPTION_KEYS)).encrypt(plain.encode()).decode()


def decrypt(stored: str) -> str:
    """Open a stored value with any configured key. Raises SecretUnreadable."""
    try:
        return _box(tuple(settings.ENCRYPTION_KEYS)).decrypt(stored.encode()).decode()
    except InvalidToken:
        raise SecretUnreadable("no configured encryption key opens this value") from None


def rotate(stored: str) -> str:
    """Encrypt a stored value anew with the newest key. Raises SecretUnreadable."""
    return encrypt(decrypt(stored))


def sha256_hex(text: str) -> str:
    """What the database keeps of a key, a token or a node secret: 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def new_api_key() -> str:
    """A gateway key, `sk-` and a random UUID (TEN-06)."""
    return f"sk-{uuid.UUID(bytes=random_source.token_bytes(16), version=4)}"


def display_prefix(key: str) -> str:
    """The part of a key that may be shown: `sk-` and eight characters."""
    return key[:11]


def new_token(prefix: str) -> str:
    """A one-time token with 256 random bits."""
    return prefix + random_source.token_urlsafe(32)


def derive_engine_key(task_id: str, attempt: int) -> str:
    """The key of one attempt's engine (AGENT-17): derived, so that it rests nowhere."""
    digest = hmac.new(settings.SECRET_KEY.encode(), f"engine:{task_id}:{attempt}".encode(), hashlib.sha256)
    return "ek-" + base64.urlsafe_b64encode(digest.digest()[:24]).decode()
