"""Chinese is complete: every sentence in code and templates, none fuzzy, compiled as written (UI-03)."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import polib
import pytest
from django.utils.translation.template import templatize

from tests.architecture.tree import ROOT, parsed, python_files, tracked

CATALOG = ROOT / "locale" / "zh_Hans" / "LC_MESSAGES" / "django.po"
CALLS = {
    "_",
    "gettext",
    "gettext_lazy",
    "gettext_noop",
    "pgettext",
    "pgettext_lazy",
    "ngettext",
    "ngettext_lazy",
}
IN_TEMPLATE = re.compile(r"\bn?p?gettext\(\s*(u?(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"))")
PLACE = re.compile(r"%(?:\((\w+)\))?[sd]")


@cache
def catalog() -> polib.POFile:
    return polib.pofile(str(CATALOG))


def sentences_in_code() -> Iterator[tuple[str, str]]:
    """(place, English sentence) of each literal that gettext is asked for."""
    for path in python_files("apps", "heteroflow"):
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") not in CALLS or not node.args:
                continue
            position = 1 if getattr(node.func, "id", "").startswith("pgettext") else 0
            if isinstance(literal := node.args[position], ast.Constant) and isinstance(literal.value, str):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", literal.value


def sentences_in_templates() -> Iterator[tuple[str, str]]:
    for path in tracked():
        if path.suffix == ".html":
            for literal in IN_TEMPLATE.findall(templatize(path.read_text(), origin=str(path))):
                yield str(path.relative_to(ROOT)), ast.literal_eval(literal).replace("%%", "%")


@pytest.mark.parametrize("sentences", [sentences_in_code, sentences_in_templates])
def test_every_sentence_has_its_chinese(sentences: object) -> None:
    known = {entry.msgid.replace("%%", "%") for entry in catalog().translated_entries()}
    found = list(sentences())  # type: ignore[operator]
    assert len(found) > 20
    assert [f"{place}: {text!r}" for place, text in found if text.replace("%%", "%") not in known] == []


def test_nothing_is_fuzzy_or_empty() -> None:
    assert [
        entry.msgid for entry in catalog() if not entry.obsolete and (entry.fuzzy or not entry.translated())
    ] == []


def test_translations_keep_their_places() -> None:
    """A value that is named in English is named in Chinese."""
    wrong = [
        entry.msgid
        for entry in catalog().translated_entries()
        if not entry.msgid_plural and set(PLACE.findall(entry.msgid)) != set(PLACE.findall(entry.msgstr))
    ]
    assert wrong == []


def test_compiled_catalog_is_current() -> None:
    compiled = polib.mofile(str(CATALOG.with_suffix(".mo")))
    assert {e.msgid: e.msgstr for e in compiled} == {
        e.msgid: e.msgstr for e in catalog().translated_entries() if e.msgid
    }
