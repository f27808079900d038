"""docs/breaking.md against what is really said: sentences of the page are compared without their values."""

import re

from tests.stack import ROOT

PAGE = ROOT / "docs" / "breaking.md"
_QUOTED = re.compile(r"`([^`]+)`")
_VALUES = re.compile(r"%\(\w+\)s")


def quoted() -> list[str]:
    """All that the page quotes, in its order."""
    return [" ".join(words.split()) for words in _QUOTED.findall(PAGE.read_text())]


def sentences() -> list[str]:
    """What of that is said to people: begins like a sentence and is one."""
    return [words for words in quoted() if words[0].isupper() and words.count(" ") > 2]


def pattern(promise: str) -> re.Pattern[str]:
    """Matches a sentence of the product, whatever its values."""
    parts = (re.escape(part) for part in _VALUES.split(promise))
    return re.compile(".+".join(parts))


def plain(sentence: str) -> str:
    """A sentence without what differs each time: numbers, and the names of nodes and cards."""
    without = re.sub(r"\b(?:one|two|three|GPU-\S+)\b", "NAME", sentence)
    return re.sub(r"\d[\d.:T+Z-]*", "N", without).strip(" .")


def assert_shown(sentence: str) -> None:
    """A sentence that the product has just said stands on the page."""
    assert plain(sentence) in map(plain, quoted()), f"docs/breaking.md does not show: {sentence}"
