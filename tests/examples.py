"""How many examples a property is tried with: a quarter in `make check`, all in `make test`."""

import os


def examples(full: int) -> int:
    """`full` where EXAMPLES=all, else a quarter of it."""
    return full if os.environ.get("EXAMPLES") == "all" else max(5, full // 4)
