"""A log is copied without loss or doubles, wherever copying is broken off."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.runtime.docker_logs import LogCopy
from agent.runtime.docker_places import Place, Skipping, load_place, save_place, split_stamp


def stamp(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"2026-11-30T10:{seconds // 60:02d}:{seconds % 60:02d}.{rest:09d}Z"


# steps between lines, in nanoseconds: mostly none or little, at times a second and more
STEPS = st.lists(st.sampled_from([0, 0, 1, 1000, 400_000_000, 1_100_000_000, 2_000_000_000]), max_size=60)
# lines of the other stream are written up to so much late
LATE = st.lists(st.sampled_from([0, 0, 0, 1, 500]), min_size=60, max_size=60)


@pytest.mark.req("AGENT-10")
@given(STEPS, LATE, st.lists(st.integers(0, 60), max_size=4))
def test_every_line_once_however_often_it_is_broken_off(
    steps: list[int], late: list[int], breaks: list[int]
) -> None:
    clock, log = 0, []
    for number, step in enumerate(steps):
        clock += step
        # never older than the first line of all: such a one is lost where copying is broken off before it
        log.append((stamp(max(steps[0], clock - late[number])), str(number)))
    copied: list[str] = []
    place = Place()
    for until in [*sorted(breaks), len(log)]:
        skipping = Skipping(place)
        since = stamp(0)[:17] if not place.anchor else place.anchor[:19]
        for when, line in log[:until]:
            if when >= since and skipping.fresh(when):
                copied.append(line)
                place.advance(when, len(line))
    assert copied == [line for _, line in log]
    assert place.offset == sum(map(len, copied))


@pytest.mark.req("AGENT-10")
def test_lines_that_docker_threw_away_are_not_counted() -> None:
    place = Place()
    for number in range(5):
        place.advance(stamp(number * 1000), 1)
    skipping = Skipping(place)
    kept = [stamp(3000), stamp(4000), stamp(5000)]  # the first three were rotated away
    assert [when for when in kept if skipping.fresh(when)] == [stamp(5000)]
    assert not skipping.missing


@pytest.mark.req("AGENT-10")
def test_lines_that_docker_threw_away_before_they_were_copied_are_a_gap() -> None:
    place = Place()
    for number in range(5):
        place.advance(stamp(number * 1000), 1)
    skipping = Skipping(place)  # what was copied last went too: nobody knows what came behind it
    assert skipping.fresh(stamp(9000)) and skipping.missing
    untouched = Skipping(place)
    assert not untouched.fresh(stamp(0)) and not untouched.missing


class Rotating:
    """Docker's client where Docker, once it has given all, reads its newest file once more."""

    def __init__(self, frames: list[bytes], turn: int) -> None:
        self.frames, self.turn, self.given = frames, turn, 0

    @property
    def api(self) -> "Rotating":
        return self

    def logs(self, container: str, *, follow: bool, **_: object) -> Iterator[bytes]:
        self.given += 1
        yield from self.frames
        if follow:
            yield from self.frames[self.turn :]

    def close(self) -> None:
        return


@pytest.mark.req("AGENT-10")
@pytest.mark.parametrize("turn", [0, 1, 3, 4])
def test_what_docker_gives_twice_after_it_rotated_its_file_is_copied_once(tmp_path: Path, turn: int) -> None:
    # the third is one long line in two equal parts and its end, which bear one time
    lines = [(0, b"a\n"), (5, b"\n"), (9, b"long"), (9, b"long"), (9, b"\n"), (2_000_000_000, b"\n")]
    docker = Rotating([stamp(when).encode() + b" " + line for when, line in lines], turn)
    file = tmp_path / "task-a.1.log"
    copy = LogCopy(
        docker,  # type: ignore[arg-type]
        "container",
        file=file,
        place_file=tmp_path / "place.json",
        ended=lambda: docker.given > 0,
    )
    assert copy.done.wait(30)
    assert file.read_bytes() == b"".join(line for _, line in lines)


def test_frames_are_split_at_their_time() -> None:
    assert split_stamp(stamp(1).encode() + b" a line\n") == (stamp(1), b"a line\n")
    assert split_stamp(stamp(1).encode() + b" ") == (stamp(1), b"")
    for bad in (b"", b"no time at all, but long enough to hold one", stamp(1).encode()):
        with pytest.raises(ValueError, match="without a time"):
            split_stamp(bad)


def test_place_is_kept_and_a_damaged_one_is_the_beginning(tmp_path) -> None:
    file = tmp_path / "a.json"
    assert load_place(file) == Place()
    place = Place(offset=3, anchor=stamp(1), copied=2, high=stamp(2))
    save_place(file, place)
    assert load_place(file) == place
    file.write_text("{")
    assert load_place(file) == Place()
