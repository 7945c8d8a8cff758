"""Property (6): the directory never loses an owner's copy, serves no reader from a draining one, frees it last."""

from amaranth.hdl import Module, Mux, Signal

from mcf.rtl.formal.bench import Bench, always, given, place, stable
from mcf.rtl.hdl.kv_dir import KvDirectory, Step
from mcf.rtl.kv_ops import BLOCK_LOW, KV_ID_BITS, MAX_READERS, KvCode, KvOp
from mcf.schedule.kv import ABSENT, ARRIVING, DRAINING, STREAMED, VALID

ENTRIES = 8
OTHER = 1 << BLOCK_LOW + 1 | 1  # a second kv_id, in the same set as the watched one, 0


class KvBench(Bench):
    """Operations on two entries in any order; what the answers say of the watched one is written down and compared."""

    def __init__(self, design: type[KvDirectory] = KvDirectory) -> None:
        super().__init__()
        self.design = design

    def build(self, m: Module) -> None:
        """Free operations and a free reader of the answers."""
        dut = self.dut = place(m, "dut", self.design(ENTRIES))
        op, other = self.free("op", 4), self.free("other")
        m.d.comb += [
            dut.ops.valid.eq(self.free("valid")),
            dut.ops.payload.op.eq(op),
            dut.ops.payload.kv_id.eq(Mux(other, OTHER, 0)),
            dut.ops.payload.owner.eq(self.free("owner")),
            dut.results.ready.eq(self.free("ready")),
        ]
        given(m, op <= KvOp.LOOK)
        stable(m, dut.results)
        # at most one way holds a kv_id: no entry is free here and valid there
        always(m, (dut.step != Step.DECIDE) | (dut.hit & (dut.hit - 1) == 0))
        self._watch(m)

    def _watch(self, m: Module) -> None:
        asked, owner_asked = Signal(KV_ID_BITS), Signal()
        with m.If(self.dut.ops.valid & self.dut.ops.ready):
            m.d.sync += [asked.eq(self.dut.ops.payload.kv_id), owner_asked.eq(self.dut.ops.payload.owner)]
        self.answered = Signal()
        answer = self.dut.results.payload
        m.d.comb += self.answered.eq(self.dut.results.valid & self.dut.results.ready & (asked == 0))
        done = self.answered & (answer.code <= KvCode.FREED)
        state, owner, readers = Signal(3), Signal(), Signal(range(MAX_READERS + 1))
        with m.If(done):
            m.d.sync += state.eq(answer.state)
            with m.If(state == ABSENT):
                m.d.sync += [owner.eq(owner_asked), readers.eq(0)]
            with m.If(answer.op == KvOp.READ):
                m.d.sync += readers.eq(readers + 1)
            with m.If(answer.op == KvOp.DONE):
                m.d.sync += readers.eq(readers - 1)
        left = Mux(answer.op == KvOp.DONE, readers - 1, readers)
        gone = (state != ABSENT) & (answer.state == ABSENT)
        kept = owner & (state == VALID)
        always(m, ~(done & kept) | (answer.state == VALID))
        always(m, ~(done & gone) | (left == 0))
        always(m, ~(done & gone) | (state == DRAINING) | (state == STREAMED))
        always(m, ~(done & (answer.op == KvOp.READ)) | (state == VALID) | (state == STREAMED))
        always(m, ~(done & (state == DRAINING)) | (answer.state == DRAINING) | (answer.state == ABSENT))
        always(m, ~(done & (answer.op == KvOp.DONE)) | (readers != 0))
        always(
            m,
            ~(done & (state == ABSENT))
            | (answer.state == VALID)
            | (answer.state == ARRIVING)
            | (answer.state == STREAMED),
        )


class ForgetsOwners(KvDirectory):
    """A mutant: a new entry is nobody's."""

    def _create(self, m: Module) -> None:
        super()._create(m)
        m.d.comb += self.after.owner.eq(0)


class FreesAtOnce(KvDirectory):
    """A mutant: a free does not wait for readers."""

    def _event(self, m: Module) -> None:
        self._move(m)


class ServesDraining(KvDirectory):
    """A mutant: a draining entry takes new readers."""

    def _read(self, m: Module) -> None:
        m.d.comb += [self.after.readers.eq(self.found.readers + 1), self.writes.eq(1), self.code.eq(KvCode.OK)]


class TakesTwice(KvDirectory):
    """A mutant: a second entry is made for a kv_id that has one in another way."""

    def _search(self, m: Module, rows: list[object]) -> None:
        super()._search(m, rows)
        with m.If(self.ask.op == KvOp.RECV):
            m.d.sync += [self.hit.eq(0), self.found.eq(0)]
