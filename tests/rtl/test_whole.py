"""Two whole nodes attend a shard each and merge their states in the network, driven over AXI4-Lite alone."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from compute_half import Image, attend, gemv, load
from mcf.rtl.build.cxxrtl import compile_module, missing_compiler
from mcf.rtl.build.verilog import rtlil
from mcf.rtl.cpu import Cpu
from mcf.rtl.descriptor import pack_descriptor
from mcf.rtl.driver import CommandRing, Program, Rings, read_errors, start, write_register, write_tables
from mcf.rtl.golden.compute import ComputeModel
from mcf.rtl.golden.reduce import ReduceModel, Setup
from mcf.rtl.golden.state import to_beats
from mcf.rtl.hdl.node import WholeNode
from mcf.rtl.hdl.payload import STATE_BIT
from mcf.rtl.hdl.whole import WHOLE_PORTS, Whole
from mcf.rtl.mesh.ddr import Ddr, DdrTiming
from mcf.rtl.mesh.library import Mesh as Instances
from mcf.rtl.routes import Mesh, Tables, spread
from mcf.schedule.wire import Op, ReduceOp, pack

pytestmark = [
    pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler())),
    pytest.mark.full,  # a whole node compiles for a minute
]

NUMBERS, SCALES, ROWS, MATRIX, KEYS, VALUES = 0x100, 0x2000, 0x4000, 0x10000, 0x40000, 0x60000
HEADS, EAST, WEST = 3, 1, 3
PAIR = Mesh(width=2, height=1)


@dataclass(kw_only=True)
class Node:
    """One node, its processor, its memory, its packets, and software's sides of its rings."""

    processor: Cpu
    memory: Ddr
    packets: int
    commands: CommandRing = field(default_factory=CommandRing)
    descriptors: Rings = field(default_factory=Rings)


class Pair:
    """Two nodes side by side, with a route from each to node 0: number 1 from node 0, number 2 from node 1."""

    def __init__(self) -> None:
        self.instances = Instances()
        library = compile_module(Whole(), name="whole")
        cores = [self.instances.instance(library) for _ in range(2)]
        for a, b, out, into in ((0, 1, EAST, WEST), (1, 0, WEST, EAST)):
            ends = (cores[a], f"links_out__{out}"), (cores[b], f"links_in__{into}")
            self.instances.link(*ends, latency=3, depth=8, last_bit=128)
        self.nodes = [self._node(core) for core in cores]
        tables = Tables(mesh=PAIR)
        for node in range(2):
            tables.add(spread(PAIR, node, PAIR.topology.route(node, 0), [0]))
        for number, node in enumerate(self.nodes):
            node.processor.start(start(node=number, x=number, y=0, last=1, is_counting=False))
            node.processor.start(write_tables(dict(tables.words(number)), {}))

    def _node(self, core: int) -> Node:
        ports = [(core, f"reads__{port}") for port in range(5)] + [(core, "write")]
        memory = self.instances.ddr(ports, DdrTiming(latency=20, size_bytes=1 << 20))
        packets = self.instances.sink((core, "kv"), last_bit=128)
        return Node(processor=Cpu(self.instances, core), memory=memory, packets=packets)

    def run(self, *programs: tuple[int, Program[None]]) -> None:
        """Run programs to their end, and the nodes until nothing moves."""
        for node, program in programs:
            self.nodes[node].processor.start(program)
        quiet = 0
        while quiet < 3:
            for node in self.nodes:
                node.processor.go_on()
            self.instances.run(2000, wake=True)
            quiet = 0 if any(node.processor.is_busy for node in self.nodes) else quiet + 1
        self.instances.run(20_000)

    def arrived(self, node: int) -> list[list[int]]:
        """The packets that reached a node's data port, as words of 128 bits."""
        _, words = self.instances.take(self.nodes[node].packets, 5)
        packets: list[list[int]] = [[]]
        for beat in words.tolist():
            packets[-1].append(sum(word << 32 * i for i, word in enumerate(beat[:4])))
            if beat[4] & 1:
                packets.append([])
        assert packets.pop() == []
        return packets


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.instances.close()


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


def test_two_nodes_attend_their_shards_and_the_network_merges(pair: Pair) -> None:
    shards = [shard(node) for node in range(2)]
    setups = []
    for head in range(HEADS):
        result = pack({"op": Op.REDUCE_RESULT, "reduce_op": ReduceOp.MERGE, "route_id": 1, "len": 17, "tag": head})
        setups.append(Setup(tag=head, children=2, child=0, header=result))
    words = {s.tag: s.header | s.tag << 128 | s.children << 136 | s.child << 141 for s in setups}
    pair.run((0, write_tables({}, words)))
    for number, (image, commands) in enumerate(shards):
        pair.nodes[number].memory.write(0, bytes(image.bytes))
        header = {"op": Op.STATE, "reduce_op": ReduceOp.MERGE, "route_id": 1 + number, "len": 17}
        states = pack_descriptor(header, address=1 << STATE_BIT, beats=17, repeat=HEADS - 1, step_tag=1, wait_event=10)
        node = pair.nodes[number]
        pair.run((number, node.commands.post(commands)), (number, node.descriptors.post([states])))
    assert pair.arrived(0) == []  # the keys wait
    pair.run(*((number, write_register("set_event", event=9)) for number in range(2)))
    model = ReduceModel()
    for setup in setups:
        assert model.arm(setup)
    for number, (image, commands) in enumerate(shards):
        compute = ComputeModel(image=image.bytes)
        compute.run(commands)
        rows = slice(ROWS, ROWS + 512)
        assert pair.nodes[number].memory.read(ROWS, 512) == compute.image[rows] != bytes(512)
        for head, (state, child) in enumerate(compute.states):
            header = pack({"op": Op.STATE, "reduce_op": ReduceOp.MERGE, "len": 17, "tag": head})
            model.packet([header, *to_beats(state, child, 16)])
    assert sorted(pair.arrived(0)) == sorted([header, *beats] for header, beats in model.results)
    assert len(model.results) == HEADS


def test_payload_that_memory_cannot_give_is_not_sent(pair: Pair) -> None:
    rng, ring = np.random.default_rng(1), pair.nodes[1].descriptors
    payload = rng.bytes(64)
    pair.nodes[1].memory.write(0x500, payload)
    header = {"op": Op.KV_DATA, "route_id": 2, "len": 4}
    pair.run((1, ring.post([pack_descriptor(header, address=at, beats=4) for at in (0x500, 1 << 30, 0x500)])))
    packets = pair.arrived(0)
    assert [b"".join(word.to_bytes(16, "little") for word in packet[1:]) for packet in packets] == [payload] * 2
    errors = pair.nodes[1].processor.start(read_errors())
    pair.run()
    assert errors == [["dropped", "memory"]]


def test_a_whole_node_has_what_it_holds_and_wires_for_links() -> None:
    node = WholeNode()
    assert set(node.signature.members) == {*WHOLE_PORTS, "tx", "rx"}
    assert "module" in rtlil(node, top="node")
