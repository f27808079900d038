"""What the production profile refuses to start with (OPS-05): one sentence each, with the way out.

Pure. Knows values only; `settings/production.py` reads them. Never shows a secret.
"""

import base64
import binascii
from collections.abc import Iterator, Sequence
from urllib.parse import unquote, urlsplit

from apps.core.loopback import is_loopback

SECRET_KEY_LENGTH = 32
FERNET_BYTES = 32
# Words that stand in examples; a key with one of them was never made. None is so short that chance makes it.
EXAMPLES = ("change", "example", "insecure", "only-for-tests", "secret-key", "xxxxxxxx")
# What examples put where a password belongs, as the whole of it.
PLACEHOLDERS = ("password", "passwd", "pass", "secret")


def refusals(
    *,
    secret_key: str,
    encryption_keys: Sequence[str],
    debug: bool,
    allowed_hosts: Sequence[str],
    public_url: str,
    database_url: str,
    redis_url: str,
) -> Iterator[str]:
    """Each thing that is wrong, as a sentence for the operator."""
    yield from _refuse_secret_key(secret_key)
    yield from _refuse_encryption_keys(encryption_keys)
    if debug:
        yield "DEBUG is on, and error pages would show settings and code to anybody; leave it out."
    if not allowed_hosts:
        yield "ALLOWED_HOSTS is not set; name the hosts that people and nodes use, separated by commas."
    if "*" in allowed_hosts:
        yield "ALLOWED_HOSTS=* lets anybody choose the host of our links; name the hosts instead."
    yield from _refuse_public_url(public_url)
    yield from _refuse_store("DATABASE_URL", database_url, "postgres://USER:PASSWORD@HOST/NAME")
    yield from _refuse_store("REDIS_URL", redis_url, "redis://:PASSWORD@HOST/0")


def _refuse_secret_key(key: str) -> Iterator[str]:
    if not key:
        yield "SECRET_KEY is not set; give at least 32 random characters, or their file by SECRET_KEY_FILE."
    elif len(key) < SECRET_KEY_LENGTH or len(set(key)) < SECRET_KEY_LENGTH // 4:
        yield f"SECRET_KEY is too weak ({len(key)} characters); give at least 32 random ones."
    elif any(word in key.lower() for word in EXAMPLES):
        yield "SECRET_KEY is the one of an example; give at least 32 random characters."


def _refuse_encryption_keys(keys: Sequence[str]) -> Iterator[str]:
    if not keys:
        yield "ENCRYPTION_KEYS is not set; name at least one Fernet key, the newest first, with commas."
    for place, key in enumerate(keys, 1):
        if not _is_fernet_key(key):
            yield f"ENCRYPTION_KEYS: number {place} is no Fernet key (32 random bytes in URL-safe base64)."


def _is_fernet_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key, altchars=b"-_", validate=True)) == FERNET_BYTES
    except (ValueError, binascii.Error):
        return False


def _refuse_public_url(url: str) -> Iterator[str]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        yield f"PUBLIC_URL={url} is no address; give the one that people and nodes use, as https://HOST."
    elif parts.scheme == "http" and not is_loopback(parts.hostname):
        yield (
            f"PUBLIC_URL={url} would send passwords and node secrets in the clear; put a proxy with TLS in "
            "front and give its https:// address."
        )


def _refuse_store(name: str, url: str, form: str) -> Iterator[str]:
    """The address of PostgreSQL or Redis. One without a password is the network's business."""
    if not url:
        yield f"{name} is not set; give it as {form}, or a file of it by {name}_FILE."
        return
    try:
        password = unquote(urlsplit(url).password or "").lower()
    except ValueError:
        yield f"{name} is no address; give it as {form}, special characters in it as %xx."
        return
    if password.strip("<>{}[]$%*") in PLACEHOLDERS or any(word in password for word in EXAMPLES):
        yield f"{name} has the password of an example; give the one that was made for this server."
