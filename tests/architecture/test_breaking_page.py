"""The page of what people see when something breaks quotes real sentences only."""

import pytest

from apps.core.texts import TEXTS
from tests.breaks.page import pattern, sentences

pytestmark = pytest.mark.req("OPS-06")


def test_each_sentence_of_the_page_is_one_that_is_said() -> None:
    promises = [pattern(str(promise)) for promise in TEXTS.values()]
    invented = [said for said in sentences() if not any(one.fullmatch(said) for one in promises)]
    assert len(sentences()) > 15
    assert invented == []
