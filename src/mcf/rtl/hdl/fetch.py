"""The front of the compute half: takes commands in order and asks the memory ports for all that they will need."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import Component, In, Out

from mcf.rtl.commands import NUM_PORTS, ComputeOp
from mcf.rtl.golden.tiles import SCALE_BEATS, TILE_BEATS
from mcf.rtl.hdl.axi import RequestStream
from mcf.rtl.hdl.command import Command

Run = data.StructLayout({"load": 1, "table": 1, "place": 11, "beats": 16, "event": 8})  # what port 0 is asked for
_BEAT = 4  # bits of an address below a beat


class Fetch(Component):
    """One command after the other; `idle` says that all earlier ones are done, `may` that another may start.

    `waits` takes a command's event. `plans` passes GEMV and ATTEND on to be computed. `requests`: the same run of each
    port, in order; of a LOAD only port 0's. `runs` tells what port 0 gives next. `started` pulses per command;
    `working`: one is being fetched.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "commands": In(stream.Signature(Command)),
                "waits": Out(stream.Signature(8)),
                "plans": Out(stream.Signature(Command)),
                "requests": Out(RequestStream).array(NUM_PORTS),
                "runs": Out(stream.Signature(Run)),
                "idle": In(1),
                "may": In(1),
                "started": Out(1),
                "working": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """States are named after what is waited for."""
        m = Module()
        command, is_load, is_attend = Signal(Command), Signal(), Signal()
        here, other, at = (Signal(36, name=name) for name in ("here", "other", "at"))  # in beats
        beats, left, port, is_second = Signal(16), Signal(12), Signal(range(NUM_PORTS)), Signal()
        m.d.comb += [
            *(is_load.eq(command.op == ComputeOp.LOAD), is_attend.eq(command.op == ComputeOp.ATTEND)),
            *(self.waits.payload.eq(command.wait_event), self.plans.payload.eq(command)),
            *(self.runs.payload[name].eq(value) for name, value in _run(command, is_load, beats).items()),
            *(request.payload.address.eq(at << _BEAT) for request in self.requests),
            *(request.payload.beats.eq(beats) for request in self.requests),
        ]
        with m.FSM() as states:
            with m.State("COMMAND"):
                m.d.comb += self.commands.ready.eq(self.may)
                with m.If(self.commands.valid & self.may):
                    m.d.sync += command.eq(self.commands.payload)
                    m.next = "FENCE"
            with m.State("FENCE"):
                m.d.sync += [here.eq(command.address >> _BEAT), other.eq(command.second >> _BEAT)]
                m.d.sync += [left.eq(command.tiles), is_second.eq(0)]
                with m.If(self.idle | ~command.fence):
                    m.next = "EVENT"
            with m.State("EVENT"):
                m.d.comb += self.waits.valid.eq(command.wait_event != 0)
                with m.If(self.waits.ready | (command.wait_event == 0)):
                    m.d.comb += self.started.eq(1)
                    m.next = "PLAN"
            with m.State("PLAN"):
                m.d.comb += self.plans.valid.eq(~is_load)
                with m.If(is_load | (self.plans.ready & (left != 0))):
                    m.next = "SIZE"
                with m.Elif(self.plans.ready):
                    m.next = "COMMAND"
            with m.State("SIZE"):
                columns = Mux(is_second, TILE_BEATS, command.columns + SCALE_BEATS)
                m.d.sync += [beats.eq(Mux(is_load, command.count, Mux(is_attend, columns, command.run))), at.eq(here)]
                m.d.sync += port.eq(0)
                m.next = "RUN"
            with m.State("RUN"):
                m.d.comb += self.runs.valid.eq(1)
                with m.If(self.runs.ready):
                    m.next = "PORTS"
            with m.State("PORTS"):
                taken = Signal()
                for number, request in enumerate(self.requests):
                    with m.If(port == number):
                        m.d.comb += [request.valid.eq(1), taken.eq(request.ready)]
                with m.If(taken):
                    m.d.sync += [port.eq(port + 1), at.eq(at + command.stride)]
                    with m.If(is_load):
                        m.next = "COMMAND"
                    with m.Elif(port == NUM_PORTS - 1):
                        m.next = "NEXT"
            with m.State("NEXT"):
                moved, ends_tile = here + beats, ~is_attend | is_second
                m.d.sync += [left.eq(left - ends_tile), is_second.eq(is_attend & ~is_second)]
                m.d.sync += [here.eq(Mux(is_attend, other, moved)), other.eq(moved)]
                with m.If(ends_tile & (left == 1)):
                    m.next = "COMMAND"
                with m.Else():
                    m.next = "SIZE"
        m.d.comb += self.working.eq(~states.ongoing("COMMAND"))
        return m


def _run(command: data.View, is_load: Signal, beats: Signal) -> dict[str, object]:
    taken = {name: command[name] for name in ("table", "place")}
    return {"load": is_load, **taken, "beats": beats, "event": command.set_event}
