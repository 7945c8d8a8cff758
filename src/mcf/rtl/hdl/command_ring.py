"""The ring of commands for the compute half: software writes a command's words, then moves the tail."""

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out

from mcf.rtl.commands import COMMAND_BITS
from mcf.rtl.hdl.command import Command

WORD_BITS = 32
WORDS = COMMAND_BITS // WORD_BITS


class CommandRing(Component):
    """`write` takes words, always. `tail` and `head` count commands written and handed out, modulo twice the size;
    `commands` hands them out in order, one in ten cycles.
    """

    def __init__(self, size: int) -> None:
        assert size & (size - 1) == 0, "expected a power of two"
        self.size = size
        pointer = (2 * size - 1).bit_length()
        word = data.StructLayout({"index": range(size * WORDS), "data": WORD_BITS})
        super().__init__(
            {
                "write": In(stream.Signature(word, always_ready=True)),
                "tail": In(pointer),
                "head": Out(pointer),
                "commands": Out(stream.Signature(Command)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Words are read one behind the other into the register that is offered."""
        m = Module()
        m.submodules.table = table = Memory(shape=WORD_BITS, depth=self.size * WORDS, init=[])
        write, read = table.write_port(), table.read_port()
        number, is_reading, was_reading, was_last = Signal(range(WORDS)), Signal(), Signal(), Signal()
        command = Value.cast(self.commands.payload)
        m.d.comb += [
            *(write.en.eq(self.write.valid), write.addr.eq(self.write.p.index), write.data.eq(self.write.p.data)),
            *(read.addr.eq(Cat(number, self.head)), read.en.eq(is_reading)),
        ]
        m.d.sync += [number.eq(number + is_reading), was_reading.eq(is_reading), was_last.eq(number.all())]
        with m.If(was_reading):
            m.d.sync += [command.eq(Cat(command, read.data) >> WORD_BITS), self.commands.valid.eq(was_last)]
        with m.If(self.commands.valid):
            with m.If(self.commands.ready):
                m.d.sync += [self.commands.valid.eq(0), self.head.eq(self.head + 1)]
        with m.Elif(~is_reading & ~was_reading):
            m.d.sync += is_reading.eq(self.head != self.tail)
        with m.Elif(number.all()):
            m.d.sync += is_reading.eq(0)
        return m
