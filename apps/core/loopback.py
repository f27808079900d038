"""Which names and addresses are this machine's own. Pure: nobody is asked."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a name or an address, also one of IPv4 written as IPv6, is this machine's own."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback
