"""Asks the server for the attempts that it listed (AGENT-02).

Owns when to ask, and what an answer means. Nothing is started without a granted claim; a refused
one is asked again only when the list changed or after a pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from agent.config import Settings
from agent.contract.messages import ClaimAnswer, ClaimRefused, ClaimRequest, TaskSpec
from agent.errors import ServerRefused, ServerUnreachable
from agent.supervisor.attempt import Attempt, Stage
from agent.supervisor.desired import DesiredList

log = logging.getLogger("agent.supervisor")
CLAIM_PAUSE_S = 1.0
ClaimCall = Callable[[ClaimRequest], Awaitable[ClaimAnswer]]


class Claiming:
    """`ask` begins a question beside the loop; `take` picks its answer up."""

    def __init__(
        self,
        call: ClaimCall,
        *,
        settings: Settings,
        incarnation: str,
        desired: DesiredList,
        wake: Callable[[], None],
    ) -> None:
        self._call = call
        self._settings = settings
        self._incarnation = incarnation
        self._desired = desired
        self._wake = wake

    def may_ask(self, a: Attempt, now: float) -> bool:
        """Whether the pause after the last answer is over, or the list is another one since."""
        return now >= a.claim_after or a.claim_refused_hash not in (None, self._desired.hash)

    def ask(self, a: Attempt) -> None:
        """Begin to ask for this attempt."""
        a.claim_refused_hash = None
        a.stage = Stage.CLAIMING
        question = ClaimRequest(self._incarnation, a.task_id, a.attempt, list(a.busy_ports))
        a.claim = asyncio.ensure_future(self._call(question))
        a.claim.add_done_callback(lambda _: self._wake())

    def take(self, a: Attempt, now: float) -> TaskSpec | None:
        """The spec once the claim is granted; None while there is no answer, or for a refusal."""
        if a.claim is None or not a.claim.done():
            return None
        done, a.claim = a.claim, None
        a.stage = Stage.WANTED
        try:
            answer = done.result()
        except ServerUnreachable as error:
            log.warning("%s: the claim got no answer (%s); asking again", a.name, error)
            a.claim_after = now + CLAIM_PAUSE_S
            return None
        except ServerRefused as error:
            log.warning("%s: the claim was refused: %s", a.name, error)
        else:
            if isinstance(answer, ClaimRefused):
                log.warning(
                    "%s: the claim was refused: %s %s", a.name, answer.reason.code, answer.reason.params
                )
            elif (answer.spec.task_id, answer.spec.attempt) != a.key:
                log.error(
                    "%s: the server answered for %s.%d", a.name, answer.spec.task_id, answer.spec.attempt
                )
            else:
                return answer.spec
        a.claimed = False
        self.hold_back(a, now)
        return None

    def hold_back(self, a: Attempt, now: float) -> None:
        """Ask again only after a pause, or when the list has changed."""
        a.claim_after = now + self._settings.claim_retry_s
        a.claim_refused_hash = self._desired.hash
