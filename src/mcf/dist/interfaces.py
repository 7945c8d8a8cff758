"""The network interfaces of this machine, and which one leads to a peer; standard library alone.

The kernel's routing table decides, never the host's name: a distribution that maps its own name to 127.0.1.1, or a host
with several cards, makes a library that looks up the name listen where nobody can reach it.
"""

import array
import fcntl
import ipaddress
import socket
import struct
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_SIOCGIFCONF, _SIOCGIFFLAGS, _SIOCGIFMTU = 0x8912, 0x8913, 0x8921
_IFREQ_BYTES, _MOST = 40, 128  # of one entry; how many entries are asked for
_UP, _LOOPBACK, _RUNNING = 0x1, 0x8, 0x40
_IF_INET6 = Path("/proc/net/if_inet6")


@dataclass(frozen=True, kw_only=True)
class Interface:
    """One interface: its addresses (IPv4 first), its MTU in bytes (0: not known), whether it can carry anything."""

    name: str
    addresses: tuple[str, ...]
    mtu_bytes: int
    is_up: bool
    is_loopback: bool


def interfaces() -> list[Interface]:
    """Return the interfaces of this network namespace in the kernel's order; none where the system is not Linux."""
    if sys.platform != "linux":
        return []
    v4, v6 = _ipv4(), _ipv6()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return [
            _interface(sock, name, (*v4.get(name, ()), *v6.get(name, ()))) for _, name in sorted(socket.if_nameindex())
        ]


def source_address(peer: str) -> str:
    """Return the address from which this machine would talk to `peer`, "" where no way leads there; sends nothing."""
    try:
        family = socket.AF_INET6 if ":" in peer else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((peer, 9))  # a datagram socket: only the routing table is asked
            return str(sock.getsockname()[0])
    except OSError:
        return ""


def addresses_of_name(name: str) -> list[str]:
    """Return what a host name resolves to on this machine; none where it does not."""
    try:
        return sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
    except OSError:
        return []


def is_loopback(address: str) -> bool:
    """Say whether an address is one of this machine alone: 127.0.0.0/8 or ::1."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def facts(peers: Iterable[str]) -> dict[str, Any]:
    """Return what `mcf.engine.checks` wants to know: interfaces, the host's name, and the way to each peer."""
    name = socket.gethostname()
    return {
        "host": name,
        "host_addresses": addresses_of_name(name),
        "interfaces": [{**asdict(each), "addresses": list(each.addresses)} for each in interfaces()],
        "ways": {peer: source_address(peer) for peer in peers},
    }


def _interface(sock: socket.socket, name: str, addresses: tuple[str, ...]) -> Interface:
    flags = _number(sock, _SIOCGIFFLAGS, name, "16sH")
    return Interface(
        name=name,
        addresses=addresses,
        mtu_bytes=_number(sock, _SIOCGIFMTU, name, "16si"),
        is_up=bool(flags & _UP) and bool(flags & _RUNNING),
        is_loopback=bool(flags & _LOOPBACK),
    )


def _number(sock: socket.socket, request: int, name: str, layout: str) -> int:
    """Ask for one number of an interface; 0 where it has gone meanwhile."""
    try:
        answer = fcntl.ioctl(sock, request, struct.pack(f"16s{_IFREQ_BYTES - 16}x", name.encode()))
    except OSError:
        return 0
    return int(struct.unpack_from(layout, answer)[1])


def _ipv4() -> dict[str, list[str]]:
    """Addresses by interface; an alias such as eth0:1 counts to its interface."""
    buffer = array.array("B", bytes(_IFREQ_BYTES * _MOST))
    where, room = buffer.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        used = struct.unpack("iL", fcntl.ioctl(sock, _SIOCGIFCONF, struct.pack("iL", room, where)))[0]
    found: dict[str, list[str]] = {}
    for start in range(0, used, _IFREQ_BYTES):
        entry = buffer[start : start + _IFREQ_BYTES].tobytes()
        name = entry[:16].split(b"\0", 1)[0].decode().partition(":")[0]
        found.setdefault(name, []).append(socket.inet_ntoa(entry[20:24]))
    return found


def _ipv6() -> dict[str, list[str]]:
    try:
        lines = _IF_INET6.read_text().splitlines()
    except OSError:
        return {}
    found: dict[str, list[str]] = {}
    for line in lines:
        raw, *_, name = line.split()
        found.setdefault(name, []).append(str(ipaddress.IPv6Address(int(raw, 16))))
    return found
