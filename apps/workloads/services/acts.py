"""What an action of a person did to a task or service, why, and what comes next (LIFE-04).

Owns the shape alone: the sentences are `core.texts`'s, and every action fills it.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from apps.core.errors import Value


class Did(StrEnum):
    """What moved. `nothing`: it is so already; `noted`: a wish is kept, nothing moves now."""

    NOTHING = "nothing"
    NOTED = "noted"
    DRAINING = "draining"
    SLEEPING = "sleeping"
    WAKING = "waking"
    SERVING = "serving"
    PLACING = "placing"
    STOPPING = "stopping"
    STOPPED = "stopped"
    STARTING = "starting"
    SCALED = "scaled"
    FAILED = "failed"


@dataclass(frozen=True)
class Said:
    """A key of `core.texts` with its values."""

    code: str
    params: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Act:
    did: Did
    why: Said
    next: Said

    @property
    def moved(self) -> bool:
        return self.did not in (Did.NOTHING, Did.NOTED)


def said(code: str, **params: Value) -> Said:
    """Build a Said; keyword arguments become its values."""
    return Said(code, params)
