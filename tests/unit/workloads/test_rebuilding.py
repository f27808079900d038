"""What becomes of a failed inference task, and what it runs by its place in the template chain."""

from itertools import product

import pytest

from agent.contract.codes import Code
from apps.workloads.policy.rebuilding import NODE_FAULTS, TEMPLATE_FAULTS, Failure, Step, decide
from apps.workloads.policy.templates import Template, pick

OWN = Template("vllm/vllm-openai:v1", "vllm", ("serve",), "H200")
CHAIN = [{"image": "lmsys/sglang:v1", "engine": "sglang"}, {"image": "llama.cpp:b1", "gpu_type": "RTX 4090"}]


def failure(code, *, ran=False, rebuild=1, template=0, templates=0, elsewhere=False) -> Failure:
    return Failure(code, ran, rebuild, template, templates, elsewhere)


@pytest.mark.req("RECOV-03")
@pytest.mark.parametrize("code", sorted(TEMPLATE_FAULTS))
def test_an_engine_that_does_not_start_is_followed_by_the_next_template_at_no_cost(code):
    mend = decide(failure(code, templates=2, rebuild=None, elsewhere=True))

    assert (mend.step, mend.code, mend.template) == (Step.NEXT_TEMPLATE, Code.TEMPLATE_NEXT, 1)


@pytest.mark.req("RECOV-03")
def test_after_the_last_template_a_rebuild_begins_with_the_first_again_until_they_are_spent():
    again = decide(failure(Code.EXITED, template=2, templates=2, rebuild=3))
    assert (again.step, again.template) == (Step.REBUILD, 0)

    spent = decide(failure(Code.EXITED, template=2, templates=2, rebuild=None))
    assert (spent.step, spent.code) == (Step.GIVE_UP, Code.TEMPLATES_SPENT)


@pytest.mark.req("RECOV-03")
@pytest.mark.parametrize("code", [Code.NODE_LOST, Code.STALLED, Code.OUT_OF_MEMORY, Code.CARD_LOST])
def test_what_no_template_would_mend_stays_with_its_template(code):
    mend = decide(failure(code, template=1, templates=2))
    assert (mend.step, mend.template) == (Step.REBUILD, 1)


@pytest.mark.req("RECOV-01")
def test_what_ran_is_rebuilt_as_it_was():
    mend = decide(failure(Code.EXITED, ran=True, template=1, templates=2))
    assert (mend.step, mend.template) == (Step.REBUILD, 1)


@pytest.mark.req("RECOV-01")
@pytest.mark.parametrize("code", sorted(NODE_FAULTS))
def test_a_node_that_refused_is_not_asked_five_times(code):
    assert decide(failure(code, elsewhere=True)).step is Step.NEXT_NODE
    refused = decide(failure(code))
    assert (refused.step, refused.code) == (Step.GIVE_UP, Code.REFUSED_EVERYWHERE)


@pytest.mark.req("RECOV-01")
def test_what_a_failure_leads_to_is_decided_for_every_case_and_the_chain_never_runs_out():
    for code, ran, rebuild, template, elsewhere in product(
        Code, (True, False), (1, None), range(3), (True, False)
    ):
        mend = decide(Failure(code, ran, rebuild, template, 2, elsewhere))
        assert 0 <= mend.template <= 2
        assert rebuild is not None or mend.step is not Step.REBUILD


@pytest.mark.req("RECOV-03")
@pytest.mark.parametrize(
    ("chain", "index", "expected"),
    [
        (CHAIN, 0, OWN),
        ([], 2, OWN),
        (CHAIN, 1, Template("lmsys/sglang:v1", "sglang", (), "H200")),
        (CHAIN, 2, Template("llama.cpp:b1", "", (), "RTX 4090")),
        (CHAIN, 9, Template("llama.cpp:b1", "", (), "RTX 4090")),
    ],
)
def test_a_place_of_the_chain_says_what_runs(chain, index, expected):
    assert pick(OWN, chain, index) == expected
