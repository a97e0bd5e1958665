"""Which addresses belong to the public internet; a link that leads anywhere else is not followed.

Stricter than `ipaddress.is_global`, whose table depends on Python's version: whatever carries an IPv4 address
inside (mapped, compatible, 6to4, Teredo, NAT64) is not public either, since it may lead where that one leads.
"""

from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Final

_PUBLIC_V6: Final = IPv6Network("2000::/3")
_NOT_PUBLIC_V4: Final = tuple(
    IPv4Network(text)
    for text in (
        "100.64.0.0/10",  # shared by a provider's customers; Alibaba's metadata service
        "168.63.129.16/32",  # Azure's, which lies among public addresses
        "192.0.0.0/24",  # Oracle's
        "192.88.99.0/24",  # 6to4 relays
        "224.0.0.0/3",  # multicast and reserved
    )
)
_NOT_PUBLIC_V6: Final = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # Teredo and other protocols' own
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "3fff::/20",
    )
)


def is_public(text: str) -> bool:
    """Say whether an address, as a resolver writes it, is one of the public internet."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    if address.version == 4:
        return not any(address in network for network in _NOT_PUBLIC_V4)
    return address in _PUBLIC_V6 and not any(address in network for network in _NOT_PUBLIC_V6)
