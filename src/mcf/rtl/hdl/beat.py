"""The beat, what every stream of the node carries: 128 bits, and whether they end the packet."""

from amaranth.lib import data, stream

BEAT_BITS = 128
BEAT_BYTES = BEAT_BITS // 8

Beat = data.StructLayout({"data": BEAT_BITS, "last": 1})
BeatStream = stream.Signature(
    Beat
)  # a packet is one header beat (hdl.meta) and `len` payload beats, the last one marked
