"""The third pass of the attention unit over a tile: products become the activations that weigh V."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import stream
from amaranth.lib.wiring import Component, In, Out

from mcf.rtl.golden.attention import ACTIVATION_BITS, ROWS
from mcf.rtl.hdl.attn_tile import (
    INDEX_BITS,
    PRODUCT_BITS,
    SHIFT_BITS,
    ActivationStream,
    Weighed,
    shifted,
    with_carry,
)


class AttnActivate(Component):
    """Reads a page of products and gives 128 `activations`, 0 for tokens that do not count.

    `read` and `address` ask the memory of products, which answers a cycle later on `product` and keeps its answer until
    asked again; `released` frees the page.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "weighed": In(stream.Signature(Weighed)),
                "read": Out(1),
                "address": Out(INDEX_BITS + 1),
                "product": In(PRODUCT_BITS),
                "released": Out(1),
                "activations": Out(ActivationStream),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Three stages behind the index, which all move when the last one is empty or taken."""
        m = Module()
        tile, busy, index, move = Signal(Weighed), Signal(), Signal(INDEX_BITS), Signal()
        counts, valids = Signal(2), Signal(2)
        m.d.comb += [
            *(self.weighed.ready.eq(~busy), self.read.eq(move), self.address.eq(Cat(index, tile.page))),
            move.eq(busy & (~self.activations.valid | self.activations.ready)),
        ]
        is_last = Signal()
        with m.If(~busy & self.weighed.valid):
            m.d.sync += [busy.eq(1), tile.eq(self.weighed.payload), index.eq(0), is_last.eq(0), valids.eq(0)]
        with m.If(self.activations.ready):
            m.d.sync += self.activations.valid.eq(0)
        coarse, fine = Signal(signed(PRODUCT_BITS + 2)), Signal(signed(PRODUCT_BITS + 2))
        product = with_carry(Cat(self.product, Const(0, 1)))
        m.d.comb += fine.eq(shifted(m, coarse, tile.shift[:3], 1))
        with m.If(move):
            m.d.sync += [
                *(index.eq(index + 1), is_last.eq(is_last | (index == ROWS - 1))),
                *(valids.eq(Cat(~is_last, valids)), counts.eq(Cat(index < tile.tokens, counts))),
                coarse.eq(shifted(m, product, tile.shift[3:], 8)),
                self.activations.valid.eq(valids[-1]),
                self.activations.payload.eq(Mux(counts[-1], self._clipped(m, fine), 0)),
            ]
            with m.If(is_last & (valids == 0)):
                m.d.sync += busy.eq(0)
        m.d.comb += self.released.eq(move & is_last & (valids == 0))
        return m

    def _clipped(self, m: Module, value: Signal) -> Value:
        """Round a number that is not negative; what has more bits, or gets one more, becomes the largest."""
        total, is_over = Signal(ACTIVATION_BITS), Signal()
        m.d.comb += [
            total.eq(value[1 : ACTIVATION_BITS + 1] + value[0]),
            is_over.eq(value[ACTIVATION_BITS + 1 :].any() | value[: ACTIVATION_BITS + 1].all()),
        ]
        return total | is_over.replicate(ACTIVATION_BITS)


assert SHIFT_BITS == 5, "shifted by eights and by ones"
