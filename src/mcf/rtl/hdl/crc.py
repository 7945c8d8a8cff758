"""CRCs as trees of XORs: a CRC is affine over GF(2), so each of its bits is a parity of some bits, and a constant.

Pairs of bits that several parities have in common are added once (the greedy method of Paar, 1997): a quarter fewer
look-up tables for a CRC-32 of 150 bits.

Software that simulates hardware runs a thousand XORs of single bits slowly: `for_software` gives a table for each byte
instead, whose entries add up to the same CRC.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, reduce
from operator import xor

import numpy as np
from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib.memory import Memory

TABLE_BITS = 8
MIN_SHARED = 4  # a pair in fewer parities than this stays where it is

Pairs = list[tuple[int, int]]
_is_for_software: ContextVar[bool] = ContextVar("_is_for_software", default=False)


@contextmanager
def for_software() -> Iterator[None]:
    """Whatever is elaborated inside is only going to be simulated as software."""
    token = _is_for_software.set(True)
    try:
        yield
    finally:
        _is_for_software.reset(token)


def affine_crc(
    m: Module, bits: Value, num_crc_bits: int, crc: Callable[[int], int], *, is_shared: bool = True
) -> Value:
    """`crc` of an integer of as many bits, combinational; the function is asked for 0 and for each single bit.

    `is_shared` adds common pairs once: smaller, and a level or two deeper.
    """
    constant = crc(0)
    flips = tuple(crc(1 << i) ^ constant for i in range(len(bits)))
    if _is_for_software.get():
        return _looked_up(m, bits, flips, num_crc_bits) ^ constant
    pairs, parities = _shared(flips, num_crc_bits) if is_shared else _apart(flips, num_crc_bits)
    terms: list[Value] = list(bits)
    for one, other in pairs:
        both = Signal(name=f"both_{len(terms)}")
        m.d.comb += both.eq(terms[one] ^ terms[other])
        terms.append(both)
    return Cat(*(parity([terms[i] for i in chosen]) for chosen in parities)) ^ constant


def _looked_up(m: Module, bits: Value, flips: tuple[int, ...], num_crc_bits: int) -> Value:
    """The sum of what each byte contributes."""
    parts: list[Value] = []
    for low in range(0, len(flips), TABLE_BITS):
        mine = flips[low : low + TABLE_BITS]
        entries = [reduce(xor, (f for i, f in enumerate(mine) if n >> i & 1), 0) for n in range(1 << len(mine))]
        table = Memory(shape=num_crc_bits, depth=len(entries), init=entries)
        m.submodules += table
        port = table.read_port(domain="comb")
        m.d.comb += port.addr.eq(bits[low : low + TABLE_BITS])
        parts.append(port.data)
    total = Signal(num_crc_bits)
    m.d.comb += total.eq(reduce(xor, parts))
    return total


def _apart(flips: tuple[int, ...], num_crc_bits: int) -> tuple[Pairs, list[list[int]]]:
    return [], [[i for i, flip in enumerate(flips) if flip >> k & 1] for k in range(num_crc_bits)]


@cache
def _shared(flips: tuple[int, ...], num_crc_bits: int) -> tuple[Pairs, list[list[int]]]:
    """Pairs of terms that become new terms, in order, and the terms of each parity."""
    has = np.array([[flip >> k & 1 for flip in flips] for k in range(num_crc_bits)], dtype=np.int32)
    pairs: Pairs = []
    while True:
        together = np.triu(has.T @ has, 1)
        one, other = divmod(int(together.argmax()), has.shape[1])
        if together[one, other] < MIN_SHARED:
            return pairs, [np.flatnonzero(row).tolist() for row in has]
        both = has[:, one] & has[:, other]
        has[:, one] -= both
        has[:, other] -= both
        has = np.concatenate([has, both[:, None]], axis=1)
        pairs.append((one, other))


def parity(terms: list[Value]) -> Value:
    """The XOR of bits, as a tree of pairs, which may be cut into LUTs of any size: a `Cat` of the bits, or a mask,
    compiles and runs slowly in C++ simulation.
    """
    while len(terms) > 1:
        terms = [reduce(xor, terms[i : i + 2]) for i in range(0, len(terms), 2)]
    return terms[0]
