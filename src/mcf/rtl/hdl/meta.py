"""The packet header as hardware sees it: the bits of `mcf.schedule.wire.TABLE`, and its CRC as a tree of XORs."""

from amaranth.hdl import Module, Value, ValueLike
from amaranth.lib import data

from mcf.rtl.hdl.crc import affine_crc
from mcf.schedule.crc16 import crc16
from mcf.schedule.wire import CRC_BYTES, TABLE

Meta = data.StructLayout({field.name: field.width for field in TABLE})
_COVERED_BITS = CRC_BYTES * 8


def header_crc(m: Module, header: ValueLike) -> Value:
    """The CRC-16 that belongs into `hcrc` of a 128-bit header, combinational; `hcrc` itself is not looked at."""
    bits = Value.cast(header)[:_COVERED_BITS]
    return affine_crc(m, bits, 16, lambda covered: crc16(covered.to_bytes(CRC_BYTES, "little")), is_shared=False)
