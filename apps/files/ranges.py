"""Which bytes a `Range` header asks for (RFC 9110, one range). Pure."""

import re

_ONE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})", re.ASCII)


class Unsatisfiable(Exception):
    """No byte of the range is there."""


def parse_range(header: str, size: int) -> tuple[int, int] | None:
    """Bytes [first, last) of `size`, or None where the whole is to be sent: no range, several, or none
    that can be read. Raises Unsatisfiable."""
    found = _ONE.fullmatch(header.strip().replace(" ", ""))
    if found is None or found[0] == "bytes=-":
        return None
    if not found[1]:
        count = int(found[2])
        if count == 0 or size == 0:
            raise Unsatisfiable
        return max(0, size - count), size
    first = int(found[1])
    last = size if not found[2] else min(size, int(found[2]) + 1)
    if found[2] and int(found[2]) < first:
        return None  # not a range at all
    if first >= size:
        raise Unsatisfiable
    return first, last
