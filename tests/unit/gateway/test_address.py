"""Where a call comes from, and which keys may be used from there (TEN-06)."""

import pytest

from apps.gateway.plane.core.address import find_address, is_within, require_address
from apps.gateway.plane.core.errors import CallError
from tests.fakes.gateway import SECRET, make_key

pytestmark = pytest.mark.req("TEN-06")

PROXY = ("10.0.0.1",)


@pytest.mark.parametrize(
    ("peer", "forwarded", "trusted", "found"),
    [
        ("203.0.113.9", b"", (), "203.0.113.9"),
        ("203.0.113.9", b"198.51.100.1", (), "203.0.113.9"),  # nobody trusts this peer's word
        ("203.0.113.9", b"198.51.100.1", PROXY, "203.0.113.9"),
        ("10.0.0.1", b"198.51.100.1", PROXY, "198.51.100.1"),
        ("10.0.0.1", b"6.6.6.6, 198.51.100.1", PROXY, "198.51.100.1"),  # what the caller itself wrote
        ("10.0.0.1", b"198.51.100.1, 10.0.0.1", PROXY, "198.51.100.1"),
        ("10.0.0.1", b"10.0.0.1", PROXY, "10.0.0.1"),
        ("10.0.0.1", b"", PROXY, "10.0.0.1"),
        ("10.0.0.7", b"198.51.100.1:4711", ("10.0.0.0/8",), "198.51.100.1"),
        ("::1", b"[2001:db8::5]:4711", ("::1",), "2001:db8::5"),
        ("::ffff:10.0.0.1", b"::ffff:198.51.100.1", PROXY, "198.51.100.1"),
        ("10.0.0.1", b"unknown", PROXY, None),
        ("10.0.0.1", b"198.51.100.1, _hidden", PROXY, None),
        ("", b"198.51.100.1", PROXY, None),
        ("203.0.113.9", b"198.51.100.1, 6.6.6.6", ("*",), "198.51.100.1"),
        ("10.0.0.1", b"\xff\xfe", PROXY, None),
    ],
)
def test_a_proxys_word_counts_only_where_it_is_trusted(
    peer: str, forwarded: bytes, trusted: tuple[str, ...], found: str | None
) -> None:
    address = find_address(peer, forwarded, trusted)
    assert (None if address is None else str(address)) == found


def test_what_was_resolved_already_is_resolved_no_further() -> None:
    """A server that put the proxy's word in the peer's place leaves the header there."""
    first = find_address("10.0.0.1", b"6.6.6.6, 198.51.100.1", PROXY)
    assert find_address(str(first), b"6.6.6.6, 198.51.100.1", PROXY) == first


@pytest.mark.parametrize(
    ("networks", "peer", "allowed"),
    [
        (None, "", True),
        (("10.0.0.0/8",), "10.255.0.1", True),
        (("10.0.0.0/8",), "11.0.0.1", False),
        (("10.0.0.0/8", "2001:db8::/32"), "2001:db8::1", True),
        (("10.0.0.0/8",), "2001:db8::1", False),
        (("0.0.0.0/0",), "::1", False),
        (("10.0.0.0/8",), "", False),
        (("no network",), "10.0.0.1", False),
        ((), "10.0.0.1", False),
    ],
)
def test_a_limited_key_opens_from_its_addresses_alone(
    networks: tuple[str, ...] | None, peer: str, allowed: bool
) -> None:
    key = make_key(allowed_networks=networks)
    if allowed:
        require_address(key, find_address(peer, b"", ()))
        return
    with pytest.raises(CallError) as refused:
        require_address(key, find_address(peer, b"", ()))
    assert (refused.value.status, refused.value.code) == (403, "address_not_allowed")
    told = refused.value.body().decode()
    assert "10.0.0.0/8" not in told and SECRET not in told


def test_a_network_that_is_none_holds_nothing() -> None:
    address = find_address("10.0.0.1", b"", ())
    assert address is not None
    assert not is_within(address, ["10.0.0.0/8x", "", "10.0.0.0/64"])
