"""CRCs as trees of XORs: a CRC is affine over GF(2), so each of its bits is a parity of some bits, and a constant.

Pairs of bits that several parities have in common are added once (the greedy method of Paar, 1997): a quarter fewer
look-up tables for a CRC-32 of 150 bits.
"""

from collections.abc import Callable
from functools import cache, reduce
from operator import xor

import numpy as np
from amaranth.hdl import Cat, Module, Signal, Value

LUT_INPUTS = 6
MIN_SHARED = 4  # a pair in fewer parities than this stays where it is

Pairs = list[tuple[int, int]]


def affine_crc(m: Module, bits: Value, num_crc_bits: int, crc: Callable[[int], int]) -> Value:
    """`crc` of an integer of as many bits, combinational; the function is asked for 0 and for each single bit."""
    constant = crc(0)
    flips = tuple(crc(1 << i) ^ constant for i in range(len(bits)))
    pairs, parities = _shared(flips, num_crc_bits)
    terms: list[Value] = list(bits)
    for one, other in pairs:
        both = Signal(name=f"both_{len(terms)}")
        m.d.comb += both.eq(terms[one] ^ terms[other])
        terms.append(both)
    return Cat(*(parity([terms[i] for i in chosen]) for chosen in parities)) ^ constant


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
    """The XOR of bits, as a tree: a `Cat` of them, or a mask, compiles and runs slowly in C++ simulation."""
    while len(terms) > 1:
        terms = [reduce(xor, terms[i : i + LUT_INPUTS]) for i in range(0, len(terms), LUT_INPUTS)]
    return terms[0]
