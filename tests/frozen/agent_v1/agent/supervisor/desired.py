"""The desired list as this agent holds it.

Owns the difference between a complete, a partial and a missing answer: only complete ones count
towards the removal of anything (AGENT-09). Never touches a process.
"""

from __future__ import annotations

import logging

from agent.contract.messages import DesiredTask, HeartbeatAnswer, HeartbeatUnchanged

log = logging.getLogger("agent.supervisor")
Key = tuple[str, int]  # task id, attempt


class DesiredList:
    """Begins empty and with no hash, so that the first answer brings the whole list."""

    def __init__(self) -> None:
        self.hash = ""
        self.tasks: dict[Key, DesiredTask] = {}
        self.complete_lists = 0
        self._listed_at: dict[Key, int] = {}

    def take(self, answer: HeartbeatAnswer) -> bool:
        """Take one answer of the server; True when the list changed."""
        if isinstance(answer, HeartbeatUnchanged):
            if not self.hash or answer.desired_hash != self.hash:
                # It speaks of a list that is not held here: counts for nothing, and asks for the whole.
                log.warning(
                    "the server says unchanged of another list than the one held; asking for the whole"
                )
                self.hash = ""
                return False
            self._count_complete()
            return False
        listed = {(task.task_id, task.attempt): task for task in answer.tasks}
        before = self.tasks
        if answer.complete:
            self.tasks = listed
            self.hash = answer.desired_hash
            self._count_complete()
        else:
            self.tasks = {**before, **listed}
            self.hash = ""
        return self.tasks != before

    def _count_complete(self) -> None:
        self.complete_lists += 1
        for key in self.tasks:
            self._listed_at[key] = self.complete_lists

    def absent_lists(self, key: Key) -> int:
        """In how many complete lists in a row this attempt has been missing."""
        if key in self.tasks:
            return 0
        return self.complete_lists - self._listed_at.get(key, 0)

    def newest_attempt(self, task_id: str) -> int:
        """The highest attempt listed of a task, 0 for none."""
        return max((attempt for listed, attempt in self.tasks if listed == task_id), default=0)

    def forget(self, key: Key) -> None:
        """Drop what is remembered of an attempt that is neither listed nor here any more."""
        if key not in self.tasks:
            self._listed_at.pop(key, None)
