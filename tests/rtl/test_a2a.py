"""The all-to-all unit against its golden model, and what its order is for."""

import random
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from gateware import Bench
from mcf.rtl.golden.a2a import spread
from mcf.rtl.golden.desc_ring import Item
from mcf.rtl.golden.packet import field
from mcf.rtl.hdl.a2a import AllToAll
from mcf.schedule.wire import CRC_BYTES, pack


def items(rng: random.Random, count: int) -> list[Item]:
    return [
        Item(
            meta=pack({"collective": rng.choice((0, 1, 2, 2, 3)), "len": n % 65, "block": n, "route_id": 16 * n})
            & (1 << 8 * CRC_BYTES) - 1,
            address=16 * rng.randrange(1 << 36),
            beats=n % 65,
            set=rng.randrange(256),
            tag=rng.randrange(1 << 16),
        )
        for n in range(count)
    ]


def as_payload(item: Item) -> dict[str, int]:
    return {name: value for name, value in vars(item).items() if name != "wait"}


def read(payload: Any) -> Item:
    return Item(meta=payload.meta, address=payload.address, beats=payload.beats, set=payload.set, tag=payload.tag)


def spread_in_hardware(sent: list[Item], node: int, num_nodes: int, **stalls: Any) -> list[Item]:
    dut = AllToAll()
    bench = Bench(
        dut,
        sources={"items": (dut.items, [as_payload(item) for item in sent])},
        sinks={"unicasts": (dut.unicasts, read)},
        **stalls,
    )

    async def setup(ctx: Any) -> None:
        ctx.set(dut.node, node)
        ctx.set(dut.last, num_nodes - 1)

    return bench.run(700, setup=setup).items("unicasts")


@pytest.mark.parametrize(("node", "num_nodes", "stall"), [(0, 2, 0.0), (3, 4, 0.4), (5, 7, 0.2), (0, 1, 0.0)])
def test_items_are_spread_as_the_model_says(node: int, num_nodes: int, stall: float) -> None:
    sent = items(random.Random(num_nodes), 40)
    want = [unicast for item in sent for unicast in spread(item, node=node, num_nodes=num_nodes)]
    got = spread_in_hardware(sent, node, num_nodes, pause=stall, stall=stall)
    assert got == [replace(item, wait=0) for item in want]
    assert len(want) > 40 or num_nodes == 1


def test_at_any_place_of_the_order_each_node_receives_once() -> None:
    item = items(random.Random(1), 60)[50]
    item = replace(item, meta=pack({"collective": 2, "len": 4, "route_id": 100}))
    orders = [[field(one.meta, "dst_node") for one in spread(item, node=n, num_nodes=6)] for n in range(6)]
    assert all(sorted(targets) == list(range(6)) for targets in zip(*orders, strict=True))
    assert [order[-1] for order in orders] == list(range(6))
    assert [field(one.meta, "route_id") for one in spread(item, node=2, num_nodes=6)] == [103, 104, 105, 100, 101, 102]
