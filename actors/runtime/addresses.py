"""Which addresses may be asked that clients name: public ones, unless an option says more (--allow-private-media).

A server that fetches what clients name would otherwise be a way to whatever it alone can reach: services of its own
machine and network, and the metadata of clouds, which stand at link-local, private or (some) odd addresses.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

NAT64 = IPv6Network("64:ff9b::/96")  # an IPv4 address for networks of IPv6 alone
COMPATIBLE = IPv6Network("::/96")  # an IPv4 address, as it was once written
CLOUDS = frozenset({IPv4Address("168.63.129.16"), IPv4Address("192.0.0.192")})  # public, and a cloud's own all the same


def is_public(address: str) -> bool:
    """May anybody's server stand at this IP address, with all that it leads to?"""
    try:
        given = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(given, IPv6Address) and given in NAT64:
        return _is_public(_last(given))
    return all(_is_public(one) for one in (given, *_inside(given)))


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    local = address.is_multicast or address.is_reserved or (address.version == 6 and address.is_site_local)
    return address.is_global and not local and address not in CLOUDS


def _last(address: IPv6Address) -> IPv4Address:
    """In its last bits."""
    return IPv4Address(int(address) & 0xFFFFFFFF)


def _inside(address: IPv4Address | IPv6Address) -> list[IPv4Address]:
    """The IPv4 addresses to which one of IPv6 leads."""
    if isinstance(address, IPv4Address):
        return []
    found = [_last(address)] if address in COMPATIBLE else []
    found += [inner for inner in (address.ipv4_mapped, address.sixtofour) if inner is not None]
    return found + list(address.teredo or ())


def is_below(host: str, domains: list[str]) -> bool:
    """Is it one of these domains, or below one?"""
    host = host.rstrip(".").lower()
    named = [domain.lstrip("*").strip(".").lower() for domain in domains]
    return any(host == domain or host.endswith(f".{domain}") for domain in named)
