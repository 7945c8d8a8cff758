"""What an all-to-all message becomes, in plain Python."""

from dataclasses import replace

from mcf.rtl.golden.desc_ring import Item
from mcf.rtl.golden.packet import field
from mcf.schedule.wire import FIELDS, Collective

ADDRESS_SPACE = 1 << 40


def spread(item: Item, *, node: int, num_nodes: int) -> list[Item]:
    """The items that leave node `node` for one item of its ring."""
    if field(item.meta, "collective") != Collective.ALL_TO_ALL:
        return [item]
    targets = [(node + k) % num_nodes for k in range(1, num_nodes + 1)]
    return [
        replace(
            item,
            meta=_unicast(item.meta, node, target),
            address=(item.address + 16 * item.beats * place) % ADDRESS_SPACE,
            set=item.set if target == node else 0,
            tag=item.tag if target == node else 0,
        )
        for place, target in enumerate(targets)
    ]


def _unicast(meta: int, node: int, target: int) -> int:
    route = (field(meta, "route_id") + target) % FIELDS["route_id"].limit
    values = {"dst_node": target, "dst_root": node, "collective": int(Collective.P2P), "route_id": route}
    for name, value in values.items():
        meta = meta & ~(FIELDS[name].limit - 1 << FIELDS[name].low) | value << FIELDS[name].low
    return meta
