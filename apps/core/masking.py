"""Masks secrets in log lines, whatever wrote them: keys, bearer headers, tokens, node secrets.

The second line of defence: an agent masks what its engines print (`agent/masking.py`), and knows the
values of their environment, before anything comes here. Keeps what tells one key from another.
"""

import logging
import re

_SECRETS = re.compile(
    r"(sk-[0-9a-f]{8})[0-9a-f-]{20,}"
    r"|(ek-)[A-Za-z0-9_=-]{16,}"
    r"|(hf_)[A-Za-z0-9]{8,}"
    r"|(jt-)[A-Za-z0-9_-]{24,}"
    r"|((?i:bearer\s+)(?:node-[a-z2-7]{16}:)?)[A-Za-z0-9._~+/=-]{12,}"
    r"|((?i:[\"']?(?:password|secret|authorization|api[_-]?key|token)[\"']?\s*[:=]\s*[\"']?"
    r"(?:(?:bearer|basic)\s+)?(?:node-[a-z2-7]{16}:)?))[^\s\"',;&}]{4,}"
)
_FORMATTER = logging.Formatter()


def mask(text: str) -> str:
    """The text with the secret part of anything that looks like a credential replaced by ***."""
    return _SECRETS.sub(lambda found: next(g for g in found.groups() if g is not None) + "***", text)


def mask_keeping_length(text: str) -> str:
    """Like `mask`, but as many bytes of UTF-8 as before, so that offsets into a log stay true."""
    return _SECRETS.sub(_stars, text)


def _stars(found: re.Match[str]) -> str:
    kept = next(g for g in found.groups() if g is not None)
    return kept + "*" * len(found[0].removeprefix(kept).encode())


class MaskSecrets(logging.Filter):
    """A logging filter that masks the finished message and the traceback that goes with it."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            message = record.getMessage()
        except (TypeError, ValueError, KeyError):  # a wrong log line must not break who wrote it
            message = f"{record.msg} {record.args!r}"
            record.msg, record.args = mask(message), ()
            return True
        masked = mask(message)
        if masked != message:
            record.msg, record.args = masked, ()
        if record.exc_info and not record.exc_text:
            record.exc_text = _FORMATTER.formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = mask(record.exc_text)
        return True
