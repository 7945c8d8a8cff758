"""A decode step's attention on whole nodes, simulated: each has a memory, and a processor that writes its registers.

Each layer: software arms reduction slots, posts a descriptor per KV head, and gives the compute half its commands. From
there on events decide: when a KV head is done its records leave as packets, reduction units merge them up the tree, and
the layer ends when the result of each query head has reached all nodes. The processor's work between layers is not in
these cycles (mcf.rtl.processor counts it).
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mcf.errors import RunError
from mcf.rtl.board import Board
from mcf.rtl.commands import NUM_PORTS
from mcf.rtl.decode import DecodeCase, Layout, layer_commands
from mcf.rtl.decode_check import check_records, check_results, golden_states
from mcf.rtl.decode_found import DecodeRun, LayerRun, ProductRun
from mcf.rtl.decode_image import HeadNumbers, Source, layer_parts, quantised
from mcf.rtl.decode_tree import setup_words, state_descriptors, tree_of
from mcf.rtl.descriptor import pack_descriptor
from mcf.rtl.driver import CommandRing, Program, read_register, write_register
from mcf.rtl.faults import LinkKind
from mcf.rtl.golden.compute import ComputeModel
from mcf.rtl.golden.decode import outputs
from mcf.rtl.golden.state import from_beats
from mcf.rtl.mesh.ddr import DdrTiming
from mcf.rtl.order import check_order
from mcf.rtl.product import random_product
from mcf.schedule.wire import Op, unpack

EVENT = 1  # of a node's first KV head, and of a product
DONE_TAG = 1
CLOCK_BITS = 32
LOOK_CYCLES = 20  # for the interrupt, and for each access that answers it


def run_decode(
    case: DecodeCase, source: Source, *, timing: DdrTiming | None = None, links: LinkKind = LinkKind.PLAIN
) -> DecodeRun:
    """Run the case's layers. Raises RunError where hardware gives another state than its model, or nothing at all."""
    board = Board(case.mesh, links=links, memory=timing or DdrTiming())
    try:
        return _Bench(case, board).run(source)
    finally:
        board.close()


class _Bench:
    def __init__(self, case: DecodeCase, board: Board) -> None:
        self.case, self.board, self.tree = case, board, tree_of(case.mesh)
        self.nodes = range(case.mesh.num_nodes)
        self.layouts = [Layout(case=case, node=node) for node in self.nodes]
        for node in self.nodes:
            board.write_routes(node, self.tree.tables.words(node).items())

    def run(self, source: Source) -> DecodeRun:
        """A product, then the layers."""
        product, before = self._product(), self._read_beats()
        layers = [self._layer(layer, quantised(self.case, source(layer))) for layer in self.case.layers]
        self.board.check_drops()
        self.board.links.check_losses()
        return DecodeRun(
            case=self.case,
            layers=layers,
            product=product,
            read_beats=(self._read_beats() - before).tolist(),
            counts=self.board.counters(),
            link_beats=sum(use.moved for use in self.board.link_use().values()),
            cycles=sum(layer.cycles for layer in layers),
        )

    # --- a product, for the rate at which weights stream ---

    def _product(self) -> ProductRun:
        """The root multiplies its first matrix, the queries' projection, with random weights; its own clock counts."""
        node, shape = self.board.nodes[self.tree.root], self.case.shape
        rows, columns = shape.num_q_heads * shape.head_dim, shape.hidden_size
        image, commands = random_product(rows, columns, set_event=EVENT)
        node.ddr.write(0, image)
        to_itself = {"op": Op.CREDIT, "route_id": self.tree.own[self.tree.root], "src": self.tree.root}
        done = pack_descriptor(to_itself, wait_event=EVENT, done_tag=DONE_TAG)
        check_order(commands, [done])
        self.board.post(self.tree.root, [done])
        self.board.settle()
        started = node.processor.start(_timed(node.commands, commands))
        while not list(self.board.packets(self.tree.root)):
            self._go()
        while not node.processor.rings.completed:
            self.board.run_for(LOOK_CYCLES)
        [(_, ended)], beats = node.processor.rings.completed, node.read_beats
        self.board.ask(self.tree.root, write_register("control", enable=1))
        model = ComputeModel(image=image)
        model.run(commands)
        return ProductRun(
            rows=rows,
            columns=columns,
            beats=min(beats[:NUM_PORTS]),
            cycles=(ended - started[0]) % (1 << CLOCK_BITS),
            is_exact=node.ddr.read(0, len(image)) == bytes(model.image),
        )

    # --- a layer ---

    def _layer(self, layer: int, heads: list[HeadNumbers]) -> LayerRun:
        """All nodes attend, all states meet."""
        start = self._begin(layer, heads)
        records: dict[int, list[list[int]]] = {node: [] for node in self.nodes}
        results: dict[int, dict[int, list[int]]] = {node: {} for node in self.nodes}
        last_state = last_result = start
        while any(len(found) < self.case.shape.num_q_heads for found in results.values()):
            self._go()
            for node in self.nodes:
                for cycle, beats in self.board.records(node):
                    records[node].append(beats)
                    last_state = max(last_state, cycle)
                last_result = max([last_result, *self._receive(node, results[node])])
        states = golden_states(self.case, heads)
        found = self._outputs(heads, results[self.tree.root])
        exact = np.concatenate([head.exactly for head in heads])
        return LayerRun(
            attention_cycles=last_state - start,
            cycles=last_result - start,
            outputs=found,
            error=float((np.abs(found - exact).max(-1) / np.abs(exact).max(-1)).max()),
            exact_states=check_records(self.tree, layer, states, records),
            exact_results=check_results(self.tree, layer, states, results),
        )

    def _begin(self, layer: int, heads: list[HeadNumbers]) -> int:
        """Fill memories, arm slots, post descriptors; then tell the compute halves. The cycle in which that begins."""
        orders = []
        for node in self.nodes:
            for address, data in layer_parts(self.layouts[node], layer, heads):
                self.board.nodes[node].ddr.write(address, data)
            child = self.tree.record_child(node)
            commands = list(layer_commands(self.layouts[node], layer, child=child, set_event=EVENT))
            descriptors = list(state_descriptors(self.case, self.tree, node, layer, wait_event=EVENT))
            check_order(commands, descriptors)
            self.board.arm(node, setup_words(self.case, self.tree, node, layer))
            self.board.post(node, descriptors)
            orders.append(commands)
        self.board.settle()
        for node, commands in enumerate(orders):
            self.board.command(node, commands)
        return self.board.cycle

    def _go(self) -> None:
        """Until something has happened."""
        if not self.board.run():
            raise RunError(f"nothing moves any more in cycle {self.board.cycle:,}: {self.board.why_still()}")

    def _receive(self, node: int, results: dict[int, list[int]]) -> Iterator[int]:
        for packet in self.board.packets(node):
            header = unpack(packet.header)
            if header["op"] != Op.REDUCE_RESULT:
                raise RunError(f"node {node} received a packet that nobody sent: {header}")
            results[header["block"]] = packet.beats
            yield packet.cycle

    def _outputs(self, heads: list[HeadNumbers], results: dict[int, list[int]]) -> NDArray[np.float64]:
        shape = self.case.shape
        states = [from_beats(results[q_head], shape.head_dim)[0] for q_head in range(shape.num_q_heads)]
        v_scales = [head.v_scale for head in heads for _ in range(shape.num_group_heads)]
        return outputs(states, v_scales, shape.head_dim)

    def _read_beats(self) -> NDArray[np.int64]:
        return np.array([node.read_beats for node in self.board.nodes])


def _timed(ring: CommandRing, commands: list[int]) -> Program[int]:
    """Start the node's clock and post commands; the clock before the first."""
    yield from write_register("control", enable=1, count=1)
    clock = (yield from read_register("clock"))["cycles"]
    yield from ring.post(commands)
    return clock
