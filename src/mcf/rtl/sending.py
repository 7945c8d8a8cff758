"""What a node of a run sends: messages and states as descriptors, once their receivers have posted."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mcf.rtl.descriptor import pack_descriptor
from mcf.rtl.headers import descriptors, header_of, state_header
from mcf.rtl.kv_ops import KvOp
from mcf.rtl.merges import RECORD_BEATS
from mcf.schedule.program import Instance
from mcf.schedule.steps import KV, STATE, Step

if TYPE_CHECKING:
    from mcf.rtl.node import Node

Cell = tuple[int, int, int]


class Sending:
    """The sending side of one node; `reading` are the kept copies that sends under way read."""

    def __init__(self, node: "Node") -> None:
        self.node, self.run, self.program, self.low = node, node.run, node.program, node.low
        self.number = node.number
        self.reading: dict[tuple[int, int], list[Cell]] = {}

    def start(self, row: Step, inst: Instance) -> None:
        """A send starts; it leaves when receivers have posted."""
        tick = inst.it + row.ahead
        if row.payload == KV:
            self._read(inst.row, tick)
        self.run.depart(inst.row, tick)

    def _read(self, row: int, tick: int) -> None:
        """A send reads copies that are kept; those in layer slots have no other reader."""
        node = self.node
        self.reading[row, tick] = [cell for cell in self.program.cells[row] if cell in node.kept]
        node.directory.ask(KvOp.READ, self.reading[row, tick], position=self.program.place(row))

    def done(self, row: int, tick: int) -> None:
        """A send has reached all its receivers."""
        read = self.reading.pop((row, tick), [])
        self.node.directory.ask(KvOp.DONE, read, position=self.program.place(row))

    def launch(self, row: int, tick: int, to: Sequence[int]) -> None:
        """These receivers have posted: the payload goes to the network half, as descriptors."""
        step, layer = self.program.rows[row], self.program.layer(tick)
        source = self._source(row, tick) if step.payload == STATE else -1
        if row not in self.low.messages:
            self.send_state(row, tick, source, to)
            return
        messages = self.low.messages[row]
        addresses = self.node.compute.put(step, messages, tick, source)
        headers = [header_of(self.low, row, message, layer=layer, to=to) for message in messages]
        self.run.board.post(self.number, descriptors(headers, [message.num_beats for message in messages], addresses))

    def _source(self, row: int, tick: int) -> int:
        """The row whose state a send takes."""
        found: int = next(target for target in self.program.after[row] if self.node.compute.has_state(target, tick))
        return found

    def send_state(self, row: int, tick: int, source: int, to: Sequence[int]) -> None:
        """One packet for each query head: to the reduction units of the receivers; of nobody, to the node's own."""
        compute, child = self.node.compute, self.low.child[row]
        addresses = compute.put_state(source, tick, child)
        headers = [state_header(self.low, row, tick=tick, q_head=head, to=to) for head in range(len(addresses))]
        words = [
            pack_descriptor(header, address=address, beats=RECORD_BEATS)
            for header, address in zip(headers, addresses, strict=True)
        ]
        self.run.board.post(self.number, words)
        compute.make_state(source, tick, child)


__all__ = ["Sending"]
