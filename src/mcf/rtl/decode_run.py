"""A decode step's attention on simulated hardware: compute halves with memories of their own, node cores that merge.

Each layer: every compute half is given its commands; each record that it finishes becomes a packet of its core at once,
by one descriptor; reduction units merge up the tree; the layer ends when the result of each query head has reached all
nodes. Between compute half and core stands software that takes no time but the ring's; the processor's work between
layers is not in these cycles either (mcf.rtl.processor counts it).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mcf.errors import RunError
from mcf.rtl.board import Board
from mcf.rtl.build.cxxrtl import compile_module
from mcf.rtl.commands import NUM_PORTS, ComputeOp, pack_command
from mcf.rtl.decode import DecodeCase, Layout, Tree, apart, layer_commands, setups, state_header, tree_of
from mcf.rtl.decode_image import HeadNumbers, Source, layer_parts, quantised, runs_of
from mcf.rtl.descriptor import pack_descriptor
from mcf.rtl.golden.attention import attend_shard
from mcf.rtl.golden.compute import ComputeModel
from mcf.rtl.golden.decode import outputs
from mcf.rtl.golden.gemv import GROUP, ROWS
from mcf.rtl.golden.state import from_beats, to_beats
from mcf.rtl.golden.tiles import BEAT_BYTES
from mcf.rtl.hdl.compute import Compute
from mcf.rtl.links import LAST_BIT
from mcf.rtl.merges import OUT_BEATS
from mcf.rtl.mesh.ddr import Ddr, DdrTiming
from mcf.rtl.mesh.library import Stop
from mcf.rtl.rates import Measured, product_beats
from mcf.schedule.wire import Op, unpack

RECORD_BEATS = 1 + OUT_BEATS
BEAT_WORDS = 5
COMMAND_WORDS = 8
PRODUCT_SHIFT = 10  # whatever the rows are, most bits of them are kept
DONE = 1  # the event of a node's last command
PATIENCE = 10_000_000  # cycles in which nothing finishes


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerRun:
    """Cycles of one layer, from the first command: until the last state left its compute half, until all results were
    at all nodes. `outputs` [Hq, d]; `error` is their largest difference from float64 over the largest output.
    """

    attention_cycles: int
    cycles: int
    outputs: NDArray[np.float64]
    error: float
    exact_states: int


@dataclass(frozen=True, kw_only=True)
class ProductRun:
    """A matrix product on one compute half: wide beats of weights and scales, cycles, whether rows are the model's."""

    rows: int
    columns: int
    beats: int
    cycles: int
    is_exact: bool

    @property
    def memory_busy(self) -> float:
        """The share of cycles in which the ports brought a wide beat."""
        return self.beats / self.cycles


@dataclass(frozen=True, kw_only=True, eq=False)
class DecodeRun:
    """What a run gave. `memory_beats` of each node's four read ports together; `link_beats` over all links."""

    case: DecodeCase
    layers: list[LayerRun]
    product: ProductRun
    memory_beats: list[int]
    link_beats: int
    cycles: int

    @property
    def attention_cycles(self) -> int:
        """Of all layers."""
        return sum(layer.attention_cycles for layer in self.layers)

    @property
    def merge_cycles(self) -> int:
        """Cycles after the last state of each layer, until its results are everywhere."""
        return sum(layer.cycles - layer.attention_cycles for layer in self.layers)

    @property
    def array_busy(self) -> float:
        """The share of attention's cycles in which the array of the node with most tokens multiplies."""
        shape, tiles = self.case.shape, max(self.case.num_tiles(node) for node in range(self.case.mesh.num_nodes))
        return len(self.layers) * shape.num_q_heads * tiles * (shape.head_dim + ROWS) / self.attention_cycles

    @property
    def measured(self) -> Measured:
        """What a token's arithmetic takes from this run."""
        count = len(self.layers)
        return Measured(
            beats_per_cycle=self.product.memory_busy,
            attention_cycles=self.attention_cycles / count,
            merge_cycles=self.merge_cycles / count,
        )


def run_decode(case: DecodeCase, source: Source, *, timing: DdrTiming | None = None) -> DecodeRun:
    """Run the case's layers. Raises RunError where hardware gives another state than its model, or nothing at all."""
    bench = _Bench(case, tree_of(case.mesh), timing or DdrTiming())
    try:
        product = bench.product()
        spent = [half.read_beats for half in bench.halves]
        layers = [bench.layer(layer, quantised(case, source(layer))) for layer in case.layers]
        bench.board.check_drops()
        beats = [half.read_beats - before for half, before in zip(bench.halves, spent, strict=True)]
        moved = sum(use.moved for use in bench.board.link_use().values())
        return DecodeRun(
            case=case,
            layers=layers,
            product=product,
            memory_beats=beats,
            link_beats=moved,
            cycles=sum(layer.cycles for layer in layers),
        )
    finally:
        bench.board.close()


@dataclass(kw_only=True)
class _Half:
    """One compute half: the numbers of its ends, its memory, beats of a record that has not ended."""

    layout: Layout
    commands: int
    events: int
    states: int
    ddr: Ddr
    rest: list[NDArray[np.uint32]] = field(default_factory=list)

    @property
    def read_beats(self) -> int:
        """Beats that its memory gave so far."""
        return sum(self.ddr.counts(port).beats for port in range(NUM_PORTS))


class _Bench:
    def __init__(self, case: DecodeCase, tree: Tree, timing: DdrTiming) -> None:
        self.case, self.tree = case, tree
        self.board = Board(case.mesh)
        self.nodes = range(case.mesh.num_nodes)
        library = compile_module(Compute(), name="compute")
        self.halves = [self._half(node, self.board.instances.instance(library), timing) for node in self.nodes]
        for node in self.nodes:
            self.board.write_routes(node, tree.tables.words(node).items())

    def _half(self, node: int, compute: int, timing: DdrTiming) -> _Half:
        mesh = self.board.instances
        mesh.sink((compute, "waits"))  # grants whatever is waited for
        ports = [*((compute, f"reads__{port}") for port in range(NUM_PORTS)), (compute, "write")]
        return _Half(
            layout=Layout(case=self.case, node=node),
            commands=mesh.source((compute, "commands")),
            events=mesh.sink((compute, "sets")),
            states=mesh.sink((compute, "states"), last_bit=LAST_BIT),
            ddr=mesh.ddr(ports, timing),
        )

    # --- a product, for the rate at which weights stream ---

    def product(self) -> ProductRun:
        """Node 0 multiplies its first matrix, the queries' projection, with random INT4 weights."""
        half, shape = self.halves[0], self.case.shape
        rows, columns = shape.num_q_heads * shape.head_dim, shape.hidden_size
        image, commands = random_product(rows, columns)
        half.ddr.write(0, image)
        start = self.board.cycle
        self._push(half, commands)
        while not (done := self.board.instances.take(half.events, 1)[0]).size:
            self._go()
        model = ComputeModel(image=image)
        model.run(commands)
        return ProductRun(
            rows=rows,
            columns=columns,
            beats=product_beats(rows, columns),
            cycles=int(done[-1]) - start,
            is_exact=half.ddr.read(0, len(image)) == bytes(model.image),
        )

    # --- a layer ---

    def layer(self, layer: int, heads: list[HeadNumbers]) -> LayerRun:
        """All nodes attend, all states meet."""
        for node in self.nodes:
            self._arm(node, layer)
            for address, data in layer_parts(self.halves[node].layout, layer, heads):
                self.halves[node].ddr.write(address, data)
        self.board.settle()
        start = self.board.cycle
        for node, half in enumerate(self.halves):
            child = self.tree.record_child(node)
            self._push(half, list(layer_commands(half.layout, layer, child=child)))
        records: list[list[list[int]]] = [[] for _ in self.nodes]
        results: list[dict[int, list[int]]] = [{} for _ in self.nodes]
        last_state = last_result = start
        while any(len(found) < self.case.shape.num_q_heads for found in results):
            self._go()
            for node in self.nodes:
                last_state = max([last_state, *self._send(node, layer, records[node])])
                last_result = max([last_result, *self._receive(node, results[node])])
        self._check(layer, heads, records, results)
        found = self._outputs(heads, results[self.tree.root])
        exact = np.concatenate([head.exactly for head in heads])
        return LayerRun(
            attention_cycles=last_state - start,
            cycles=last_result - start,
            outputs=found,
            error=float((np.abs(found - exact).max(-1) / np.abs(exact).max(-1)).max()),
            exact_states=sum(map(len, records)),
        )

    def _arm(self, node: int, layer: int) -> None:
        words = [
            s.header | s.tag << 128 | s.children << 136 | s.child << 141
            for s in setups(self.case, self.tree, node, layer)
        ]
        if words:
            self.board.arm(node, words)

    def _push(self, half: _Half, commands: list[int]) -> None:
        joined = b"".join(command.to_bytes(4 * COMMAND_WORDS, "little") for command in commands)
        self.board.instances.push(half.commands, np.frombuffer(joined, "<u4").reshape(-1, COMMAND_WORDS))

    def _go(self) -> None:
        """Until something has happened."""
        if self.board.wait(PATIENCE) is not Stop.WOKEN:
            raise RunError(f"the compute halves stand still in cycle {self.board.cycle:,}: expected states or results")

    def _send(self, node: int, layer: int, records: list[list[int]]) -> Iterator[int]:
        """Each record that has left the compute half becomes a packet; the cycles in which they were complete."""
        half = self.halves[node]
        cycles, words = self.board.instances.take(half.states, BEAT_WORDS)
        half.rest += [*words]
        for cycle, word in zip(cycles.tolist(), words, strict=True):
            if word[4] & 1:
                beats = [int.from_bytes(beat[:4].tobytes(), "little") for beat in half.rest[:RECORD_BEATS]]
                del half.rest[:RECORD_BEATS]
                self._post(node, layer, len(records), beats)
                records.append(beats)
                yield cycle

    def _post(self, node: int, layer: int, q_head: int, beats: list[int]) -> None:
        address = self.board.store(node, b"".join(beat.to_bytes(BEAT_BYTES, "little") for beat in beats))
        header = state_header(self.case, self.tree, node, layer=layer, q_head=q_head)
        self.board.post(node, [pack_descriptor(header, address=address, beats=RECORD_BEATS)])

    def _receive(self, node: int, results: dict[int, list[int]]) -> Iterator[int]:
        for packet in self.board.packets(node):
            header = unpack(packet.header)
            if header["op"] != Op.REDUCE_RESULT:
                raise RunError(f"node {node} received a packet that nobody sent: {header}")
            beats = [packet.payload[i : i + BEAT_BYTES] for i in range(0, len(packet.payload), BEAT_BYTES)]
            results[header["block"]] = [int.from_bytes(beat, "little") for beat in beats]
            yield packet.cycle

    def _check(
        self, layer: int, heads: list[HeadNumbers], records: list[list[list[int]]], results: list[dict[int, list[int]]]
    ) -> None:
        for node in self.nodes:
            shard, child = self.case.shard(node), self.tree.record_child(node)
            states = [state for head in heads for state in attend_shard(head.part(shard), head.queries)]
            if records[node] != [to_beats(state, child, OUT_BEATS) for state in states]:
                raise RunError(f"node {node} made other states in layer {layer} than the golden model")
            if results[node] != results[self.tree.root]:
                raise RunError(f"node {node} received other results of layer {layer} than node {self.tree.root}")

    def _outputs(self, heads: list[HeadNumbers], results: dict[int, list[int]]) -> NDArray[np.float64]:
        shape = self.case.shape
        states = [from_beats(results[q_head], shape.head_dim)[0] for q_head in range(shape.num_q_heads)]
        v_scales = [head.v_scale for head in heads for _ in range(shape.num_group_heads)]
        return outputs(states, v_scales, shape.head_dim)


def random_product(rows: int, columns: int, *, seed: int = 0) -> tuple[bytearray, list[int]]:
    """A memory with a matrix of random INT4 weights, a vector, and room for rows; the commands to multiply them."""
    rng = np.random.default_rng(seed)
    row_tiles, groups = -(-rows // ROWS), -(-columns // GROUP)
    tiles = row_tiles * groups
    runs = runs_of(rng.integers(-8, 8, (tiles, GROUP, ROWS)), rng.integers(1 << 14, 1 << 16, tiles * ROWS))
    vector = rng.integers(-128, 128, groups * GROUP).astype("<i2").tobytes()
    stride = apart(len(runs[0]) // BEAT_BYTES)
    image = bytearray(b"".join(run.ljust(stride * BEAT_BYTES, b"\0") for run in runs) + vector)
    load = pack_command(ComputeOp.LOAD, address=len(image) - len(vector), count=len(vector) // BEAT_BYTES)
    multiply = pack_command(
        ComputeOp.GEMV,
        address=0,
        second=len(image),
        stride=len(runs[0]) // BEAT_BYTES,
        tiles=row_tiles,
        count=groups,
        vectors=1,
        columns=GROUP,
        shift=PRODUCT_SHIFT,
        set_event=DONE,
    )
    return image + bytes(row_tiles * ROWS * 4), [load, multiply]
