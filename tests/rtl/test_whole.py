"""Two whole nodes attend a shard each and merge their states in the network, driven over AXI4-Lite alone."""

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from compute_half import Image, attend, gemv, load
from mcf.rtl.board import Board
from mcf.rtl.build.cxxrtl import missing_compiler
from mcf.rtl.build.verilog import rtlil
from mcf.rtl.descriptor import STATE_BIT, pack_descriptor
from mcf.rtl.driver import read_errors
from mcf.rtl.golden.compute import ComputeModel
from mcf.rtl.golden.reduce import ReduceModel, Setup
from mcf.rtl.golden.state import to_beats
from mcf.rtl.hdl.node import WholeNode
from mcf.rtl.hdl.whole import WHOLE_PORTS
from mcf.rtl.mesh.ddr import DdrTiming
from mcf.rtl.routes import Mesh, Tables, spread
from mcf.schedule.wire import Op, ReduceOp, pack

pytestmark = [
    pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler())),
    pytest.mark.full,  # a whole node compiles for a minute
]

NUMBERS, SCALES, ROWS, MATRIX, KEYS, VALUES = 0x100, 0x2000, 0x4000, 0x10000, 0x40000, 0x60000
HEADS = 3
PAIR = Mesh(width=2, height=1)


@pytest.fixture
def pair() -> Iterator[Board]:
    """Two nodes side by side, with a route from each to node 0: number 1 from node 0, number 2 from node 1."""
    made = Board(PAIR, latency=3, memory=DdrTiming(latency=20, size_bytes=1 << 20))
    tables = Tables(mesh=PAIR)
    for node in range(2):
        tables.add(spread(PAIR, node, PAIR.topology.route(node, 0), [0]))
    for node in range(2):
        made.write_routes(node, tables.words(node).items())
    yield made
    made.close()


def arrived(board: Board, node: int) -> list[list[int]]:
    """Run until nothing moves; the packets that reached a node, as words of 128 bits."""
    while board.run():
        pass
    return [[packet.header, *packet.beats] for packet in board.packets(node)]


def shard(node: int) -> tuple[Image, list[int]]:
    """A node's memory, and commands that attend it; keys wait for event 9, which software sets."""
    image = Image(node)
    image.query_scales(SCALES)
    image.activations(NUMBERS, HEADS, 128)
    image.matrix(MATRIX, 128, 128)
    image.shard(KEYS, VALUES, 200 - 72 * node, 128)
    tiles, tokens = (2, 72) if node == 0 else (1, 128)
    heads = {"address": KEYS, "second": VALUES, "count": HEADS, "tiles": tiles, "tokens": tokens, "child": node}
    return image, [
        load(address=SCALES, count=4, table=1),
        load(address=NUMBERS, count=16 * HEADS),
        gemv(address=MATRIX, second=ROWS, tiles=1, count=1, set_event=8),
        attend(**heads, finish=1, wait_event=9, set_event=10),
    ]


def test_two_nodes_attend_their_shards_and_the_network_merges(pair: Board) -> None:
    shards = [shard(node) for node in range(2)]
    setups = []
    for head in range(HEADS):
        result = pack({"op": Op.REDUCE_RESULT, "reduce_op": ReduceOp.MERGE, "route_id": 1, "len": 17, "tag": head})
        setups.append(Setup(tag=head, children=2, child=0, header=result))
    pair.arm(0, [s.header | s.tag << 128 | s.children << 136 | s.child << 141 for s in setups])
    for node, (image, commands) in enumerate(shards):
        pair.nodes[node].ddr.write(0, bytes(image.bytes))
        header = {"op": Op.STATE, "reduce_op": ReduceOp.MERGE, "route_id": 1 + node, "len": 17}
        states = pack_descriptor(header, address=1 << STATE_BIT, beats=17, repeat=HEADS - 1, step_tag=1, wait_event=10)
        pair.command(node, commands)
        pair.post(node, [states])
    assert arrived(pair, 0) == []  # the keys wait
    for node in range(2):
        pair.set_event(node, 9)
    found = arrived(pair, 0)
    model = ReduceModel()
    for setup in setups:
        assert model.arm(setup)
    for node, (image, commands) in enumerate(shards):
        compute = ComputeModel(image=image.bytes)
        compute.run(commands)
        rows = slice(ROWS, ROWS + 512)
        assert pair.nodes[node].ddr.read(ROWS, 512) == compute.image[rows] != bytes(512)
        records = [to_beats(state, child, 16) for state, child in compute.states]
        assert [beats for _, beats in pair.records(node)] == records
        for head, beats in enumerate(records):
            model.packet([pack({"op": Op.STATE, "reduce_op": ReduceOp.MERGE, "len": 17, "tag": head}), *beats])
    assert sorted(found) == sorted([header, *beats] for header, beats in model.results)
    assert len(model.results) == HEADS
    pair.check_drops()


def test_payload_that_memory_cannot_give_is_not_sent(pair: Board) -> None:
    payload = np.random.default_rng(1).bytes(64)
    pair.nodes[1].ddr.write(0x500, payload)
    header = {"op": Op.KV_DATA, "route_id": 2, "len": 4}
    pair.post(1, [pack_descriptor(header, address=at, beats=4) for at in (0x500, 1 << 30, 0x500)])
    packets = arrived(pair, 0)
    assert [b"".join(word.to_bytes(16, "little") for word in packet[1:]) for packet in packets] == [payload] * 2
    assert pair.ask(1, read_errors()) == ["dropped", "memory"]


def test_a_whole_node_has_what_it_holds_and_wires_for_links() -> None:
    node = WholeNode()
    assert set(node.signature.members) == {*WHOLE_PORTS, "tx", "rx"}
    assert "module" in rtlil(node, top="node")
