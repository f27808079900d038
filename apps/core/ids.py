"""Public ids: a prefix that names the kind, then 80 random bits in lower-case base32.

Imports no Django, so that agent-side and simulated code may use it.
"""

import base64
import re
import secrets

PREFIXES = {
    "tenant": "ten-",
    "user": "usr-",
    "key": "key-",
    "group": "tg-",
    "task": "task-",
    "endpoint": "ep-",
    "route": "mr-",
    "external": "ext-",
    "node": "node-",
    "job": "job_",
    "join_token": "jt-",
    "model": "mdl-",
    "alert": "alr-",
    "webhook": "whk-",
    "delivery": "dlv-",
    "link": "lnk-",
    "session": "ses-",
    "file_request": "fr-",
}

_SHAPE = re.compile(r"^[a-z]{1,8}[-_][a-z2-7]{16}\Z")


def new_id(kind: str) -> str:
    """A fresh id for a kind of PREFIXES, e.g. `tg-k3m5q7...` (SVC-01).

    Raises KeyError for a kind that has no prefix.
    """
    return PREFIXES[kind] + base64.b32encode(secrets.token_bytes(10)).decode().lower()


def looks_like_id(text: str) -> bool:
    """Whether a text has the shape of a public id; says nothing of its existence."""
    return bool(_SHAPE.fullmatch(text))
