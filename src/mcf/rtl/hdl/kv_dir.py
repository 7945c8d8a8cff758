"""The replica directory: which copies this node holds, moved through their lives by the one transition table.

Entries live in sets of 4, found by a hash of the kv_id. The owner's copy is never drained, freed or streamed: that is a
property of this small machine alone, whatever the network says. A draining copy takes no new reader and is gone when
it has been freed and its last reader is done.
"""

from collections.abc import Iterable

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, enum, stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out
from amaranth.utils import ceil_log2

from mcf.rtl.hdl.crc import parity
from mcf.rtl.kv_ops import (
    BLOCK_LOW,
    CREATING,
    ENDING,
    KV_ID_BITS,
    LOSING,
    MAX_READERS,
    SERVING,
    WAYS,
    KvCode,
    KvOp,
    hash_bits,
)
from mcf.schedule.kv import ABSENT, STATE_NAMES, TRANSITIONS

BASE_BITS = 16
_STATE_BITS = (len(STATE_NAMES) - 1).bit_length()

Ask = data.StructLayout({"op": 4, "kv_id": KV_ID_BITS, "owner": 1, "base": BASE_BITS})
Answer = data.StructLayout({"op": 4, "code": 3, "base": BASE_BITS, "state": _STATE_BITS})


class Step(enum.Enum):
    """An operation's three cycles: its set is addressed, searched, and written back."""

    ASK = 0
    SEARCH = 1
    DECIDE = 2


class KvDirectory(Component):
    """Answers one operation at a time, in order, one in 4 cycles.

    `done` pulses with each answer OK, HELD or FREED, `refused` with every other; `occupied` counts entries.
    """

    def __init__(self, entries: int = 256) -> None:
        assert entries % WAYS == 0, entries
        self.set_bits = ceil_log2(entries // WAYS)
        assert entries == WAYS << self.set_bits, entries
        self.entry = data.StructLayout(
            {
                "tag": KV_ID_BITS - self.set_bits,
                "base": BASE_BITS,
                "state": _STATE_BITS,
                "owner": 1,
                "readers": MAX_READERS.bit_length(),
                "dying": 1,
            }
        )
        super().__init__(
            {
                "ops": In(stream.Signature(Ask)),
                "results": Out(stream.Signature(Answer)),
                "done": Out(1),
                "refused": Out(1),
                "occupied": Out(range(entries + 1)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Address, search, decide."""
        m = Module()
        self.step, self.ask = Signal(Step), Signal(Ask)
        self.found, self.hit, self.vacant = Signal(self.entry), Signal(WAYS), Signal(WAYS)
        self.after, self.code, self.writes = Signal(self.entry), Signal(KvCode), Signal()
        m.d.comb += self.ops.ready.eq((self.step == Step.ASK) & ~self.results.valid)
        m.d.sync += [self.refused.eq(0), self.done.eq(0)]
        with m.If(self.results.ready):
            m.d.sync += self.results.valid.eq(0)
        rows = self._memories(m)
        with m.Switch(self.step):
            with m.Case(Step.ASK), m.If(self.ops.valid & self.ops.ready):
                m.d.sync += [self.ask.eq(self.ops.payload), self.step.eq(Step.SEARCH)]
            with m.Case(Step.SEARCH):
                self._search(m, rows)
                m.d.sync += self.step.eq(Step.DECIDE)
            with m.Case(Step.DECIDE):
                self._answer(m)
                m.d.sync += self.step.eq(Step.ASK)
        self._decide(m)
        return m

    def _memories(self, m: Module) -> list[data.View]:
        rows, way = [], Mux(self.hit.any(), self.hit, self.vacant & ~(self.vacant - 1))
        for i in range(WAYS):
            m.submodules[f"way{i}"] = memory = Memory(shape=self.entry, depth=1 << self.set_bits, init=[])
            read, write = memory.read_port(), memory.write_port()
            m.d.comb += [
                read.addr.eq(self._set(self.ops.payload.kv_id)),
                write.addr.eq(self._set(self.ask.kv_id)),
                write.data.eq(self.after),
                write.en.eq((self.step == Step.DECIDE) & self.writes & way[i]),
            ]
            rows.append(read.data)
        return rows

    def _set(self, kv_id: Value) -> Value:
        return Cat(*(parity([kv_id[bit] for bit in bits]) for bits in hash_bits(self.set_bits)))

    def _tag(self, kv_id: Value) -> Value:
        return Cat(kv_id[:BLOCK_LOW], kv_id[BLOCK_LOW + self.set_bits :])

    def _search(self, m: Module, rows: list[data.View]) -> None:
        hits = [(row.state != ABSENT) & (row.tag == self._tag(self.ask.kv_id)) for row in rows]
        masked = [Mux(hit, Value.cast(row), 0) for hit, row in zip(hits, rows, strict=True)]
        m.d.sync += [
            self.hit.eq(Cat(*hits)),
            self.vacant.eq(Cat(row.state == ABSENT for row in rows)),
            Value.cast(self.found).eq(masked[0] | masked[1] | masked[2] | masked[3]),
        ]

    # --- what comes of it ---

    def _decide(self, m: Module) -> None:
        op = self.ask.op
        m.d.comb += [self.after.eq(self.found), self.code.eq(KvCode.STATE)]
        with m.If(_is(op, CREATING)):
            self._create(m)
        with m.Elif(~self.hit.any()):
            m.d.comb += self.code.eq(KvCode.MISSING)
        with m.Elif(self.found.owner & _is(op, LOSING)):
            m.d.comb += self.code.eq(KvCode.OWNER)
        with m.Else(), m.Switch(op):
            with m.Case(KvOp.READ):
                self._read(m)
            with m.Case(KvOp.DONE):
                self._done(m)
            with m.Case(KvOp.LOOK):
                m.d.comb += self.code.eq(KvCode.OK)
            with m.Default():
                self._event(m)

    def _create(self, m: Module) -> None:
        streaming = self.ask.op == KvOp.STREAM
        with m.If(self.hit.any()):
            m.d.comb += self.code.eq(Mux(self.found.owner, KvCode.OWNER, KvCode.STATE))
        with m.Elif(self.ask.owner & streaming):
            m.d.comb += self.code.eq(KvCode.OWNER)
        with m.Elif(~self.vacant.any()):
            m.d.comb += self.code.eq(KvCode.FULL)
        with m.Else():
            m.d.comb += [
                self.after.tag.eq(self._tag(self.ask.kv_id)),
                self.after.base.eq(self.ask.base),
                self.after.owner.eq(self.ask.owner),
            ]
            self._move(m)

    def _event(self, m: Module) -> None:
        ending, held = _is(self.ask.op, ENDING), self.found.readers != 0
        legal = Cat(*(self._row(*key) for key in TRANSITIONS)).any()
        with m.If(~ending | ~(held | self.found.dying)):
            self._move(m)
        with m.Elif(legal & ~self.found.dying):
            m.d.comb += [self.after.dying.eq(1), self.writes.eq(1), self.code.eq(KvCode.HELD)]

    def _row(self, state: int, event: str) -> Value:
        return (self.found.state == state) & (self.ask.op == KvOp[event.upper()])

    def _move(self, m: Module) -> None:
        """One step of the table; where it has no row, the code stays STATE."""
        for (state, event), after in TRANSITIONS.items():
            with m.If(self._row(state, event)):
                m.d.comb += [self.after.state.eq(after), self.writes.eq(1), self.code.eq(KvCode.OK)]

    def _read(self, m: Module) -> None:
        full = self.found.readers == MAX_READERS
        with m.If(_is(self.found.state, SERVING) & ~self.found.dying):
            m.d.comb += [
                self.after.readers.eq(self.found.readers + 1),
                self.writes.eq(~full),
                self.code.eq(Mux(full, KvCode.READERS, KvCode.OK)),
            ]

    def _done(self, m: Module) -> None:
        last = self.found.readers == 1
        m.d.comb += self.code.eq(KvCode.READERS)
        with m.If(self.found.readers != 0):
            m.d.comb += [
                self.after.readers.eq(self.found.readers - 1),
                self.writes.eq(1),
                self.code.eq(Mux(last & self.found.dying, KvCode.FREED, KvCode.OK)),
            ]
            with m.If(last & self.found.dying):
                m.d.comb += [self.after.state.eq(ABSENT), self.after.dying.eq(0)]

    def _answer(self, m: Module) -> None:
        gone, came = Signal(), Signal()
        m.d.comb += [
            gone.eq(self.writes & (self.after.state == ABSENT)),
            came.eq(self.writes & ~self.hit.any()),
        ]
        m.d.sync += [
            self.results.valid.eq(1),
            self.results.payload.op.eq(self.ask.op),
            self.results.payload.code.eq(self.code),
            self.results.payload.base.eq(self.after.base),
            self.results.payload.state.eq(self.after.state),
            self.refused.eq(self.code > KvCode.FREED),
            self.done.eq(self.code <= KvCode.FREED),
            self.occupied.eq(self.occupied + came - gone),
        ]


def _is(value: Value, codes: Iterable[int]) -> Value:
    return Cat(value == code for code in sorted(codes)).any()
