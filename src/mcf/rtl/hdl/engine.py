"""The compute half without its attention unit: memory ports, tile buffer, multipliers, scales, rows, and what drives
them. `mcf.rtl.hdl.compute` joins the two.
"""

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from mcf.rtl.commands import BUFFER_BEATS, NUM_PORTS, ROW_BEATS
from mcf.rtl.hdl.attn_tile import ActivationStream, PartialStream, RowStream, ScaleStream, TileCommand
from mcf.rtl.hdl.axi import AxiRead, AxiWrite
from mcf.rtl.hdl.command import Command, Kind
from mcf.rtl.hdl.dma_read import DmaPingPong
from mcf.rtl.hdl.dma_write import DmaWrite
from mcf.rtl.hdl.feed import Feed, Portion
from mcf.rtl.hdl.fetch import Fetch, Run
from mcf.rtl.hdl.gemv import Gemv
from mcf.rtl.hdl.operands import Operands
from mcf.rtl.hdl.queue import Queue
from mcf.rtl.hdl.row_store import RowStore
from mcf.rtl.hdl.scale_acc import ScaleAcc
from mcf.rtl.hdl.scales import Scales
from mcf.rtl.hdl.steps import Steps
from mcf.rtl.hdl.tiles import TileBuffer

IN_FLIGHT = 8  # commands that are not done, and steps that wait in each queue
_SumRoute = data.StructLayout({"kind": 3, "ends": 1, "event": 8})
_RowRoute = data.StructLayout({"kind": 3, "address": 36, "ends": 1, "event": 8})
_Stored = data.StructLayout({"ends": 1, "event": 8})


class Engine(Component):
    """`commands` (mcf.rtl.commands) are worked on in order; `waits` and `sets` are their events.

    For attention: `heads` tells of each tile of keys and query head, `scores` are its 128 rows, `value_scales` the
    scales of the tile of values that follows, `weighted` the activations for it, `sums` its 128 sums. `failed` counts
    the beats and bursts that memory answered with an error in this cycle. `busy`: some command is not done.
    """

    def __init__(self, *, buffer_beats: int = BUFFER_BEATS) -> None:
        self.buffer_beats = buffer_beats
        super().__init__(
            {
                "commands": In(stream.Signature(Command)),
                "waits": Out(stream.Signature(8)),
                "sets": Out(stream.Signature(8)),
                "reads": Out(AxiRead).array(NUM_PORTS),
                "write": Out(AxiWrite),
                "heads": Out(stream.Signature(TileCommand)),
                "scores": Out(RowStream),
                "value_scales": Out(ScaleStream),
                "weighted": In(ActivationStream),
                "sums": Out(PartialStream),
                "failed": Out(range(NUM_PORTS + 2)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Memory to buffer, buffer to multipliers, sums to where they belong; and what is done is told."""
        m = Module()
        m.submodules.fetch = self.fetch = Fetch()
        m.submodules.steps = self.steps = Steps()
        m.submodules.tiles = self.tiles = TileBuffer(depth=self.buffer_beats)
        m.submodules.feed = self.feed = Feed()
        m.submodules.operands = self.operands = Operands()
        m.submodules.gemv = self.gemv = Gemv()
        m.submodules.scale_acc = self.scale_acc = ScaleAcc()
        m.submodules.writer = self.writer = DmaWrite()
        self.readers = [DmaPingPong() for _ in range(NUM_PORTS)]
        m.submodules += self.readers
        connect(m, flipped(self.commands), self.fetch.commands)
        connect(m, self.fetch.waits, flipped(self.waits))
        connect(m, self.fetch.plans, self.steps.plans)
        loaded = self._memory(m)
        self._steps(m)
        self._multiply(m)
        done = [loaded, self._sums(m), self._rows(m)]
        self._done(m, done)
        return m

    def _memory(self, m: Module) -> tuple[Signal, Any]:
        """The ports' beats side by side go to the tile buffer; port 0's go where its run says."""
        fetch, wide = self.fetch, self.tiles.writes
        for index, reader in enumerate(self.readers):
            connect(m, fetch.requests[index], reader.requests)
            connect(m, reader.axi, flipped(self.reads[index]))
        m.submodules.run_queue = queue = Queue(Run, depth=IN_FLIGHT)
        connect(m, fetch.runs, queue.input)
        runs = queue.output
        run, left, is_open = Signal(Run), Signal(16), Signal()
        first, others = self.readers[0].data, [reader.data for reader in self.readers[1:]]
        is_tile, is_load, ends, taken = Signal(), Signal(), Signal(), Signal()
        for index, reader in enumerate(self.readers):
            rest = Cat(other.data.valid for other in self.readers if other is not reader).all()
            m.d.comb += reader.data.ready.eq(wide.ready & rest & is_tile | is_load & (index == 0))
        m.d.comb += [
            *(taken.eq(first.valid & first.ready), is_tile.eq(is_open & ~run.load), is_load.eq(is_open & run.load)),
            wide.valid.eq(is_tile & Cat(data_.valid for data_ in (first, *others)).all()),
            wide.payload.eq(Cat(first.payload, *(other.payload for other in others))),
            runs.ready.eq(~is_open & ~ends),
            *(unit.writes.payload.place.eq(run.place) for unit in (self.operands, self.feed)),
            self.operands.writes.valid.eq(is_load & first.valid & ~run.table),
            self.feed.writes.valid.eq(is_load & first.valid & run.table),
            *(unit.writes.payload.data.eq(first.payload) for unit in (self.operands, self.feed)),
            self.failed.eq(sum((reader.failed for reader in self.readers), self.writer.failed)),
        ]
        with m.If(taken):
            m.d.sync += [left.eq(left - 1), run.place.eq(run.place + 1), is_open.eq(left != 1)]
        m.d.sync += ends.eq(taken & (left == 1))
        with m.If(runs.valid & runs.ready):
            some = runs.payload.beats != 0
            m.d.sync += [run.eq(runs.payload), left.eq(runs.payload.beats), is_open.eq(some), ends.eq(~some)]
        return ends & run.load, run.event

    def _steps(self, m: Module) -> None:
        """Each step is told to all who have a part in it, at once."""
        step, kind = self.steps.steps.payload, self.steps.steps.payload.kind
        m.submodules.portions = portions = Queue(Portion, depth=IN_FLIGHT)
        m.submodules.sum_routes = self.sum_routes = Queue(_SumRoute, depth=IN_FLIGHT)
        m.submodules.row_routes = self.row_routes = Queue(_RowRoute, depth=IN_FLIGHT)
        connect(m, portions.output, self.feed.portions)
        is_scaled = (kind == Kind.WEIGHTS) | (kind == Kind.KEYS)
        parts = [
            (self.tiles.runs, kind != Kind.EMPTY),
            (portions.input, 1),
            (self.sum_routes.input, kind != Kind.SCALES),
            (self.scale_acc.groups, is_scaled),
            (self.row_routes.input, is_scaled & step.last),
        ]
        goes = Signal()
        # of the cycle before: nobody else fills these queues, and two steps are never next to each other
        m.d.sync += self.steps.steps.ready.eq(Cat(part.ready for part, _ in parts).all())
        m.d.comb += [
            goes.eq(self.steps.steps.valid & self.steps.steps.ready),
            *(part.valid.eq(goes & is_meant) for part, is_meant in parts),
            *(part.payload[name].eq(step[name]) for part, _ in parts for name in part.payload.shape().members),
        ]

    def _multiply(self, m: Module) -> None:
        m.submodules.row_scales, m.submodules.value_scales = row_scales, value_scales = Scales(), Scales()
        connect(m, self.tiles.reads, self.feed.tiles)
        connect(m, self.feed.weights, self.gemv.weights)
        connect(m, self.feed.row_scales, row_scales.wide)
        connect(m, self.feed.value_scales, value_scales.wide)
        connect(m, row_scales.scales, self.scale_acc.scales)
        connect(m, value_scales.scales, flipped(self.value_scales))
        connect(m, self.feed.heads, flipped(self.heads))
        connect(m, self.feed.operands, self.operands.commands)
        connect(m, flipped(self.weighted), self.operands.outside)
        connect(m, self.operands.activations, self.gemv.activations)

    def _sums(self, m: Module) -> tuple[Signal, Any]:
        """Sums of values go to attention, the others are scaled. A command of attention ends with its last sum."""
        routes, partials = self.sum_routes.output, self.gemv.partials
        route, scaled = routes.payload, self.scale_acc.partials
        is_values, is_scaled, ends = Signal(), Signal(), Signal()
        is_empty = routes.valid & (route.kind == Kind.EMPTY)
        m.d.comb += [
            is_values.eq(routes.valid & (route.kind == Kind.VALUES)),
            is_scaled.eq(routes.valid & ~is_values & ~is_empty),
            *(scaled.payload.eq(partials.payload), scaled.valid.eq(partials.valid & is_scaled)),
            *(self.sums.payload[name].eq(partials.payload[name]) for name in ("row", "value", "last")),
            *(self.sums.valid.eq(partials.valid & is_values),),
            partials.ready.eq(is_scaled & scaled.ready | is_values & self.sums.ready),
            routes.ready.eq(is_empty | (partials.valid & partials.ready & partials.payload.last)),
            ends.eq(routes.ready & route.ends & (is_values | is_empty)),
        ]
        return ends, route.event

    def _rows(self, m: Module) -> tuple[Signal, Any]:
        """Rows of keys are scores, the others are stored; a product ends when memory has answered."""
        m.submodules.row_store = store = RowStore()
        m.submodules.stored = stored = Queue(_Stored, depth=2 * IN_FLIGHT)
        routes, rows, requests = self.row_routes.output, self.scale_acc.rows, self.writer.requests
        route, is_asked, is_keys, is_kept = routes.payload, Signal(), Signal(), Signal()
        connect(m, store.beats, self.writer.data)
        m.d.comb += [
            *(is_keys.eq(routes.valid & (route.kind == Kind.KEYS)), is_kept.eq(routes.valid & ~is_keys & is_asked)),
            *(self.scores.payload.eq(rows.payload.value), self.scores.valid.eq(rows.valid & is_keys)),
            *(store.rows.payload.eq(rows.payload.value), store.rows.valid.eq(rows.valid & is_kept)),
            rows.ready.eq(is_keys & self.scores.ready | is_kept & store.rows.ready),
            routes.ready.eq(rows.valid & rows.ready & rows.payload.last),
            requests.valid.eq(routes.valid & ~is_keys & ~is_asked & stored.input.ready),
            *(requests.payload.address.eq(route.address << 4), requests.payload.beats.eq(ROW_BEATS)),
            stored.input.valid.eq(requests.valid & requests.ready),
            *(stored.input.payload[name].eq(route[name]) for name in ("ends", "event")),
            stored.output.ready.eq(self.writer.done.valid),
        ]
        m.d.sync += is_asked.eq((is_asked | stored.input.valid) & ~routes.ready)
        connect(m, self.writer.axi, flipped(self.write))
        return self.writer.done.valid & stored.output.payload.ends, stored.output.payload.event

    def _done(self, m: Module, sources: Sequence[tuple[Any, Any]]) -> None:
        """What is done sets its event, one after the other; so many commands are under way that each finds room."""
        under_way = Signal(range(IN_FLIGHT + 1))
        queues = []
        for index, (ends, event) in enumerate(sources):
            m.submodules[f"done{index}"] = queue = Queue(8, depth=IN_FLIGHT)
            m.d.sync += [queue.input.valid.eq(ends), queue.input.payload.eq(event)]
            queues.append(queue.output)
        free, ends = Signal(), Signal()
        m.d.comb += [free.eq(~self.sets.valid), ends.eq(free & Cat(queue.valid for queue in queues).any())]
        with m.If(self.sets.ready):
            m.d.sync += self.sets.valid.eq(0)
        taken = Cat(queue.valid for queue in queues)
        for index, queue in enumerate(queues):
            m.d.comb += queue.ready.eq(free & ~taken[:index].any())
            with m.If(queue.valid & queue.ready):
                m.d.sync += [self.sets.payload.eq(queue.payload), self.sets.valid.eq(queue.payload != 0)]
        m.d.sync += under_way.eq(under_way + self.fetch.started - ends)
        m.d.comb += [
            *(
                self.busy.eq((under_way != 0) | self.fetch.working | self.sets.valid),
                self.fetch.idle.eq(under_way == 0),
            ),
            self.fetch.may.eq(under_way < IN_FLIGHT - 1),
        ]
