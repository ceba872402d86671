from __future__ import annotations

from ipaddress import ip_address, ip_network

from rows import each_row

from toolcrib.kit.http import is_public, may_reach

PUBLIC = (
    *("1.1.1.1", "8.8.8.8", "94.130.142.35", "172.15.255.255", "172.32.0.0", "223.255.255.255"),
    *("100.63.255.255", "100.128.0.0", "168.63.129.15", "192.0.1.0", "198.17.255.255"),
    *("2606:4700::1111", "2a01:4f8::1", "2001:4860:4860::8888"),
    *("::ffff:8.8.8.8", "64:ff9b::8.8.8.8"),
)
NOT_PUBLIC = (
    "0.0.0.0",  # noqa: S104
    *("0.1.2.3", "10.0.0.1", "127.0.0.1", "127.255.255.254", "172.16.0.1"),
    *("172.31.255.255", "192.168.1.1", "169.254.0.1", "169.254.169.254", "169.254.170.2"),
    *("100.64.0.1", "100.100.100.200", "192.0.0.192", "168.63.129.16", "198.18.0.1"),
    *("192.0.2.1", "198.51.100.1", "203.0.113.1", "192.88.99.1"),
    *("224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1"),
    *("::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe"),
    *("64:ff9b:1::7f00:1", "2002:7f00:1::", "2001::1", "2001:db8::1", "3fff::1"),
    *("fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "ff0e::1"),
    *("100::1", "5f00::1", "4000::1"),
)


@each_row("address", PUBLIC)
def test_a_public_address(address: str) -> None:
    assert is_public(ip_address(address))
    assert may_reach(address, ())


@each_row("address", NOT_PUBLIC)
def test_an_address_that_is_not_public(address: str) -> None:
    assert not is_public(ip_address(address))
    assert not may_reach(address, ())


@each_row("host", ["", "localhost", "127.1", "2130706433", "0x7f.0.0.1", "1.1.1.1 "])
def test_what_is_no_address_is_not_reached(host: str) -> None:
    assert not may_reach(host, (ip_network("0.0.0.0/0"), ip_network("::/0")))


def test_a_private_network_has_to_be_named() -> None:
    home = (ip_network("192.168.1.0/24"), ip_network("fd00::/8"))
    reached = ["192.168.1.7", "fd00::7", "8.8.8.8"]
    assert [
        a for a in (*reached, "192.168.2.7", "127.0.0.1", "::1") if may_reach(a, home)
    ] == reached


def test_a_mapped_address_is_not_that_of_a_named_network() -> None:
    assert not may_reach("::ffff:127.0.0.1", (ip_network("127.0.0.0/8"),))
