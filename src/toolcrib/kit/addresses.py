"""Which addresses are public: the only ones that a request made for a model may reach.

What is not known to be public is refused. The tables are IANA's special-purpose address registries
(iana.org/assignments/iana-ipv4-special-registry and iana-ipv6-special-registry, RFC 6890), kept here
because `ipaddress` judges several of them differently from one Python to the next.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

_NOT_PUBLIC_4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network; Linux connects 0.0.0.0 to itself
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # shared by a carrier's customers; metadata of Alibaba Cloud
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # metadata of Azure, in a public range
            "169.254.0.0/16",  # link-local; metadata of most clouds
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments; metadata of Oracle Cloud
            "192.0.2.0/24",  # documentation
            "192.31.196.0/24",  # AS112
            "192.52.193.0/24",  # multicast tunnels
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",  # private
            "192.175.48.0/24",  # AS112
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/3",  # multicast, reserved, broadcast
        ),
    )
)
_GLOBAL_6 = IPv6Network("2000::/3")  # all that IANA has given out
_NOT_PUBLIC_6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments: Teredo, ORCHID, benchmarks
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4: an IPv4 address in disguise
            "2620:4f:8000::/48",  # AS112
            "3fff::/20",  # documentation
        ),
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")  # RFC 6052: how an IPv6 network reaches IPv4


def is_public(address: Address) -> bool:
    """Of an IPv6 address that stands for an IPv4 one (mapped, NAT64), what that one is."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped
        if address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFF_FFFF)
        if inner is None:
            return address in _GLOBAL_6 and not any(address in net for net in _NOT_PUBLIC_6)
        address = inner
    return not any(address in net for net in _NOT_PUBLIC_4)


def may_reach(host: str, private: tuple[Network, ...]) -> bool:
    """Whether the address that a connection is about to go to is public, or in one of `private`."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return is_public(address) or any(address in network for network in private)
