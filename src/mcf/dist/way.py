"""Which interface and address carry a run over hosts: those that lead to MASTER_ADDR, or the interface named."""

import os
import socket
from dataclasses import dataclass

from mcf.dist.interfaces import Interface, interfaces, is_loopback, source_address
from mcf.errors import UserError

VARIABLE = "MCF_INTERFACE"


@dataclass(frozen=True, kw_only=True)
class Way:
    """One address of one interface of this host; `is_asked` tells that the user has named the interface."""

    name: str
    address: str
    is_asked: bool = False

    @property
    def is_loopback(self) -> bool:
        """Whether only this host reaches it."""
        return is_loopback(self.address)


def choose(host: str, *, named: str | None = None) -> Way:
    """Return this host's way to `host`, or through the interface `named` (default: the variable MCF_INTERFACE).

    Raises UserError for an interface that is not there and for a host without an address or a way to it.
    """
    named = named or os.environ.get(VARIABLE) or None
    return _way_to(host) if named is None else _way_through(named)


def network_addresses() -> str:
    """Return the addresses of this host that others may reach, as a person reads them: `10.0.0.1 on eth0, ...`."""
    found = [
        f"{address} on {one.name}" for one in interfaces() if not one.is_loopback for address in _telling(one.addresses)
    ]
    return ", ".join(found) or "none"


def _way_through(name: str) -> Way:
    with_address = [one for one in interfaces() if _telling(one.addresses)]
    for one in with_address:
        if one.name == name:
            return Way(name=name, address=_telling(one.addresses)[0], is_asked=True)
    known = ", ".join(one.name for one in with_address)
    raise UserError(f"no interface {name!r} with an address on this host: expected one of {known}")


def _way_to(host: str) -> Way:
    try:
        target = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise UserError(
            f"MASTER_ADDR {host!r} has no address here ({error.strerror}): expected the host of rank 0; "
            "check --master-addr and this host's name service"
        ) from None
    known = interfaces()
    owner = _owner(known, target)
    address = target if owner is not None else source_address(target)
    if not address:
        raise UserError(f"no way leads to MASTER_ADDR {host!r}: expected the host of rank 0; check the network")
    owner = owner or _owner(known, address) or _loopback(known)
    return Way(name=owner.name if owner else "?", address=address)


def _owner(known: list[Interface], address: str) -> Interface | None:
    return next((one for one in known if address in one.addresses), None)


def _loopback(known: list[Interface]) -> Interface | None:
    """Return the interface that has all of 127.0.0.0/8, whatever addresses it lists."""
    return next((one for one in known if one.is_loopback), None)


def _telling(addresses: tuple[str, ...]) -> list[str]:
    """Leave out link-local IPv6, which means something else on every host."""
    return [address for address in addresses if not address.startswith("fe80")]
