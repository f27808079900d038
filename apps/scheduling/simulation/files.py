"""Reads a fleet or workload file, YAML or JSON, into its form; whatever does not fit is refused by name.

Owns the sentence: file, field, value, rule. What the fields mean is in `fleet.py` and `workload.py`.
"""

import json
import re
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import yaml

T = TypeVar("T")

LARGEST_FILE = 32 * 2**20  # bytes
TEN_YEARS_S = 10 * 366 * 86_400.0

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Amount = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=TEN_YEARS_S)]
Span = tuple[Seconds, Seconds]


class BadFile(Exception):
    """The file can not be used; its one sentence names file, field, value and rule."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A form that knows its fields and takes no other."""


def read(path: Path, form: type[T]) -> T:
    """The file's content in its form. Raises BadFile."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise BadFile(f"{path}: larger than {LARGEST_FILE // 2**20} MiB; use `count` for entries alike.")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadFile(f"{path}: can not be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise BadFile(f"{path}: is no text in UTF-8.") from None
    content = _parse(path, text)
    try:
        return msgspec.convert(content, form)
    except msgspec.ValidationError as error:
        raise BadFile(f"{path}: {_sentence(str(error), content)}") from None


def _parse(path: Path, text: str) -> Any:
    try:
        return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except json.JSONDecodeError as error:
        raise BadFile(f"{path}: line {error.lineno}: is no JSON: {error.msg}.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise BadFile(f"{path}: {where}is no YAML: {getattr(error, 'problem', None) or error}.") from None


def _sentence(complaint: str, content: Any) -> str:
    """msgspec's own words, with the field in front and the value that stands there."""
    rule, _, place = complaint.partition(" - at `")
    steps = re.findall(r"\[\.\.\.\]|\[(\d+)\]|\.([^.\[]+)|\$", place.removesuffix("`").removeprefix("$"))
    value, known = content, True
    for index, key in steps:
        try:
            value = value[int(index) if index else key]
        except (KeyError, IndexError, TypeError):
            known = False
            break
    field = place.removesuffix("`").removeprefix("$").lstrip(".") or "the whole file"
    shown = repr(value)
    told = (
        f" is {shown if len(shown) <= 60 else shown[:57] + '...'}"
        if known and steps and not isinstance(value, dict)
        else ""
    )
    return f"{field}{told}: {rule}."


def require(fits: bool, path: Path, field: str, rule: str) -> None:
    """Raises BadFile where it does not fit."""
    if not fits:
        raise BadFile(f"{path}: {field}: {rule}.")


def require_spans(path: Path, field: str, spans: tuple[Span, ...]) -> None:
    """Spans of time come in order and apart. Raises BadFile."""
    end = -1.0
    for place, (first, last) in enumerate(spans):
        require(
            first < last, path, f"{field}[{place}]", f"begins at {first:g} and ends at {last:g}; end it later"
        )
        require(first > end, path, f"{field}[{place}]", f"begins at {first:g}, before the one before it ends")
        end = last
