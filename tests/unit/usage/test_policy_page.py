"""The page of the policy names every ending that a record can have, and no other (GW-12)."""

import re
from pathlib import Path

import pytest

from apps.usage.record import Ending

PAGE = Path(__file__).parents[3] / "docs" / "usage.md"


@pytest.mark.req("GW-12")
def test_the_page_names_every_ending() -> None:
    table = PAGE.read_text().partition("## Endings")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(Ending)
