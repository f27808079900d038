"""Masks secrets in log lines, whatever wrote them: keys, bearer headers, tokens, node secrets."""

import logging
import re

_SECRETS = re.compile(
    r"(sk-[0-9a-f]{8})[0-9a-f-]{20,}"
    r"|(ek-)[A-Za-z0-9_=-]{16,}"
    r"|(jt-)[A-Za-z0-9_-]{24,}"
    r"|((?i:bearer\s+)(?:node-[a-z2-7]{16}:)?)[A-Za-z0-9._~+/=-]{12,}"
    r"|((?i:\"?(?:password|secret|authorization|api[_-]?key|token)\"?\s*[:=]\s*\"?))[^\s\",;&}]{4,}"
)


def mask(text: str) -> str:
    """The text with the secret part of anything that looks like a credential replaced by ***."""
    return _SECRETS.sub(lambda found: next(g for g in found.groups() if g is not None) + "***", text)


class MaskSecrets(logging.Filter):
    """A logging filter that masks the finished message."""

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        masked = mask(message)
        if masked != message:
            record.msg, record.args = masked, ()
        return True
