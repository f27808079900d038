"""Numbers of placing as people read them, in both languages (SCHED-10, SVC-14)."""

import pytest
from django.utils import translation

from apps.core import texts
from apps.core.texts_placing import FULLER

pytestmark = pytest.mark.req("SVC-14")

SHORT = {"nodes": 3, "wanted_mb": 22528, "free_mb": 18637, "short_mb": 3891, "node": "node-7", "card": 2}


def test_memory_is_told_in_gb_with_the_nearest_card() -> None:
    assert texts.say("vram_short", SHORT) == (
        "3 node(s): 18.2 GB free on a card, 22.0 GB needed; nearest: node-7 card 2, short by 3.8 GB."
    )
    assert texts.say("here_vram_short", {**SHORT, "card": 0}) == (
        "22.0 GB are needed on a card; card 0 is nearest: 18.2 GB free."
    )


def test_what_is_not_known_is_left_out_instead_of_shown_as_a_gap() -> None:
    known = {"nodes": 1, "node": "node-7", "wanted_mb": 1024, "free_mb": 0, "foreign_mb": 512}
    for code, (value, fuller) in FULLER.items():
        assert "?" not in texts.say(code, {**known, value: None})
        assert fuller in texts.TEXTS
    assert texts.say("vram_short", known) == "1 node(s): 0 MB free on a card, 1.0 GB needed."
    assert "python3" in texts.say("foreign_memory", {**known, "process": "python3"})


def test_memory_below_a_gb_is_told_in_mb_and_none_is_no_zero() -> None:
    assert texts.say_size(1023) == "1023 MB" and texts.say_size(1024) == "1.0 GB"
    assert "? free" in texts.say("vram_short", {"nodes": 1, "wanted_mb": 5, "free_mb": None})


@pytest.mark.parametrize("code", ["node_busy", "here_node_busy"])
@pytest.mark.parametrize("what", ["cpu", "memory", "disk"])
def test_what_is_busy_is_a_word_of_the_readers_language(code: str, what: str) -> None:
    params = {"nodes": 1, "what": what, "percent": 95, "limit": 90}
    with translation.override("en"):
        english = texts.say(code, params)
    with translation.override("zh-hans"):
        chinese = texts.say(code, params)
    assert "95 %" in english and "95%" in chinese and what not in chinese
    assert str(texts.TEXTS[f"what_{what}"]) in english or what == "cpu"
