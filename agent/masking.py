"""Masks secrets in text that leaves the agent or enters its log (AGENT-10, OPS-08).

Owns the patterns. Masks keep the length in bytes, so that an offset in an engine's log file means
the same place before and after masking.
"""

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import Iterable

_PATTERNS = (
    re.compile(rb"\bsk-[A-Za-z0-9_\-]{8,}"),
    re.compile(rb"\bhf_[A-Za-z0-9]{8,}"),
    re.compile(rb"(?i)(?<=\bbearer )[^\s\"',;]{4,}"),
    re.compile(
        rb"(?i)(?:(?<=api[_-]key)|(?<=token)|(?<=secret)|(?<=password))[\"']?\s*[=:]\s*[\"']?[^\s\"',;&]{4,}"
    ),
)
_MIN_SECRET = 4  # shorter values would blank out half the text
_SAME_LENGTH = "heteroflow-same-length"  # of codecs' error handlers
_SECRET_NAME = re.compile(r"(?i)KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH")


def secret_values(env: dict[str, str]) -> list[str]:
    """Values of an environment whose names say that they are secret."""
    return [value for name, value in env.items() if _SECRET_NAME.search(name) and len(value) >= _MIN_SECRET]


def mask(text: bytes, secrets: Iterable[str] = ()) -> bytes:
    """The text with secrets as `*`, byte for byte as long as before."""
    for secret in sorted({s.encode() for s in secrets if len(s) >= _MIN_SECRET}, key=len, reverse=True):
        text = text.replace(secret, b"*" * len(secret))
    for pattern in _PATTERNS:
        text = pattern.sub(_stars, text)
    return text


def _stars(match: re.Match[bytes]) -> bytes:
    return b"*" * len(match[0])


def printable(raw: bytes) -> bytes:
    """The bytes as valid UTF-8 of the same length: bytes that are none, and NUL, become `?`."""
    return raw.replace(b"\0", b"?").decode("utf-8", _SAME_LENGTH).encode()


def _question_marks(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "?" * (error.end - error.start), error.end


# One pass whatever the bytes are: an engine that prints binary holds up the agent no longer than others.
codecs.register_error(_SAME_LENGTH, _question_marks)


class MaskingFilter(logging.Filter):
    """Masks known patterns, and the values it was told of, in every line of the agent's own log."""

    def __init__(self) -> None:
        super().__init__()
        self._secrets: set[str] = set()

    def add(self, *secrets: str) -> None:
        """Mask these values from now on."""
        self._secrets.update(s for s in secrets if len(s) >= _MIN_SECRET)

    def mask_text(self, text: str) -> str:
        """The text with every known secret masked."""
        return mask(text.encode("utf-8", "replace"), self._secrets).decode("utf-8", "replace")

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = self.mask_text(record.getMessage())
        record.args = ()
        return True
