"""The control and status registers: an AXI4-Lite slave made from the table `mcf.rtl.registers`.

Ports carry the names of the table. A register that software writes is an output with its fields; one that hardware
owns is an input; a strobe and a window are streams that are always taken. Golden model: `mcf.rtl.golden.csr`.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from mcf.rtl.registers import ADDRESS_BITS, REGISTERS, WINDOWS, Access, Register, Window

OKAY, SLVERR = 0, 2
ALL_STROBES = 0b1111

AxiLite = wiring.Signature(
    {
        "awaddr": Out(ADDRESS_BITS),
        "awprot": Out(3),
        "awvalid": Out(1),
        "awready": In(1),
        "wdata": Out(32),
        "wstrb": Out(4),
        "wvalid": Out(1),
        "wready": In(1),
        "bresp": In(2),
        "bvalid": In(1),
        "bready": Out(1),
        "araddr": Out(ADDRESS_BITS),
        "arprot": Out(3),
        "arvalid": Out(1),
        "arready": In(1),
        "rdata": In(32),
        "rresp": In(2),
        "rvalid": In(1),
        "rready": Out(1),
    }
)


def layout_of(register: Register) -> data.StructLayout:
    """The fields of a register, as hardware sees them."""
    return data.StructLayout({field.name: field.width for field in register.fields})


def index_bits(window: Window) -> int:
    """Bits of a window's index: entries where a write carries a whole entry, else words."""
    return ((window.num_entries if window.is_whole else window.num_words) - 1).bit_length()


def request_of(window: Window) -> stream.Signature:
    """What a window hands to hardware: {index, data} per write, the index of a word per read."""
    index = index_bits(window)
    if window.access is Access.WINDOW_READ:
        return stream.Signature(index, always_ready=True)
    width = window.width if window.is_whole else 32
    return stream.Signature(data.StructLayout({"index": index, "data": width}), always_ready=True)


def _members() -> dict[str, wiring.Member]:
    members = {"axi": In(AxiLite), "errors_held": Out(1)}
    for register in REGISTERS:
        if register.access is Access.READ_WRITE:
            members[register.name] = Out(layout_of(register), init=register_init(register))
        elif register.access in (Access.READ, Access.CLEAR):
            members[register.name] = In(layout_of(register))
        elif register.access is Access.STROBE:
            members[register.name] = Out(stream.Signature(register.width, always_ready=True))
    for window in WINDOWS:
        members[window.name] = Out(request_of(window))
        if window.access is Access.WINDOW_READ:
            members[f"{window.name}_data"] = In(32)
    return members


def register_init(register: Register) -> dict[str, int]:
    """The fields that reset leaves."""
    return {f.name: register.value >> f.low & (1 << f.width) - 1 for f in register.fields}


class Csr(wiring.Component):
    """AXI4-Lite, 32 bits, one access at a time: a write takes 3 cycles, a read 4.

    A window's read is answered one cycle later on `<name>_data`. Bits of `errors` that are 1 for a cycle are kept until
    software writes 1 to them; `errors_held` says that there are some.
    """

    def __init__(self) -> None:
        super().__init__(_members())
        self._had_write = Signal()

    def elaborate(self, platform: object) -> Module:
        """Join the access machine, the registers and the windows."""
        m = Module()
        incoming = Signal(ADDRESS_BITS - 2)  # of the word that is asked for next
        address = Signal.like(incoming)  # of the word at work
        is_idle = Signal()
        word = Signal(32)
        is_full = Signal()  # all byte strobes
        does_write, does_read = Signal(), Signal()
        is_good = Signal()  # this access has a place
        found = Signal(32)  # what a register reads
        from_window = Signal(32)
        m.d.comb += incoming.eq(Mux(self._takes_write(), self.axi.awaddr, self.axi.araddr) >> 2)
        with m.If(is_idle):
            m.d.sync += address.eq(incoming)
        self._access(m, (is_idle, word, is_full, does_write, does_read), is_good, found, from_window)
        goods, values = [], []
        for register in REGISTERS:
            is_here = _found(m, is_idle, incoming == register.address >> 2, register.name)
            goods.append(is_here & self._good(register.access, does_write, is_full))
            value = self._register(m, register, is_here & does_write & is_full, word)
            values.append(is_here.replicate(32) & value)
        answers = []
        for window in WINDOWS:
            is_here = _found(m, is_idle, _is_in(window, incoming), window.name)
            answer = self._window(m, window, address, word, is_here & does_write & is_full, is_here & does_read)
            goods.append(is_here & self._good(window.access, does_write, is_full))
            answers.append(answer)
        m.d.comb += [is_good.eq(Cat(goods).any()), found.eq(_or(values)), from_window.eq(_or(answers))]
        return m

    def _access(self, m: Module, ports: tuple[Signal, ...], is_good: Value, found: Value, from_window: Value) -> None:
        is_idle, word, is_full, does_write, does_read = ports
        axi = self.axi
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += is_idle.eq(1)
                with m.If(self._takes_write()):
                    m.d.sync += [word.eq(axi.wdata), is_full.eq(axi.wstrb == ALL_STROBES), self._had_write.eq(1)]
                    m.next = "WRITE"
                with m.Elif(axi.arvalid):
                    m.d.sync += self._had_write.eq(0)
                    m.next = "READ"
            with m.State("WRITE"):
                m.d.comb += [axi.awready.eq(1), axi.wready.eq(1), does_write.eq(1)]
                m.d.sync += axi.bresp.eq(_response(is_good))
                m.next = "WRITTEN"
            with m.State("WRITTEN"):
                m.d.comb += axi.bvalid.eq(1)
                with m.If(axi.bready):
                    m.next = "IDLE"
            with m.State("READ"):
                m.d.comb += [axi.arready.eq(1), does_read.eq(1)]
                m.d.sync += [axi.rresp.eq(_response(is_good)), axi.rdata.eq(found)]
                m.next = "COLLECT"
            with m.State("COLLECT"):
                m.d.sync += axi.rdata.eq(axi.rdata | from_window)
                m.next = "ANSWER"
            with m.State("ANSWER"):
                m.d.comb += axi.rvalid.eq(1)
                with m.If(axi.rready):
                    m.next = "IDLE"

    def _takes_write(self) -> Value:
        """Say whether the next access is a write: reads and writes take turns."""
        return self.axi.awvalid & self.axi.wvalid & ~(self.axi.arvalid & self._had_write)

    @staticmethod
    def _good(access: Access, does_write: Value, is_full: Value) -> Value:
        if access in (Access.STROBE, Access.WINDOW_WRITE):
            return does_write & is_full
        if access in (Access.READ_WRITE, Access.CLEAR):
            return ~does_write | is_full
        return ~does_write

    def _register(self, m: Module, register: Register, is_written: Value, word: Value) -> Value:
        """Join one register and return what a read of it gives."""
        if register.access is Access.CONSTANT:
            return Const(register.value, 32)
        port = getattr(self, register.name)
        if register.access is Access.STROBE:
            m.d.comb += [port.payload.eq(word), port.valid.eq(is_written)]
            return Const(0, 32)
        if register.access is Access.CLEAR:
            held = Signal(register.width, name=f"{register.name}_bits")
            m.d.sync += held.eq(held & ~(word & is_written.replicate(32)) | port.as_value())
            m.d.comb += self.errors_held.eq(held.any())
            return held
        if register.access is Access.READ_WRITE:
            with m.If(is_written):
                m.d.sync += port.as_value().eq(word)
        return port.as_value()

    def _window(
        self, m: Module, window: Window, address: Signal, word: Signal, is_written: Value, is_read: Value
    ) -> Value:
        """Join one window; return its answer in the cycle after a read."""
        port, index = getattr(self, window.name), (window.num_words - 1).bit_length()
        shift = (window.stride_words - 1).bit_length()
        number, part = address[shift:index], address[:shift]
        if window.access is Access.WINDOW_READ:
            m.d.comb += [port.payload.eq(address[:index]), port.valid.eq(is_read)]
            was_read = Signal(name=f"{window.name}_was_read")
            m.d.sync += was_read.eq(is_read)
            return was_read.replicate(32) & getattr(self, f"{window.name}_data")
        if not window.is_whole:
            m.d.comb += [port.p.index.eq(address[:index]), port.p.data.eq(word), port.valid.eq(is_written)]
            return Const(0, 32)
        earlier = [Signal(32, name=f"{window.name}_word{i}") for i in range(window.entry_words - 1)]
        for i, kept in enumerate(earlier):
            with m.If(is_written & (part == i)):
                m.d.sync += kept.eq(word)
        m.d.comb += [port.p.index.eq(number), port.p.data.eq(Cat(*earlier, word))]
        m.d.comb += port.valid.eq(is_written & (part == window.entry_words - 1))
        return Const(0, 32)


def _found(m: Module, is_idle: Value, is_here: Value, name: str) -> Signal:
    """Keep whether the address that is taken now is this one's: decoding has a cycle of its own."""
    found = Signal(name=f"{name}_here")
    with m.If(is_idle):
        m.d.sync += found.eq(is_here)
    return found


def _is_in(window: Window, address: Value) -> Value:
    """Say whether the address of a word is one of the window's, gaps between entries left out."""
    index, shift = (window.num_words - 1).bit_length(), (window.stride_words - 1).bit_length()
    is_here = (address[index:] == window.address >> 2 + index) & (address[:shift] < window.entry_words)
    return is_here & (address[shift:index] < window.num_entries)


def _response(is_good: Value) -> Value:
    assert (OKAY, SLVERR) == (0, 2)
    return Cat(Const(0, 1), ~is_good)


def _or(values: list[Value]) -> Value:
    total: Value = Const(0, 32)
    for value in values:
        total = total | value
    return total
