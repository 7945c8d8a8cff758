"""Takes tiles apart: their scales to where sums are scaled or values are weighted, the rest to the multipliers."""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out

from mcf.rtl.commands import NUM_SLOTS, SLOTS_PER_BEAT
from mcf.rtl.golden.gemv import WIDE_BITS
from mcf.rtl.golden.tiles import SCALE_BEATS
from mcf.rtl.hdl.attn_tile import TileCommand
from mcf.rtl.hdl.beat import BEAT_BITS
from mcf.rtl.hdl.command import Kind, Step
from mcf.rtl.hdl.operands import Operand

Wide = data.StructLayout({"data": WIDE_BITS, "last": 1})
Portion = data.StructLayout(
    {name: Step[name].shape for name in ("kind", "place", "columns", "tokens", "slot", "finish", "child")}
)
_BEATS = NUM_SLOTS // SLOTS_PER_BEAT


class Feed(Component):
    """One of `portions` per run of `tiles`, but for EMPTY ones. When a tile starts to come, all that was loaded before
    it is there: its `operands` are asked for, and its query head's scales looked up, then and not earlier.

    `writes`: a beat of the table of query heads' scales.
    """

    def __init__(self) -> None:
        write = data.StructLayout({"place": range(_BEATS), "data": BEAT_BITS})
        super().__init__(
            {
                "portions": In(stream.Signature(Portion)),
                "tiles": In(stream.Signature(Wide)),
                "writes": In(stream.Signature(write, always_ready=True)),
                "weights": Out(stream.Signature(Wide)),
                "row_scales": Out(stream.Signature(WIDE_BITS)),
                "value_scales": Out(stream.Signature(WIDE_BITS)),
                "operands": Out(stream.Signature(Operand)),
                "heads": Out(stream.Signature(TileCommand)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """The data pass straight through; only where they go changes."""
        m = Module()
        portion, tiles = self.portions.payload, self.tiles
        is_values, is_scales, is_empty, has_head = Signal(), Signal(), Signal(), Signal()
        count, were_scales, can_start = Signal(range(SCALE_BEATS)), Signal(), Signal()
        m.d.comb += [
            *(is_values.eq(portion.kind == Kind.VALUES), is_empty.eq(portion.kind == Kind.EMPTY)),
            is_scales.eq(portion.kind == Kind.SCALES),
            has_head.eq((portion.kind == Kind.KEYS) | is_empty),
            *(out.payload.eq(tiles.payload.data) for out in (self.row_scales, self.value_scales)),
            *(self.weights.payload.eq(tiles.payload), self.operands.payload.outside.eq(is_values)),
            *(self.operands.payload.place.eq(portion.place), self.operands.payload.count.eq(portion.columns)),
            can_start.eq(
                (~has_head | self.heads.ready) & (is_empty | (tiles.valid & (is_scales | self.operands.ready)))
            ),
        ]
        self._head(m)
        with m.FSM():
            with m.State("START"):
                m.d.sync += were_scales.eq(is_scales)
                with m.If(self.portions.valid & can_start):
                    m.d.comb += [self.portions.ready.eq(1), self.heads.valid.eq(has_head)]
                    m.d.comb += self.operands.valid.eq(~is_empty & ~is_scales)
                    with m.If(is_values):
                        m.next = "NUMBERS"
                    with m.Elif(~is_empty):
                        m.next = "SCALES"
            with m.State("SCALES"):
                for is_here, scales in ((~were_scales, self.row_scales), (were_scales, self.value_scales)):
                    with m.If(is_here):
                        m.d.comb += [scales.valid.eq(tiles.valid), tiles.ready.eq(scales.ready)]
                with m.If(tiles.valid & tiles.ready):
                    m.d.sync += count.eq(count + 1)
                    with m.If((count == SCALE_BEATS - 1) & were_scales):
                        m.next = "START"
                    with m.Elif(count == SCALE_BEATS - 1):
                        m.next = "NUMBERS"
            with m.State("NUMBERS"):
                m.d.comb += [self.weights.valid.eq(tiles.valid), tiles.ready.eq(self.weights.ready)]
                with m.If(tiles.valid & tiles.ready & tiles.payload.last):
                    m.next = "START"
        return m

    def _head(self, m: Module) -> None:
        m.submodules.table = table = Memory(shape=BEAT_BITS, depth=_BEATS, init=[])
        write, read = table.write_port(), table.read_port(domain="comb")
        portion, head = self.portions.payload, self.heads.payload
        slot = read.data.word_select(portion.slot[: (SLOTS_PER_BEAT - 1).bit_length()], BEAT_BITS // SLOTS_PER_BEAT)
        m.d.comb += [
            *(write.en.eq(self.writes.valid), write.addr.eq(self.writes.payload.place)),
            *(write.data.eq(self.writes.payload.data), read.addr.eq(portion.slot[(SLOTS_PER_BEAT - 1).bit_length() :])),
            *(head.q_scale.eq(slot[:16]), head.shift.eq(slot[16:21])),
            *(head[name].eq(portion[name]) for name in ("tokens", "slot", "finish", "child")),
        ]
