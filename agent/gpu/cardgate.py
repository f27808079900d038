"""Whether a card's memory is really free of the attempts that ended on it (AGENT-06).

A process may outlive its container, and a driver may give memory back late. Owns what is known of that, over
restarts of the agent: which attempts have left which card, whose processes were seen there, and how much
nobody's memory lay there before. Nothing starts on a card while memory of an ended attempt is held; after
`card_free_s` the card is in quarantine, until it is free or an operator releases it. Strangers' memory is no
matter here: placing counts it. Never ends a process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from agent.config import Settings
from agent.contract.codes import Code, Reason, reason
from agent.contract.messages import CardHolder, CardReport
from agent.gpu.ownership import (
    Key,
    Occupant,
    Whose,
    name_of_process,
    owner_of_process,
    start_of_process,
    tell_whose,
    unnamed_mb,
)
from agent.wholefile import write_whole

log = logging.getLogger("agent.gpu")


class Seen(msgspec.Struct):
    """A process that held memory for an attempt; its start time tells it from a later one of that number."""

    pid: int
    start_ticks: int
    key: Key


class CardState(msgspec.Struct):
    """`rest_mb`: memory that no listed process holds, as it was when nothing of ours was there; None = not
    known. `ended`: attempts that have left and whose memory was not seen free since. `held_by`: as last
    looked at."""

    rest_mb: int | None = None
    ended: list[Key] = []
    seen: list[Seen] = []
    quarantined: bool = False
    held_by: list[CardHolder] = []


class Kept(msgspec.Struct):
    """The file. `there`: where attempts ran when it was written."""

    cards: dict[str, CardState] = {}
    there: dict[str, tuple[str, int, list[str]]] = {}


class CardGate:
    """`look` takes each reading of the cards; `hindrance` is asked before a start. Times are seconds of the
    monotonic clock."""

    def __init__(
        self,
        settings: Settings,
        file: Path,
        *,
        owner_of: Callable[[int, Mapping[Key, Occupant]], Key | None] | None = None,
        start_of: Callable[[int], int | None] | None = None,
        name_of: Callable[[int], str] | None = None,
    ) -> None:
        self._settings = settings
        self._file = file
        self._owner_of = owner_of or owner_of_process
        self._start_of = start_of or start_of_process
        self._name_of = name_of or name_of_process
        self._written = b""
        kept = self._load()
        self._cards = kept.cards
        self._there: dict[Key, list[str]] = {(t, n): uuids for t, n, uuids in kept.there.values()}
        self._since: dict[str, float] = {}
        self.occupants: Callable[[], Mapping[Key, Occupant]] = dict  # set by whoever runs the attempts

    def look(self, cards: list[CardReport], now: float) -> list[CardReport]:
        """Judge a reading; the cards as they are told to the server."""
        running = self.occupants()
        self._note_ends(running, now)
        for uuid in self._cards.keys() - {card.uuid for card in cards}:
            self._free(uuid, self._cards.pop(uuid))  # not there any more, and so nothing on it
        told = [self._judge(card, running, now) for card in cards]
        self._save()
        return told

    def hindrance(self, gpu_uuids: Iterable[str], now: float) -> Reason | None:
        """Why nothing may start on these cards now."""
        self._note_ends(self.occupants(), now)
        for uuid in gpu_uuids:
            state = self._cards.get(uuid)
            if state is not None and state.ended:
                first = state.held_by[0] if state.held_by else CardHolder(pid=0)
                return reason(Code.CARD_BUSY, card=uuid, used_mb=first.used_mb, pid=first.pid)
        return None

    def is_quarantined(self, gpu_uuids: Iterable[str]) -> bool:
        """Whether waiting for one of these cards has been given up."""
        return any(uuid in self._cards and self._cards[uuid].quarantined for uuid in gpu_uuids)

    def release(self, gpu_uuids: Iterable[str]) -> None:
        """An operator says that these cards may be used whatever is held there."""
        for uuid in gpu_uuids:
            state = self._cards.get(uuid)
            if state is not None and state.ended:
                log.warning("card %s is released by an operator", uuid)
                self._free(uuid, state)
                state.rest_mb = None
        self._save()

    # --- one card ---------------------------------------------------------------------------------

    def _judge(self, card: CardReport, running: Mapping[Key, Occupant], now: float) -> CardReport:
        state = self._cards.setdefault(card.uuid, CardState())
        here = {key: one for key, one in running.items() if card.uuid in one.gpu_uuids}
        unseen = self._attribute(state, card, here)
        rest = unnamed_mb(card)
        state.held_by = self._holders(state, card, rest, alone=not here)
        if not state.ended:
            if not here:
                state.rest_mb = rest
        elif not state.held_by:
            if state.quarantined:
                log.warning("card %s is free again", card.uuid)
            self._free(card.uuid, state)
        elif not state.quarantined and now - self._since[card.uuid] >= self._settings.card_free_s:
            state.quarantined = True
            log.error("card %s is in quarantine: its memory is held by %s", card.uuid, state.held_by)
        owners = {one.pid: one.key for one in state.seen}
        whose = Whose(owners, unseen, frozenset(here), state.rest_mb)
        told = tell_whose(card, whose, slack_mb=self._settings.card_slack_mb, name_of=self._name_of)
        shown = state.held_by if state.quarantined else []
        return msgspec.structs.replace(told, quarantined=state.quarantined, held_by=shown)

    def _attribute(self, state: CardState, card: CardReport, here: Mapping[Key, Occupant]) -> frozenset[int]:
        """Remember whose each process is, while that can be told: later its container is gone. Returns those
        that this machine knows nothing of."""
        known = {one.pid: one for one in state.seen}
        state.seen = []
        unseen = set()
        for holder in card.processes or []:
            started = self._start_of(holder.pid)
            before = known.get(holder.pid)
            if before is not None and started in (None, before.start_ticks):
                state.seen.append(before)
            elif started is not None and (key := self._owner_of(holder.pid, here)) is not None:
                state.seen.append(Seen(holder.pid, started, key))
            elif started is None:
                unseen.add(holder.pid)
        return frozenset(unseen)

    def _holders(
        self, state: CardState, card: CardReport, rest: int | None, *, alone: bool
    ) -> list[CardHolder]:
        """What still holds memory for attempts that ended; pid 0 where the driver names nobody."""
        whose = {one.pid: one.key for one in state.seen if one.key in state.ended}
        found = [
            CardHolder(holder.pid, holder.used_mb, *whose[holder.pid])
            for holder in card.processes or []
            if holder.pid in whose
        ]
        if found or not state.ended or not alone or rest is None or state.rest_mb is None:
            return found
        above = rest - state.rest_mb
        return [CardHolder(0, above, *state.ended[-1])] if above > self._settings.card_slack_mb else []

    def _free(self, uuid: str, state: CardState) -> None:
        state.seen = [one for one in state.seen if one.key not in state.ended]
        state.ended, state.held_by, state.quarantined = [], [], False
        self._since.pop(uuid, None)

    def _note_ends(self, running: Mapping[Key, Occupant], now: float) -> None:
        changed = False
        for key, uuids in self._there.items():
            if key not in running:
                for uuid in uuids:
                    self._cards.setdefault(uuid, CardState()).ended.append(key)
                changed = True
        self._there = {key: list(one.gpu_uuids) for key, one in running.items() if one.gpu_uuids}
        for uuid, state in self._cards.items():
            if again := [key for key in state.ended if key in running]:  # it slept, and woke
                state.ended = [key for key in state.ended if key not in again]
                changed = True
            if state.ended:
                self._since.setdefault(uuid, now)
        if changed:
            self._save()

    # --- the file ---------------------------------------------------------------------------------

    def _load(self) -> Kept:
        try:
            self._written = self._file.read_bytes()
            return msgspec.json.decode(self._written, type=Kept)
        except FileNotFoundError:
            return Kept()
        except (OSError, msgspec.DecodeError) as error:
            log.error("%s can't be read, so earlier quarantines are not known: %s", self._file, error)
            return Kept()

    def _save(self) -> None:
        there = {f"{key[0]}.{key[1]}": (*key, uuids) for key, uuids in self._there.items()}
        text = msgspec.json.encode(Kept(self._cards, there))
        if text == self._written:
            return
        try:
            write_whole(self._file, text, lasting=False)  # what it tells of ends with the power
        except OSError as error:
            log.error("%s can't be written: %s", self._file, error.strerror)
        else:
            self._written = text
