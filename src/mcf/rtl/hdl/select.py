"""Choosing one of several words, in as few LUTs as the words allow."""

from collections.abc import Sequence

from amaranth.hdl import Cat, Module, Mux, Signal, Value


def pick(m: Module, chosen: Sequence[Value], words: Sequence[Value]) -> Value:
    """The word whose signal in `chosen` is 1; any word where none is. At most one of them may be 1.

    A number is decoded first: four words then take one LUT of six inputs per bit, not two.
    """
    bits = (len(words) - 1).bit_length()
    number = Signal(bits)
    m.d.comb += number.eq(Cat(Cat(chosen[i] for i in range(len(words)) if i >> bit & 1).any() for bit in range(bits)))
    return tree(list(number), words)


def tree(number: Sequence[Value], words: Sequence[Value]) -> Value:
    """The word of this number, least significant bit first; any word where there are not so many."""
    if len(words) == 1:
        return words[0]
    half = 1 << (len(number) - 1)
    if len(words) <= half:
        return tree(number[:-1], words)
    return Mux(number[-1], tree(number[:-1], words[half:]), tree(number[:-1], words[:half]))
