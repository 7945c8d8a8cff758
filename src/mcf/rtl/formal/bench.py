"""What every bench has: free inputs as ports, a clock without reset, assumptions and assertions on what is watched."""

from typing import Any

from amaranth.hdl import Assert, Assume, ClockDomain, Elaboratable, Fragment, Module, Shape, Signal, Value


class Bench(Elaboratable):
    """A design under proof. `free` inputs may take any value in any cycle; everything starts from reset once."""

    def __init__(self) -> None:
        self.domain = ClockDomain("sync", reset_less=True)
        self.inputs: list[Signal] = [self.domain.clk]

    def free(self, name: str, shape: Any = 1) -> Signal:
        """An input that the solver chooses anew in each cycle."""
        signal = Signal(Shape.cast(shape), name=name)
        self.inputs.append(signal)
        return signal

    def elaborate(self, platform: object) -> Module:
        """Build the bench; `build` is the subclass's part."""
        m = Module()
        m.domains.sync = self.domain
        self.build(m)
        return m

    def build(self, m: Module) -> None:
        """Place the design, drive it, and say what must hold."""
        raise NotImplementedError


class _Placed(Elaboratable):
    def __init__(self, fragment: Any) -> None:
        self.fragment = fragment

    def elaborate(self, platform: object) -> Any:
        return self.fragment


def place(m: Module, name: str, design: Any) -> Any:
    """Put a design into a bench, elaborated now, so that its inner signals can be watched; return it."""
    m.submodules[name] = _Placed(Fragment.get(design, None))
    return design


def always(m: Module, claim: Value) -> None:
    """The claim holds in every cycle."""
    m.d.comb += Assert(claim)


def given(m: Module, premise: Value) -> None:
    """Only cycles count in which the premise holds."""
    m.d.comb += Assume(premise)


def stable(m: Module, port: Any) -> None:
    """Property (2): what is offered and not taken is offered again, unchanged."""
    payload = Value.cast(port.payload)
    waited, before = Signal(), Signal.like(payload)
    m.d.sync += [waited.eq(port.valid & ~port.ready), before.eq(payload)]
    with m.If(waited):
        m.d.comb += [Assert(port.valid), Assert(payload == before)]
