"""Checks of the way between the nodes: which interface, and whether its ports open."""

from collections.abc import Iterator

from mcf.dist.interfaces import is_loopback
from mcf.engine.doctor.survey import ERROR, WARNING, Finding, NodeReport, Survey


def check_network(survey: Survey) -> Iterator[Finding]:
    """The interface that would be used: one that leads to the others, not loopback, up, and with everybody's MTU."""
    for node in survey.nodes if not survey.is_local else ():
        yield from _network_of(node, survey)
    yield from _mtu(survey) if not survey.is_local else ()


def _network_of(node: NodeReport, survey: Survey) -> Iterator[Finding]:
    used, facts = node.interface(), node.facts
    if is_loopback(node.address):
        right = next((way for way in facts["ways"].values() if way and not is_loopback(way)), "")
        do = f"use {right} ({_owner(node, right)})" if right else "give the node an address in the others' network"
        yield _network(ERROR, node, f"others are told to reach it at {node.address}, which is loopback", do)
    elif used is None:
        yield _network(ERROR, node, f"no interface of it has the address {node.address}", "correct the address")
    elif not used["is_up"]:
        yield _network(ERROR, node, f"{used['name']} is down", f"ip link set {used['name']} up, or plug it in")
    for peer, way in facts["ways"].items():
        if not way:
            yield _network(ERROR, node, f"no way leads to {peer}", "put the nodes into one network, or add a route")
        elif way != node.address and used is not None:
            what = f"it talks to {peer} from {way} ({_owner(node, way)}), others talk to it at {node.address}"
            yield _network(WARNING, node, what, f"use {way} as its address, so that both ways take one interface")
    names = facts["host_addresses"]
    if names and all(map(is_loopback, names)):
        what = f"its name {facts['host']} resolves to {names[0]}: what looks up the name listens on loopback"
        yield _network(
            WARNING, node, what, f"use {node.address} in place of the name, or give it that address in /etc/hosts"
        )


def _mtu(survey: Survey) -> Iterator[Finding]:
    sizes = {node.rank: (node.interface() or {}).get("mtu_bytes", 0) for node in survey.nodes}
    known = [size for size in sizes.values() if size]
    for node in survey.nodes:
        size = sizes[node.rank]
        if size and size != min(known):
            name = (node.interface() or {})["name"]
            what = f"{name} has an MTU of {size} bytes, another node {min(known)}: large frames are dropped silently"
            yield _network(WARNING, node, what, f"ip link set {name} mtu {min(known)}, or raise the others")


def _owner(node: NodeReport, address: str) -> str:
    owners = (str(each["name"]) for each in node.facts["interfaces"] if address in each["addresses"])
    return next(owners, "no interface")


def _network(level: str, node: NodeReport, what: str, do: str) -> Finding:
    return Finding(level=level, check="network", node=node.label, what=what, do=do)


def network_seen(survey: Survey) -> str:
    """Name the interface and address of each worker."""
    if survey.is_local:
        return "loopback: all workers are processes of this machine"
    return "; ".join(f"{node.label}: {_owner(node, node.address)} ({node.address})" for node in survey.nodes)


def check_ports(survey: Survey) -> Iterator[Finding]:
    """Every node can open a port on its address, and every other node can connect to it and is answered."""
    for node in survey.nodes:
        if node.cannot_listen:
            what = f"it cannot open a port on {node.address}: {node.cannot_listen}"
            do = "correct the address, or free ports (net.ipv4.ip_local_port_range)"
            yield Finding(level=ERROR, check="ports", node=node.label, what=what, do=do)
        for rank, why in node.cannot_reach.items():
            if why and not survey.nodes[rank].cannot_listen:
                what = f"it cannot connect to worker {rank} at {survey.nodes[rank].address}: {why}"
                do = "let the nodes' firewalls pass TCP between them on all ports above 1023"
                yield Finding(level=ERROR, check="ports", node=node.label, what=what, do=do)


def ports_seen(survey: Survey) -> str:
    """Say how many ways were tried."""
    count = len(survey.nodes)
    return "a port can be opened" if count == 1 else f"all {count * (count - 1)} ways between {count} workers are open"
