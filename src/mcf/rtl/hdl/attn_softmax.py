"""The softmax of the attention unit, one score per cycle: three passes over a tile, on three tiles at once.

The array that makes the rows drains one per cycle, so more lanes would wait. Each pass takes 128 cycles and a few; a
tile costs the array 256, for keys and for values. Golden model: `scores_of` and `soften` of golden.attention.
"""

from amaranth.hdl import Module, signed
from amaranth.lib import stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from mcf.rtl.golden.attention import ROWS, SCORE_BITS
from mcf.rtl.hdl.attn_activate import AttnActivate
from mcf.rtl.hdl.attn_score import AttnScore
from mcf.rtl.hdl.attn_tile import PAGES, PRODUCT_BITS, ActivationStream, RowStream, ScaleStream, Tile, TileCommand
from mcf.rtl.hdl.attn_weigh import AttnWeigh


class AttnSoftmax(Component):
    """Scores of a tile and one query head -> activations for its values.

    For each of `commands` with tokens: 128 `scores` (rows of K, in order) and 128 `vscales` come, 128 `activations`
    leave, whatever the number of tokens; those beyond it do not count. `tiles`: what the accumulators have to know,
    also of a command without tokens.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "commands": In(stream.Signature(TileCommand)),
                "scores": In(RowStream),
                "vscales": In(ScaleStream),
                "activations": Out(ActivationStream),
                "tiles": Out(stream.Signature(Tile)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Three passes and the two memories between them."""
        m = Module()
        m.submodules.score, m.submodules.weigh, m.submodules.activate = score, weigh, activate = (
            AttnScore(),
            AttnWeigh(),
            AttnActivate(),
        )
        for inner, outer in (
            (score.commands, self.commands),
            (score.rows, self.scores),
            (weigh.scales, self.vscales),
            (weigh.tiles, self.tiles),
            (activate.activations, self.activations),
        ):
            connect(m, inner, flipped(outer))
        connect(m, score.scored, weigh.scored)
        connect(m, weigh.weighed, activate.weighed)
        m.submodules.scores = scores = Memory(shape=signed(SCORE_BITS), depth=PAGES * ROWS, init=[])
        m.submodules.products = products = Memory(shape=PRODUCT_BITS, depth=PAGES * ROWS, init=[])
        write, read = scores.write_port(), scores.read_port()
        m.d.comb += [
            *(write.en.eq(score.write), write.addr.eq(score.address), write.data.eq(score.data)),
            *(read.en.eq(weigh.read), read.addr.eq(weigh.read_address), weigh.score.eq(read.data)),
            *(score.release.eq(weigh.released), weigh.release.eq(activate.released)),
        ]
        write, read = products.write_port(), products.read_port()
        m.d.comb += [
            *(write.en.eq(weigh.write), write.addr.eq(weigh.address), write.data.eq(weigh.data)),
            *(read.en.eq(activate.read), read.addr.eq(activate.address), activate.product.eq(read.data)),
        ]
        return m
