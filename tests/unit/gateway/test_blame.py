"""What a fault of a call means for its record and for the replica that had it."""

import pytest

from apps.core import texts
from apps.gateway.plane.core import errors
from apps.gateway.plane.core.blame import ending_of, failure_of
from apps.gateway.plane.core.circuit import Failure
from apps.gateway.plane.core.request import INFERENCE_PATHS
from apps.usage.record import Ending


@pytest.mark.req("GW-08")
def test_an_engine_that_refuses_the_gateways_key_has_failed_and_says_how() -> None:
    assert failure_of(errors.upstream_refused_us()) is Failure.CREDENTIAL
    assert failure_of(errors.not_offered_by_engine("tiny")) is None
    for kind in Failure:
        assert texts.say(f"failure_{kind.value}")


@pytest.mark.req("GW-12")
def test_a_pin_that_leads_nowhere_is_no_error_of_an_engine() -> None:
    assert ending_of(errors.pinned_nothing("tiny")) is Ending.REFUSED
    assert ending_of(errors.upstream_unreachable()) is Ending.UPSTREAM_ERROR
    assert ending_of(errors.no_backend("tiny", 2)) is Ending.NO_BACKEND
    assert ending_of(None) is Ending.COMPLETED


@pytest.mark.req("GW-01")
def test_an_unknown_path_is_told_those_there_are() -> None:
    assert all(path in errors.unknown_path("/v1/responses").message for path in INFERENCE_PATHS)
