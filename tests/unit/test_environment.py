"""What the environment says in the wrong form is refused by its name and value."""

from collections.abc import Callable

import pytest
from django.core.exceptions import ImproperlyConfigured

from heteroflow.env import env

WRONG: list[tuple[str, str, Callable[[str], object], str]] = [
    ("PORT", "many", env.int, "PORT=many is not a whole number."),
    (
        "LOG_LEVEL",
        "loud",
        lambda name: env.one_of(name, "INFO", "DEBUG"),
        "LOG_LEVEL=loud is none of INFO, DEBUG.",
    ),
]


@pytest.mark.parametrize(("name", "value", "read", "said"), WRONG)
def test_a_wrong_value_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, read: Callable[[str], object], said: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ImproperlyConfigured) as told:
        read(name)
    assert str(told.value) == said


def test_the_first_word_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOG_LEVEL", raising=False)
    assert env.one_of("LOG_LEVEL", "INFO", "DEBUG") == "INFO"
    monkeypatch.setenv("LOG_LEVEL", "DEBUG")
    assert env.one_of("LOG_LEVEL", "INFO", "DEBUG") == "DEBUG"
