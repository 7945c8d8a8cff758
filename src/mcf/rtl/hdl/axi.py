"""AXI4 as the memory ports have it: 128 bits, incrementing bursts of 1 to 16 beats, all of one ID, so in order.

Bursts end at multiples of their full length, so none crosses 4 KB (AXI4 specification, A3.4.1).
"""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from mcf.rtl.hdl.beat import BEAT_BITS, BEAT_BYTES

ADDRESS_BITS = 40
BURST_BEATS = 16
PAGE_BYTES = 4096  # what no burst may cross
_SIZE, _INCR = BEAT_BYTES.bit_length() - 1, 1
_NORMAL = 0b0011  # AxCACHE: bufferable, not cached
_BEAT, _BURST = _SIZE, _SIZE + BURST_BEATS.bit_length() - 1  # bits of an address below a beat, below a burst

Request = data.StructLayout({"address": ADDRESS_BITS, "beats": 16})  # address: a multiple of 16 bytes
RequestStream = stream.Signature(Request)


def _address_channel(prefix: str) -> dict[str, wiring.Member]:
    fields = {"id": Out(1), "addr": Out(ADDRESS_BITS), "len": Out(8), "size": Out(3, init=_SIZE)}
    fields |= {"burst": Out(2, init=_INCR), "cache": Out(4, init=_NORMAL), "prot": Out(3)}
    return {prefix + name: member for name, member in {**fields, "valid": Out(1), "ready": In(1)}.items()}


AxiRead = wiring.Signature(
    {
        **_address_channel("ar"),
        "rid": In(1),
        "rdata": In(BEAT_BITS),
        "rresp": In(2),
        "rlast": In(1),
        "rvalid": In(1),
        "rready": Out(1),
    }
)
AxiWrite = wiring.Signature(
    {
        **_address_channel("aw"),
        "wdata": Out(BEAT_BITS),
        "wstrb": Out(BEAT_BYTES),
        "wlast": Out(1),
        "wvalid": Out(1),
        "wready": In(1),
        "bid": In(1),
        "bresp": In(2),
        "bvalid": In(1),
        "bready": Out(1),
    }
)


def is_error(response: Value) -> Value:
    """SLVERR or DECERR."""
    return response[1]


class Bursts(wiring.Component):
    """Cuts requests into bursts, one in two cycles at most. `last`: the burst ends its request.

    A request of no beats is one burst of none, which must not go to memory.
    """

    def __init__(self) -> None:
        burst = data.StructLayout({"address": ADDRESS_BITS, "beats": range(BURST_BEATS + 1), "last": 1})
        super().__init__({"requests": In(RequestStream), "bursts": Out(stream.Signature(burst))})

    def elaborate(self, platform: object) -> Module:
        """Keep address and beats that are left; cut off what lies before the next multiple of a burst."""
        m = Module()
        is_open, left = Signal(), Signal(Request.members["beats"])
        address = Signal(ADDRESS_BITS - _BEAT)
        room = Signal(range(BURST_BEATS + 1))
        is_last, cuts = Signal(), Signal()
        m.d.comb += [
            room.eq(self._room(address)),
            is_last.eq(left <= room),
            cuts.eq(is_open & ~self.bursts.valid),
            self.requests.ready.eq(~is_open),
        ]
        with m.If(cuts):
            burst = {"address": address << _BEAT, "beats": Mux(is_last, left, room), "last": is_last}
            m.d.sync += [self.bursts.payload[name].eq(value) for name, value in burst.items()]
            m.d.sync += [left.eq(left - room), address.eq(address + room), is_open.eq(~is_last)]
        with m.Elif(self.requests.ready & self.requests.valid):
            m.d.sync += [left.eq(self.requests.payload.beats), address.eq(self.requests.payload.address >> _BEAT)]
            m.d.sync += is_open.eq(1)
        m.d.sync += self.bursts.valid.eq(cuts | (self.bursts.valid & ~self.bursts.ready))
        return m

    def _room(self, address: Signal) -> Value:
        """Beats up to the next multiple of a burst."""
        return BURST_BEATS - address[: _BURST - _BEAT]
