"""Which addresses are of the internet, however they are written."""

import ipaddress

import pytest

from apps.core.addresses import is_public

pytestmark = pytest.mark.req("GW-19")


@pytest.mark.parametrize(
    "text", ["93.184.216.34", "2606:4700::1", "::ffff:93.184.216.34", "64:ff9b::5db8:d822"]
)
def test_of_the_internet(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize(
    "text",
    [
        *(
            "127.0.0.1",
            "10.0.0.1",
            "169.254.169.254",
            "100.100.100.200",
            "192.0.0.192",
            "224.0.0.1",
            "0.0.0.0",
        ),
        *("::1", "::", "fe80::1", "fe80::1%eth0", "fd00::1", "fec0::1", "ff0e::1", "2001:db8::1", "4000::1"),
        *(
            "::ffff:127.0.0.1",
            "::ffff:0:7f00:1",
            "::7f00:1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::a",
            "2002:7f00:1::",
        ),
    ],
)
def test_of_an_inner_network(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))
