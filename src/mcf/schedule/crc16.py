"""CRC-16/IBM-3740 (CCITT-FALSE): polynomial x^16 + x^12 + x^5 + 1 (0x1021), start 0xFFFF, not reflected, no xor."""

import binascii

import numpy as np
from numpy.typing import NDArray

START = 0xFFFF

_TABLE = np.array([binascii.crc_hqx(bytes([byte]), 0) for byte in range(256)], dtype=np.uint16)


def crc16(data: bytes) -> int:
    """The CRC of some bytes.

    >>> hex(crc16(b"123456789")), hex(crc16(b"")), hex(crc16(b"A"))
    ('0x29b1', '0xffff', '0xb915')
    """
    return binascii.crc_hqx(data, START)


def crc16_many(rows: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """[n] CRCs of [n, k] bytes."""
    crc = np.full(len(rows), START, dtype=np.uint16)
    for column in rows.T:
        crc = (crc << np.uint16(8)) ^ _TABLE[(crc >> np.uint16(8)) ^ column]
    return crc
