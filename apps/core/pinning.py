"""TLS to a machine that is known by its certificate's fingerprint, not by an authority (AGENT-16).

Owns the client's context and the check of the fingerprint. Connections are their users' business;
nothing may be sent on one before `has_certificate` said yes.
"""

import asyncio
import hashlib
import hmac
import ssl
from functools import lru_cache


@lru_cache(maxsize=1)
def pinning_context() -> ssl.SSLContext:
    """A context that takes any certificate: what it proves nothing about, `has_certificate` does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def has_certificate(transport: asyncio.BaseTransport, sha256: str) -> bool:
    """Whether the other end of a TLS connection showed the certificate with this fingerprint (64 hex
    digits over its DER form)."""
    tls = transport.get_extra_info("ssl_object")
    shown = tls.getpeercert(binary_form=True) if tls is not None else None
    return shown is not None and hmac.compare_digest(hashlib.sha256(shown).hexdigest(), sha256)
