"""A model's name as it stands in JSON, and one put in the place of another there (GW-05).

Pure: bytes in, bytes out. The same few names come with nearly every call, so what is made of one is kept.
Never takes a message apart: where that is needed its reader does it.
"""

from functools import lru_cache

import msgspec
from msgspec import Raw

MOST_CHARS = 1024
"""Of a longer name, which an engine may say, nothing is kept, and none is asked by such a one."""
_encoder = msgspec.json.Encoder()


@lru_cache(maxsize=1024)
def write_name(name: str) -> Raw:
    """The name as a value of JSON."""
    return Raw(_encoder.encode(name))


def swap_name(message: bytes, name: str, model: str) -> bytes | None:
    """The same bytes with the name `model` instead of `name`, where only one field of all is called so and
    stands as most engines write it there; else None, as for a name that is very long."""
    if len(name) <= MOST_CHARS and message.count(b'"model"') == 1:
        was, becomes = _fields_of(name, model)
        if was in message:
            return message.replace(was, becomes, 1)
    return None


@lru_cache(maxsize=1024)
def _fields_of(name: str, model: str) -> tuple[bytes, bytes]:
    """The field as most engines write it, with either name."""
    return b'"model":%b' % _encoder.encode(name), b'"model":%b' % _encoder.encode(model)
