"""Cuts commands into steps: a tile of weights for one vector, a tile of keys or of values for one query head."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import Component, In, Out

from mcf.rtl.commands import GROUP_PLACES, ROW_BEATS, ComputeOp
from mcf.rtl.golden.gemv import GROUP, ROWS
from mcf.rtl.golden.tiles import SCALE_BEATS, TILE_BEATS
from mcf.rtl.hdl.command import POSITION_BITS, Command, Kind, Step

_BEAT = 4  # bits of an address below a beat


class Steps(Component):
    """`plans`: GEMV and ATTEND, in the order in which their tiles come. `steps`: in the order of work.

    GEMV: for each row tile, for each vector, its groups; the row tile is let go with the last vector. ATTEND: for each
    tile the query heads; keys run up to three heads ahead of values, so that the softmax of one hides behind the keys
    of others. Right behind a head's keys come its values' scales, which the softmax needs first.
    """

    def __init__(self) -> None:
        super().__init__({"plans": In(stream.Signature(Command)), "steps": Out(stream.Signature(Step))})

    def elaborate(self, platform: object) -> Module:
        """`here` is the position of the next tile that nobody has read. What is last is known a cycle before a step."""
        m = Module()
        self.goes, is_ready = Signal(), Signal()
        m.d.comb += [self.steps.valid.eq(is_ready), self.goes.eq(is_ready & self.steps.ready)]
        self.command = Signal(Command)
        self.here, self.base = Signal(POSITION_BITS), Signal(POSITION_BITS)
        self.place = Signal(11)
        command, plan = self.command, self.plans.payload
        m.d.comb += [self.steps.payload[name].eq(command[name]) for name in ("shift", "child", "columns")]
        m.d.comb += self.steps.payload.event.eq(command.set_event)
        with m.FSM() as states:
            with m.State("PLAN"):
                m.d.comb += self.plans.ready.eq(1)
                m.d.sync += [command.eq(plan), self.place.eq(plan.place)]
                with m.If(self.plans.valid):
                    with m.If(plan.op == ComputeOp.GEMV):
                        m.d.sync += self.base.eq(self.here)
                        m.next = "GEMV"
                    with m.Else():
                        m.d.sync += self.base.eq(self.here + 2 * SCALE_BEATS + plan.columns)
                        m.next = "ATTEND"
            with m.State("GEMV"):
                self._product(m)
            with m.State("ATTEND"):
                self._attention(m)
        self._outputs(m)
        m.d.sync += is_ready.eq(~states.ongoing("PLAN") & ~self.goes)
        return m

    def _product(self, m: Module) -> None:
        command, step = self.command, self.steps.payload
        group, vector, tile = Signal(11), Signal(8), Signal(12)
        last_group, last_vector, last_tile = Signal(), Signal(), Signal()
        beats = command.columns + SCALE_BEATS
        m.d.sync += [last_group.eq(group + 1 == command.count), last_vector.eq(vector + 1 == command.vectors)]
        m.d.sync += last_tile.eq(tile + 1 == command.tiles)
        m.d.comb += [
            *(step.kind.eq(Kind.WEIGHTS), step.start.eq(self.here), step.beats.eq(beats)),
            *(step.release.eq(Mux(last_vector, beats, 0)), step.place.eq(self.place)),
            *(step.first.eq(group == 0), step.last.eq(last_group), step.ends.eq(last_group & last_vector & last_tile)),
        ]
        after = self.here + beats
        with m.If(self.goes):
            m.d.sync += [group.eq(group + 1), self.here.eq(after), self.place.eq(self.place + GROUP_PLACES)]
            with m.If(last_group):
                m.d.sync += [group.eq(0), vector.eq(vector + 1), self.here.eq(self.base)]
                with m.If(last_vector):
                    m.d.sync += [vector.eq(0), tile.eq(tile + 1), self.here.eq(after), self.base.eq(after)]
                    m.d.sync += self.place.eq(command.place)
                    with m.If(last_tile):
                        m.d.sync += tile.eq(0)
                        m.next = "PLAN"
        self.next_rows, self.is_next_tile = self.goes & last_group, last_vector

    def _outputs(self, m: Module) -> None:
        """Where a vector's next rows go: vector after vector, in each row tile after row tile."""
        command, rows, tile_rows = self.command, Signal(36), Signal(36)
        m.d.comb += self.steps.payload.address.eq(rows)
        with m.If(self.plans.ready):
            first = self.plans.payload.second >> _BEAT
            m.d.sync += [rows.eq(first), tile_rows.eq(first)]
        with m.Elif(self.next_rows):
            m.d.sync += rows.eq(rows + command.tiles * ROW_BEATS)
            with m.If(self.is_next_tile):
                m.d.sync += [rows.eq(tile_rows + ROW_BEATS), tile_rows.eq(tile_rows + ROW_BEATS)]

    def _attention(self, m: Module) -> None:
        """`here` and `base`: where the next keys with their scales, and the next values lie; a tile of each follow one
        another. `owed`: the scales of values, `behind`, come next.
        """
        command, step = self.command, self.steps.payload
        keys, values = _Walk(m, command, "keys"), _Walk(m, command, "values")
        lead, is_keys, is_empty = Signal(2), Signal(), Signal()
        owed, behind, key_beats = Signal(), Signal(POSITION_BITS), Signal(8)
        is_values = ~is_keys & ~owed
        pair = command.columns + SCALE_BEATS + TILE_BEATS
        m.d.sync += is_empty.eq(command.tiles == 0)
        m.d.comb += [
            *(
                key_beats.eq(command.columns + SCALE_BEATS),
                is_keys.eq((~keys.is_over & (lead != 3) | is_empty) & ~owed),
            ),
            step.kind.eq(Mux(owed, Kind.SCALES, Mux(is_keys, Mux(is_empty, Kind.EMPTY, Kind.KEYS), Kind.VALUES))),
            step.start.eq(Mux(owed, behind, Mux(is_keys, self.here, self.base))),
            step.beats.eq(Mux(owed, SCALE_BEATS, Mux(is_keys, key_beats, GROUP))),
            step.release.eq(Mux(is_values & values.last_head, pair, 0)),
            *(step.place.eq(self.place), step.first.eq(1), step.last.eq(1)),
            step.tokens.eq(Mux(is_empty, 0, Mux(keys.last_tile, command.tokens, ROWS))),
            *(step.slot.eq(command.slot + keys.head), step.finish.eq(command.finish & (keys.last_tile | is_empty))),
            step.ends.eq(Mux(is_empty, keys.last_head, is_values & values.last_head & values.last_tile)),
        ]
        with m.If(~is_keys):
            m.d.comb += step.columns.eq(ROWS)
        with m.If(self.goes):
            with m.If(is_keys):
                m.d.sync += [lead.eq(lead + 1), self.place.eq(self.place + GROUP_PLACES), owed.eq(~is_empty)]
                m.d.sync += behind.eq(self.here + key_beats)
                keys.advance(m)
                with m.If(keys.last_head):
                    m.d.sync += [self.place.eq(command.place), self.here.eq(Mux(is_empty, self.here, self.here + pair))]
            with m.Elif(owed):
                m.d.sync += owed.eq(0)
            with m.Else():
                m.d.sync += lead.eq(lead - 1)
                values.advance(m)
                with m.If(values.last_head):
                    m.d.sync += self.base.eq(self.base + pair)
            with m.If(step.ends):
                m.d.sync += lead.eq(0)
                keys.reset(m)
                values.reset(m)
                m.next = "PLAN"


class _Walk:
    """Tile after tile, in each head after head."""

    def __init__(self, m: Module, command: data.View, name: str) -> None:
        self.head, self.tile = Signal(5, name=f"{name}_head"), Signal(12, name=f"{name}_tile")
        self.last_head, self.last_tile, self.is_over = (
            Signal(name=f"{name}_{end}") for end in ("last_head", "last_tile", "is_over")
        )
        m.d.sync += [
            *(self.last_head.eq(self.head + 1 == command.count), self.last_tile.eq(self.tile + 1 == command.tiles)),
            self.is_over.eq(self.tile == command.tiles),
        ]

    def advance(self, m: Module) -> None:
        m.d.sync += self.head.eq(self.head + 1)
        with m.If(self.last_head):
            m.d.sync += [self.head.eq(0), self.tile.eq(self.tile + 1)]

    def reset(self, m: Module) -> None:
        m.d.sync += [self.head.eq(0), self.tile.eq(0)]
