"""A node whose Docker is silent is told from one that is well, and from a dead one (AGENT-01, OPS-09)."""

from datetime import timedelta

import pytest

from apps.alerts.models import Alert
from apps.fleet.models import Liveness, Node
from tests import factories
from tests.apps.fleet.test_heartbeats import beat
from tests.factories import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.req("AGENT-01", "OPS-09")]
LATER = NOW + timedelta(seconds=5)


def test_of_a_node_that_is_heard_it_is_an_alert_and_the_heartbeat_counts():
    node = factories.make_node("gpu-7")
    assert beat(node, 1).accepted and not Alert.objects.exists()
    assert beat(node, 2, now=LATER, runtime_silent=True, engines=[]).accepted
    assert Liveness.objects.get(node=node).last_seen_at == LATER
    assert Node.objects.get(pk=node.pk).engines == []  # so nothing is placed there
    alert = Alert.objects.get()
    told = (alert.code, alert.object_id, alert.params)
    assert told == ("runtime_silent", node.public_id, {"node": "gpu-7"})


def test_a_run_that_knows_nothing_yet_makes_no_node_online_and_takes_nothing_over():
    node = factories.make_node()
    beat(node, 7)
    before = Liveness.objects.values().get(node=node)
    for _ in range(2):  # its address is not looked at either: nobody will dial it
        outcome = beat(node, 1, now=LATER, incarnation="run-b", address="10.0.0.9", runtime_silent=True)
        assert (outcome.accepted, outcome.superseded) == (False, False)
    assert Liveness.objects.values().get(node=node) == before
    assert Alert.objects.get(code="runtime_silent").times == 2
