"""Documents that must follow the code, and links that must lead somewhere."""

import re

import pytest

from agent.contract.states import State
from apps.ops.state_page import build_page
from apps.workloads.policy.moves import MOVES
from tests.architecture.tree import ROOT, tracked

LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.req("LIFE-02")
def test_state_page_is_current() -> None:
    assert set(MOVES) == set(State)
    assert (ROOT / "docs" / "states.md").read_text() == build_page(), "run: python manage.py write_state_page"


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for page in tracked():
        if page.suffix != ".md":
            continue
        for target in LINK.findall(page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)} -> {target}")
    assert not broken


def test_both_readmes_tell_the_same_commands() -> None:
    def commands(name: str) -> set[str]:
        return set(re.findall(r"(?:^ {4}|`)(make [a-z]+)", (ROOT / name).read_text(), re.MULTILINE))

    assert commands("README.md") == commands("README.zh.md") >= {"make run", "make test", "make check"}
