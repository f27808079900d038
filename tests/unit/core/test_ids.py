"""Public ids: a telling prefix, then enough random bits (SVC-01)."""

import re

import pytest

from apps.core import ids

pytestmark = pytest.mark.req("SVC-01")


@pytest.mark.parametrize("kind", sorted(ids.PREFIXES))
def test_each_kind_has_its_prefix_and_shape(kind):
    made = ids.new_id(kind)

    assert made.startswith(ids.PREFIXES[kind])
    assert re.fullmatch("[a-z2-7]{16}", made.removeprefix(ids.PREFIXES[kind]))
    assert ids.looks_like_id(made)


def test_prefixes_tell_kinds_apart():
    assert len(set(ids.PREFIXES.values())) == len(ids.PREFIXES)


def test_ids_do_not_repeat():
    assert len({ids.new_id("task") for _ in range(10_000)}) == 10_000


def test_a_kind_without_prefix_is_refused():
    with pytest.raises(KeyError):
        ids.new_id("unheard-of")


@pytest.mark.parametrize(
    "text", ["", "task-", "task-ABCDEFGHIJKLMNOP", "task-abc", "../etc", "task-abcdefghijklmnop\n"]
)
def test_other_texts_do_not_look_like_ids(text):
    assert not ids.looks_like_id(text)
