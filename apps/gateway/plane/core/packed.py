"""Unpacks request bodies that came with a Content-Encoding; the cap counts what comes out (GW-01).

Pure: bytes in, bytes out. Never makes more than the cap of what was packed to look small.
"""

import zlib

from apps.gateway.plane.core import errors

# What zlib has to be told of each: gzip's own frame, or zlib's, which HTTP calls deflate.
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def read_coding(header: bytes | None) -> str | None:
    """The one coding of a body, None where it came as it is. Raises CallError 415 for any other."""
    coding = (header or b"").decode("latin-1").strip().lower()
    if coding in ("", "identity"):
        return None
    if coding not in _WINDOWS:
        raise errors.encoded_body(coding)
    return coding


def unpack(coding: str, packed: bytes, limit: int) -> bytes:
    """The whole body, at most `limit` bytes. Raises CallError 413 where it holds more, as soon as that is
    known, and 400 where it is not such a body, breaks off, or is followed by anything."""
    stream = zlib.decompressobj(_WINDOWS[coding])
    try:
        body = stream.decompress(packed, limit + 1)
    except zlib.error as error:
        raise errors.not_packed(coding, str(error).rpartition(": ")[2]) from None
    if len(body) > limit:
        raise errors.unpacked_too_large(len(packed), limit)
    if not stream.eof:
        raise errors.not_packed(coding, "it breaks off")
    if stream.unused_data:
        raise errors.not_packed(coding, "something follows its end")
    return body
