"""Which network interface carries the run between hosts: the one that leads to MASTER_ADDR, or the one named."""

import ipaddress
import os
import socket
from dataclasses import dataclass

import psutil

from mcf.errors import UserError

VARIABLE = "MCF_INTERFACE"
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


@dataclass(frozen=True, kw_only=True)
class Interface:
    """One address of one network interface of this host; `is_asked` tells that the user has named it."""

    name: str
    address: str
    is_asked: bool = False

    @property
    def is_loopback(self) -> bool:
        """Whether only this host reaches it."""
        return ipaddress.ip_address(self.address).is_loopback


def addresses() -> list[Interface]:
    """List the addresses of this host by interface; link-local IPv6 is left out, since peers cannot name it."""
    found = [
        Interface(name=name, address=entry.address)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in _FAMILIES and not entry.address.startswith("fe80")
    ]
    return sorted(found, key=lambda one: (one.name, ":" in one.address))


def choose(host: str, port: int, *, named: str | None = None) -> Interface:
    """Return the interface and address of this host that reach `host`, or those of the interface `named`.

    `named` defaults to the variable MCF_INTERFACE. Raises UserError for an unknown name or host.
    """
    named = named or os.environ.get(VARIABLE) or None
    if named is not None:
        return _by_name(named)
    address = _own_address(host, port)
    names = {one.address: one.name for one in addresses()}
    loopback = next((name for known, name in names.items() if known == "127.0.0.1"), "lo")
    return Interface(name=names.get(address, loopback), address=address)


def in_words(interfaces: list[Interface]) -> str:
    """Return the addresses as a person reads them: `10.0.0.1 on eth0, ...`."""
    return ", ".join(f"{one.address} on {one.name}" for one in interfaces)


def _by_name(name: str) -> Interface:
    for one in addresses():
        if one.name == name:
            return Interface(name=name, address=one.address, is_asked=True)
    known = sorted({one.name for one in addresses()})
    raise UserError(f"no interface {name!r} with an address on this host: expected one of {', '.join(known)}")


def _own_address(host: str, port: int) -> str:
    """Return the source address of packets to `host`: the routing table's answer, without sending any."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        if address[0] in {one.address for one in addresses()}:
            return str(address[0])
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UserError(
            f"MASTER_ADDR {host!r} cannot be reached from here ({error.strerror or error}): expected the address of "
            "the host of rank 0; check --master-addr and the network"
        ) from None
