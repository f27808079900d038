"""Which catalog engines a node's images offer (AGENT-11). Pure.

Owns the rule: an image counts under its exact name:tag only. A copy under a private registry's prefix
does not, and the hint says which `docker tag` mends that.
"""

from __future__ import annotations

from agent.contract.messages import CardReport, EngineReport
from agent.engines.base import Engine
from agent.engines.catalog import ENGINES, compute_capability_at_least


def engines_here(tags: dict[str, str], cards: list[CardReport]) -> tuple[list[EngineReport], list[str]]:
    """The engines, and hints for the agent's log. `tags` are the node's images by name:tag."""
    found: list[EngineReport] = []
    hints: list[str] = []
    for engine in ENGINES.values():
        for vendor, image in engine.images.items():
            if not _has_cards(engine, vendor, cards):
                continue
            if image in tags:
                found.append(EngineReport(name=engine.name, version=_version(image), image=image))
                break
            for tag in sorted(tags):
                if tag.endswith(f"/{image}"):
                    hints.append(
                        f"{tag} is a copy of {image} and does not count as {engine.name}. "
                        f"Mend it by: docker tag {tag} {image}"
                    )
    return found, hints


def _has_cards(engine: Engine, vendor: str, cards: list[CardReport]) -> bool:
    if vendor == "cpu":
        return "cpu" in engine.vendors
    own = [card for card in cards if card.vendor == vendor]
    if vendor != "nvidia":
        return bool(own)
    return any(
        compute_capability_at_least(card.compute_capability, engine.min_compute_capability) for card in own
    )


def _version(image: str) -> str | None:
    """The tag, unless it names no version."""
    tag = image.rsplit(":", 1)[1] if ":" in image.rsplit("/", 1)[-1] else ""
    return tag if any(c.isdigit() for c in tag) else None
