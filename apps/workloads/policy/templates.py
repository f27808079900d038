"""A group's chain of engine templates (RECOV-03): what a task runs by its place in the chain.

Place 0 is what the task itself asks for; the templates of the group follow in their order. Pure: no Django,
no clock. Never decides when the next one is due (`rebuilding.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Template:
    """What of a task differs from template to template. `engine` "" = read from label or image; `gpu_type`
    "" = any card."""

    image: str
    engine: str = ""
    command: tuple[str, ...] = ()
    gpu_type: str = ""


def pick(own: Template, chain: Sequence[Mapping[str, Any]], index: int) -> Template:
    """The template at a place of the chain; the last one where the chain became shorter than that. A template
    that names no card type is for that of the task, one without a command has none."""
    if index <= 0 or not chain:
        return own
    row = chain[min(index, len(chain)) - 1]
    return Template(
        image=str(row["image"]),
        engine=str(row.get("engine") or ""),
        command=tuple(map(str, row.get("command") or ())),
        gpu_type=str(row.get("gpu_type") or own.gpu_type),
    )
