"""Which network addresses are public. Pure: resolves nothing and connects to nothing.

For whoever sends to an address that a person typed: it may come to name a machine that only this server
reaches, so what was resolved is judged by this before the connection goes there.
"""

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# NAT64 (RFC 6052), and the first form that IPv4 had in IPv6.
_WITH_IPV4 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96"))
# Nothing of the internet is outside; what is, translators may take for IPv4 (RFC 2765, RFC 8215).
_GLOBAL = ipaddress.IPv6Network("2000::/3")
_SPECIAL = ipaddress.IPv4Network("192.0.0.0/24")  # of protocols (RFC 6890); a cloud keeps its secrets there


def is_public(address: Address) -> bool:
    """Whether it is of the internet, however it is written."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = _ipv4_in(address)
        if inner is None:
            return address in _GLOBAL and address.is_global
        address = inner
    return address.is_global and not address.is_multicast and address not in _SPECIAL


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
