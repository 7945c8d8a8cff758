"""Documents made from the tables: the register map and the packet format."""

from mcf.rtl import commands, descriptor, registers
from mcf.rtl.registers import ADDRESS_BITS
from mcf.schedule import wire

REGISTER_PAGE = "registers.md"
PACKET_PAGE = "packets.md"


def register_page() -> str:
    """The register map as a page."""
    return f"""# Register map of a node

Generated from `mcf.rtl.registers`. Software reaches a node over AXI4-Lite: {ADDRESS_BITS} address bits, 32-bit words,
all byte strobes. What is not listed, a write to what is read only and a partial write answer SLVERR and change nothing.
Reset leaves 0 where no other value is said.

{registers.markdown()}
## Descriptors

{descriptor.DESCRIPTOR_WORDS} words each, the least significant one first. Write an entry's words, then `ring_tail`.

{descriptor.markdown()}
## Commands of the compute half

{commands.COMMAND_BITS // 32} words each, the least significant one first, worked on in order. How tiles of weights,
keys and values lie in memory says `mcf.rtl.golden.tiles`; each of {commands.NUM_PORTS} ports reads its own run of them.

{commands.markdown()}"""


def packet_page() -> str:
    """The packet format as a page."""
    return f"""# Packets

Generated from `mcf.schedule.wire`. A packet is one header beat of {wire.HEADER_BITS} bits and `len` payload beats of 16
bytes; the last beat is marked beside the data. Bits count from the least significant one; as bytes a header is
little-endian. Link words, sequence numbers and the CRC of payloads belong to the links and are not part of a packet.

## Header

{wire.markdown()}"""


def pages() -> dict[str, str]:
    """All documents: file name -> text."""
    return {REGISTER_PAGE: register_page(), PACKET_PAGE: packet_page()}
