"""The attention unit: softmax, accumulators and state records, joined. The array in between is the caller's."""

from amaranth.hdl import Module
from amaranth.lib import stream
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from mcf.rtl.hdl.attn_acc import AttnAcc
from mcf.rtl.hdl.attn_softmax import AttnSoftmax
from mcf.rtl.hdl.attn_tile import ActivationStream, PartialStream, RowStream, ScaleStream, TileCommand
from mcf.rtl.hdl.beat import BeatStream
from mcf.rtl.hdl.queue import Queue
from mcf.rtl.hdl.state_pack import StatePack

COMMANDS = 4  # that wait, so that keys are multiplied before the softmax is free


class Attention(Component):
    """For each of `commands` with tokens: `scores` of its K tile and `vscales` come, `activations` go to the array, and
    its `partials` come back, 128 of each. A command that says `finish` ends with a record of 17 beats on `states`.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "commands": In(stream.Signature(TileCommand)),
                "scores": In(RowStream),
                "vscales": In(ScaleStream),
                "activations": Out(ActivationStream),
                "partials": In(PartialStream),
                "states": Out(BeatStream),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Streams alone."""
        m = Module()
        m.submodules.softmax, m.submodules.acc, m.submodules.pack = softmax, acc, pack = (
            AttnSoftmax(),
            AttnAcc(),
            StatePack(),
        )
        m.submodules.queue = queue = Queue(TileCommand, depth=COMMANDS)
        connect(m, flipped(self.commands), queue.input)
        connect(m, queue.output, softmax.commands)
        for name in ("scores", "vscales", "activations"):
            connect(m, getattr(softmax, name), flipped(getattr(self, name)))
        connect(m, acc.partials, flipped(self.partials))
        connect(m, pack.states, flipped(self.states))
        connect(m, softmax.tiles, acc.tiles)
        connect(m, acc.sums, pack.sums)
        connect(m, acc.rows, pack.rows)
        return m
