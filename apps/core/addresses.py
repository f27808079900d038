"""Which network addresses are public. Pure: resolves nothing and connects to nothing.

For whoever sends to an address that a person typed: it may come to name a machine that only this server
reaches, so what was resolved is judged by this before the connection goes there.
"""

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# NAT64 (RFC 6052, and RFC 8215 for a network's own), and the first form that IPv4 had in IPv6.
_WITH_IPV4 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96"))
_OWN_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")


def is_public(address: Address) -> bool:
    """Whether it is of the internet, however it is written."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.is_site_local or address in _OWN_NAT64:
            return False
        address = _ipv4_in(address) or address
    return address.is_global and not address.is_multicast


def read_address(text: str) -> Address | None:
    """The address that a text is; None for a name."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _ipv4_in(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Whom a network with a translator reaches by this address: a public one may stand for a private one."""
    if address.ipv4_mapped or address.sixtofour:
        return address.ipv4_mapped or address.sixtofour
    if any(address in network for network in _WITH_IPV4):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None
