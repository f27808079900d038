"""The builders give rows that belong together."""

import pytest

from tests import factories

pytestmark = pytest.mark.django_db


def test_a_chain_of_rows_can_be_built():
    tenant = factories.make_tenant(quota={"gpus": 4})
    group = factories.make_group(tenant)
    node = factories.make_node(cards=2, allowed_tenants=[tenant])
    first, second = factories.make_task(group), factories.make_task(group)
    claim = factories.make_claim(first, node, percent=40)

    assert (first.rank, second.rank) == (0, 1)
    assert tenant.quota.gpus == 4
    assert not node.open_to_all
    assert [share.percent for share in claim.cards.all()] == [40]


def test_a_card_without_sample_was_never_measured():
    node = factories.make_node(cards=1, sample=False)

    assert not hasattr(node.cards.get(), "sample")


def test_a_client_acts_as_its_user(api_client, operator):
    assert api_client(operator).get("/api/schema.json").status_code == 200
