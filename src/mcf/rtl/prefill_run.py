"""One layer of prefill of one chunk on simulated hardware: projections, attention, copies of its KV for other nodes.

Node 0's compute half with its memory, and a mesh of node cores. Between them stands the processor beside the node:
software that takes no time here. It makes keys, values and queries of the rows, and posts descriptors.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mcf.errors import RunError
from mcf.rtl.board import Board
from mcf.rtl.build.cxxrtl import compile_module
from mcf.rtl.commands import NUM_PORTS
from mcf.rtl.decode_image import query_bytes, scale_bytes, tile_runs, value_runs
from mcf.rtl.descriptor import pack_descriptor
from mcf.rtl.golden.attention import Queries, Shard
from mcf.rtl.golden.compute import ComputeModel
from mcf.rtl.golden.gemv import GROUP, ROWS
from mcf.rtl.golden.state import to_beats
from mcf.rtl.golden.tiles import BEAT_BYTES
from mcf.rtl.hdl.compute import Compute
from mcf.rtl.links import LAST_BIT
from mcf.rtl.merges import OUT_BEATS, RECORD_BEATS
from mcf.rtl.mesh.ddr import DdrTiming
from mcf.rtl.mesh.library import Stop
from mcf.rtl.prefill import (
    PRODUCT_SHIFT,
    PrefillCase,
    PrefillLayout,
    attend_commands,
    block_beats,
    project_commands,
    replica_header,
)
from mcf.rtl.quantise import QUERY_MAX, VALUE_UNIT, key_power, quantise_queries, quantise_shard, value_scale
from mcf.rtl.routes import Mesh, Tables, spread
from mcf.schedule.packets import BLOCK_TOKENS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
DONE, ORIGIN = 1, 0
WEIGHT_POWER, INPUT_MAX = 20, 127  # a weight is int4 * scale / 2^20
ROPE_BASE = 10_000.0
RECORD_WORDS, COMMAND_WORDS = 5, 8
PATIENCE = 10_000_000  # cycles


@dataclass(frozen=True, kw_only=True, eq=False)
class Head:
    """A KV head of the chunk: its numbers for the node, and those that they stand for."""

    shard: Shard
    queries: list[Queries]  # of each token
    q: Floats  # [T, group, d]
    k: Floats  # [T, d]
    v: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class PrefillRun:
    """Cycles of the projections, of attention, and until all copies had arrived. `error`: of outputs, against float64
    attention to the numbers that the integers stand for, over the largest output of the token and head.
    """

    project_cycles: int
    attend_cycles: int
    send_cycles: int
    error: float
    packets: dict[int, list[tuple[int, bytes]]]  # node -> header, payload
    blocks: dict[tuple[int, int, int], bytes]  # head, is_v, block -> payload


def run_prefill(case: PrefillCase, mesh: Mesh, *, seed: int = 0, timing: DdrTiming | None = None) -> PrefillRun:
    """Run the chunk. Raises RunError where hardware gives another bit than its model, or nothing at all."""
    bench = _Bench(case, mesh, timing or DdrTiming())
    try:
        return bench.run(np.random.default_rng(seed))
    finally:
        bench.board.close()


class _Bench:
    def __init__(self, case: PrefillCase, mesh: Mesh, timing: DdrTiming) -> None:
        self.case, self.layout, self.board = case, PrefillLayout(case=case), Board(mesh)
        instances = self.board.instances
        compute = instances.instance(compile_module(Compute(), name="compute"))
        ports = [*((compute, f"reads__{port}") for port in range(NUM_PORTS)), (compute, "write")]
        self.ddr = instances.ddr(ports, timing)
        self.commands = instances.source((compute, "commands"))
        self.events = instances.sink((compute, "sets"))
        self.states = instances.sink((compute, "states"), last_bit=LAST_BIT)
        instances.sink((compute, "waits"))
        self.model = ComputeModel(image=bytearray(self.layout.scales(case.num_kv_heads, 0)))
        self.records: list[int] = []

    def run(self, rng: np.random.Generator) -> PrefillRun:
        """Project, attend, send."""
        begin = self.board.cycle
        scales = self._fill(rng)
        self._obey(list(project_commands(self.layout, set_event=DONE)))
        while not self.board.instances.take(self.events, 1)[0].size:
            self._go()
        self._compare()
        projected = self.board.cycle
        heads = heads_of(self.case, self._rows(scales))
        self._place(heads)
        self._obey(list(attend_commands(self.layout)))
        outputs = self._attended()
        attended = self.board.cycle
        blocks = {place: data for head, it in enumerate(heads) for place, data in blocks_of(self.case, head, it.shard)}
        packets = self._send(blocks)
        return PrefillRun(
            project_cycles=projected - begin,
            attend_cycles=attended - projected,
            send_cycles=self.board.cycle - attended,
            error=_error(self.case, heads, outputs),
            packets=packets,
            blocks=blocks,
        )

    # --- memory and commands ---

    def _put(self, address: int, values: bytes) -> None:
        self.ddr.write(address, values)
        self.model.image[address : address + len(values)] = values

    def _obey(self, commands: list[int]) -> None:
        joined = b"".join(command.to_bytes(4 * COMMAND_WORDS, "little") for command in commands)
        words = np.frombuffer(joined, "<u4").reshape(-1, COMMAND_WORDS)
        self.board.instances.push(self.commands, words)
        self.model.run(commands)

    def _go(self) -> None:
        if self.board.instances.run(PATIENCE, wake=True) is not Stop.WOKEN:
            raise RunError(f"the compute half stands still in cycle {self.board.cycle:,}: expected rows or states")

    def _compare(self) -> None:
        if self.ddr.read(0, len(self.model.image)) != bytes(self.model.image):
            raise RunError("the node's memory is another than the golden model's")

    def _fill(self, rng: np.random.Generator) -> Floats:
        """Random INT4 weights, and tokens as INT8; the tokens' scales [T]."""
        case, tiles = self.case, self.case.rows // ROWS * self.case.groups
        weights = rng.integers(-7, 8, (tiles * ROWS, GROUP))
        for port, run in enumerate(tile_runs(weights, rng.integers(1 << 14, 1 << 16, tiles * ROWS))):
            self._put(port * self.layout.weight_stride * BEAT_BYTES, run)
        tokens = rng.normal(size=(case.tokens, case.hidden))
        scales: Floats = np.abs(tokens).max(-1) / INPUT_MAX
        self._put(self.layout.inputs, np.rint(tokens / scales[:, None]).astype("<i2").tobytes())
        return scales

    def _rows(self, scales: Floats) -> Floats:
        """Q, K and V [T, rows]."""
        raw = self.ddr.read(self.layout.outputs, self.case.tokens * self.case.rows * 4)
        rows = np.frombuffer(raw, "<i4").reshape(self.case.tokens, self.case.rows)
        return rows * scales[:, None] * 2.0 ** (PRODUCT_SHIFT - WEIGHT_POWER)

    def _place(self, heads: Sequence[Head]) -> None:
        for number, head in enumerate(heads):
            shard = head.shard
            for address, runs in (
                (self.layout.keys(number), tile_runs(shard.k, shard.k_scale)),
                (self.layout.values(number), value_runs(shard.v, shard.v_scale)),
            ):
                for port, run in enumerate(runs):
                    self._put(address + port * self.layout.stride * BEAT_BYTES, run)
            for first in range(0, self.case.tokens, self.case.batch):
                some = head.queries[first : first + self.case.batch]
                self._put(self.layout.scales(number, first), scale_bytes(some))
                self._put(self.layout.queries(number, first), query_bytes(some))

    # --- what comes out ---

    def _attended(self) -> Floats:
        """The states of all tokens, checked bit by bit; their outputs [Hkv, T, group, d] over their sums."""
        case = self.case
        total, found = case.num_q_heads * case.tokens * RECORD_BEATS, list[int]()
        while len(found) < total:
            self._go()
            _, words = self.board.instances.take(self.states, RECORD_WORDS)
            found += [int.from_bytes(word[:4].tobytes(), "little") for word in words]
        expected = [beat for state, child in self.model.states for beat in to_beats(state, child, OUT_BEATS)]
        if found != expected:
            raise RunError("the compute half made other states than the golden model")
        out = np.stack([state.out[: case.head_dim] / int(state.sum_) for state, _ in self.model.states])
        return out.reshape(case.num_kv_heads, case.tokens, case.group, case.head_dim)

    def _send(self, blocks: dict[tuple[int, int, int], bytes]) -> dict[int, list[tuple[int, bytes]]]:
        """Every block goes to all other nodes along one tree."""
        board, mesh = self.board, self.board.mesh
        others = range(1, mesh.num_nodes)
        tables = Tables(mesh=mesh)
        route = tables.add(spread(mesh, ORIGIN, mesh.topology.multicast(ORIGIN, others), others))
        tables.check()
        for node in range(mesh.num_nodes):
            board.write_routes(node, tables.words(node).items())
        for (head, is_v, block), data in blocks.items():
            header = replica_header(head=head, is_v=is_v, block=block, route=route, src=ORIGIN, layer=0)
            address = board.store(ORIGIN, data)
            board.post(ORIGIN, [pack_descriptor(header, address=address, beats=len(data) // BEAT_BYTES)])
        packets: dict[int, list[tuple[int, bytes]]] = {node: [] for node in others}
        while board.run():
            for node in others:
                packets[node] += [(packet.header, packet.payload) for packet in board.packets(node)]
        board.check_drops()
        return packets


# --- the processor beside the node ---


def heads_of(case: PrefillCase, rows: Floats) -> list[Head]:
    """What the processor makes of the rows [T, rows]: Q and K turned by their positions, everything quantised."""
    parts = rows.reshape(case.tokens, -1, case.head_dim)
    q, k, v = np.split(parts, [case.num_q_heads, case.num_q_heads + case.num_kv_heads], axis=1)
    q, k = turned(q), turned(k)
    return [
        _head(case, q[:, head * case.group : (head + 1) * case.group], k[:, head], v[:, head])
        for head in range(case.num_kv_heads)
    ]


def turned(x: Floats) -> Floats:
    """RoPE of [T, H, d] at positions 0 to T - 1, halves paired."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * ROPE_BASE ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _head(case: PrefillCase, q: Floats, k: Floats, v: Floats) -> Head:
    power, largest = key_power(k), value_scale(v)
    shard = quantise_shard(k, v, power=power, v_scale=largest)
    queries = [quantise_queries(each, power=power, scale=case.head_dim**-0.5) for each in q]
    units = np.abs(q).max(-1, keepdims=True) / QUERY_MAX
    return Head(
        shard=shard,
        queries=queries,
        q=np.stack([each.q for each in queries]) * units,
        k=shard.k.astype(np.float64) * (shard.k_scale[:, None] * math.ldexp(1.0, -power)),
        v=shard.v * shard.v_scale[:, None] / (VALUE_UNIT << 16),
    )


def blocks_of(case: PrefillCase, head: int, shard: Shard) -> Iterator[tuple[tuple[int, int, int], bytes]]:
    """A KV head's payloads: INT4 numbers of 64 tokens, two in a byte, then their scales; by (head, is_v, block)."""
    for block in range(case.tokens // BLOCK_TOKENS):
        at = slice(block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS)
        for is_v, numbers, scales in ((0, shard.k, shard.k_scale), (1, shard.v, shard.v_scale)):
            nibbles = (numbers[at] & 15).astype(np.uint8)
            data = (nibbles[:, 0::2] | nibbles[:, 1::2] << 4).tobytes() + scales[at].astype("<u2").tobytes()
            assert len(data) == block_beats(case) * BEAT_BYTES, len(data)
            yield (head, is_v, block), data


def _error(case: PrefillCase, heads: Sequence[Head], outputs: Floats) -> float:
    worst = 0.0
    for head, found in zip(heads, outputs, strict=True):
        scores = np.einsum("tgd,sd->tgs", head.q, head.k) * case.head_dim**-0.5
        scores = np.where(np.arange(case.tokens) <= np.arange(case.tokens)[:, None, None], scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        exact = np.einsum("tgs,sd->tgd", weights / weights.sum(-1, keepdims=True), head.v)
        worst = max(worst, float((np.abs(found - exact).max(-1) / np.abs(exact).max(-1)).max()))
    return worst
