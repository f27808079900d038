"""Writes numbered lines until it is told to end: a container whose log can be counted.

Runs in an image that holds this file alone, so it imports nothing of the project. SIGUSR1: a burst of lines
at once. SIGHUP: a deluge of them. SIGUSR2: the last line. Each line is LINE bytes long, its end counted.
"""

import signal
import sys
import time
from typing import Any

LINE = 64
A_BEAT, BEAT_S = 5, 0.05
BURST, DELUGE = 10_000, 100_000
COUNTS = {signal.SIGUSR1: BURST, signal.SIGHUP: DELUGE}
LAST = "the last line"
told: list[int] = []


def line(number: int) -> str:
    """As it is written, without its end."""
    return f"line {number:08d} ".ljust(LINE - 1, "-")


def tell(number: int, frame: Any) -> None:
    told.append(number)


def main() -> None:
    for asked in (*COUNTS, signal.SIGUSR2):
        signal.signal(asked, tell)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    number = 0
    while signal.SIGUSR2 not in told:
        count = COUNTS[told.pop(0)] if told else A_BEAT
        sys.stdout.write("".join(line(number + one) + "\n" for one in range(count)))
        sys.stdout.flush()
        number += count
        time.sleep(BEAT_S)
    print(LAST, number, flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
