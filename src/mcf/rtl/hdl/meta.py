"""The packet header as hardware sees it: the bits of `mcf.schedule.wire.TABLE`, and its CRC as a tree of XORs."""

from amaranth.hdl import Cat, Value, ValueLike
from amaranth.lib import data

from mcf.rtl.hdl.crc import parity
from mcf.schedule.crc16 import crc16
from mcf.schedule.wire import CRC_BYTES, TABLE

Meta = data.StructLayout({field.name: field.width for field in TABLE})
_COVERED_BITS = CRC_BYTES * 8


def header_crc(header: ValueLike) -> Value:
    """The CRC-16 that belongs into `hcrc` of a 128-bit header, combinational; `hcrc` itself is not looked at.

    The CRC is affine over GF(2): bit k is the parity of the header bits whose single flip flips it, and a constant.
    """
    bits = Value.cast(header)
    constant = crc16(bytes(CRC_BYTES))
    flips = [crc16((1 << i).to_bytes(CRC_BYTES, "little")) ^ constant for i in range(_COVERED_BITS)]
    chosen = [[bits[i] for i in range(_COVERED_BITS) if flips[i] >> k & 1] for k in range(16)]
    parities = [parity(terms) for terms in chosen]
    return Cat(*parities) ^ constant
