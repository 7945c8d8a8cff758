"""What a node of a run receives: posted receives, credits for them, packets and the messages that they make."""

from collections import defaultdict, deque
from typing import TYPE_CHECKING, NamedTuple

from mcf.errors import RunError
from mcf.rtl.board import Packet
from mcf.rtl.descriptor import pack_descriptor
from mcf.rtl.headers import header_of
from mcf.rtl.kv_ops import KvOp
from mcf.rtl.lower import Message
from mcf.schedule.packets import BEAT_BYTES, SEGMENT_BEATS
from mcf.schedule.program import Instance
from mcf.schedule.steps import KEEP, KV, Step
from mcf.schedule.wire import Op, Stage, unpack

if TYPE_CHECKING:
    from mcf.rtl.node import Node

_POSITION_BITS = 14  # of a row's place in its list, in `block`; 5 more in `head`, 1 in `is_v`
_KEY = ("src", "op", "layer", "head", "is_v", "block", "tag")


class _Part(NamedTuple):
    """A packet that a posted receive waits for."""

    recv: int
    tick: int
    message: Message
    segment: int


class Receiving:
    """The receiving side of one node."""

    def __init__(self, node: "Node") -> None:
        self.node, self.run, self.program, self.low = node, node.run, node.program, node.low
        self.number = node.number
        self.expected: dict[tuple[int, ...], deque[_Part]] = defaultdict(deque)
        self.left: dict[tuple[int, int], int] = {}
        self.arrived: dict[tuple[int, int, Message], dict[int, bytes]] = defaultdict(dict)

    # --- posting ---

    def post(self, row: Step, inst: Instance) -> None:
        """Post a receive; the credit for it goes to the sender."""
        tick = inst.it + row.ahead
        if row.payload == KV:
            self._post_kv(row, inst, tick)
        if row.ref not in self.low.messages:
            self.node.slots.arm(tick)
        else:
            self._expect(inst.row, row, tick)
        self.run.board.post(self.number, [self._credit(row, tick)])

    def _post_kv(self, row: Step, inst: Instance, tick: int) -> None:
        node, cells, layers = self.node, self.program.cells[inst.row], self.low.sched.meta.num_layers
        if self.program.is_loop_slot(inst.row) and inst.it > 0:
            node.release(inst.row, inst.it - 1)
        if row.hold == KEEP and tick % layers == 0:
            node.directory.ask(KvOp.RECV, cells, position=self.program.place(inst.row))
            node.kept |= set(cells)

    def _expect(self, recv: int, row: Step, tick: int) -> None:
        layer, count = self.program.layer(tick), 0
        for message in self.low.messages[row.ref]:
            header = header_of(self.low, row.ref, message, layer=layer, to=[self.number])
            for segment in range(-(-message.num_beats // SEGMENT_BEATS)):
                key = tuple(int(header.get(name, 0)) for name in _KEY[:-1]) + (segment,)
                self.expected[key].append(_Part(recv, tick, message, segment))
                count += 1
        self.left[recv, tick] = count

    def _credit(self, row: Step, tick: int) -> int:
        """A header to the sender: the row that may now send, by its place in the sender's list."""
        place = self.program.place(row.ref)
        header = {
            "stage": Stage.CONTROL,
            "op": Op.CREDIT,
            "src": self.number,
            "dst_node": row.dst,
            "dst_root": self.number,
            "route_id": self.low.embedding.of_pair[self.number, row.dst],
            "block": place % (1 << _POSITION_BITS),
            "head": place >> _POSITION_BITS & 31,
            "is_v": place >> _POSITION_BITS + 5,
            "layer": self.program.layer(tick),
            "len": 0,
        }
        return pack_descriptor(header)

    # --- packets ---

    def take(self, packet: Packet) -> None:
        """Take in a packet of the network half."""
        header = unpack(packet.header)
        if header["op"] == Op.CREDIT:
            place = header["block"] | header["head"] << _POSITION_BITS | header["is_v"] << _POSITION_BITS + 5
            self.run.credits[self.low.sched.node_rows(self.number).start + place][header["src"]] += 1
        elif header["op"] == Op.REDUCE_RESULT:
            self.node.slots.receive(header, packet)
        elif header["src"] == self.number:
            self.node.compute.receive(header, packet)
        else:
            self._part(header, packet)

    def _part(self, header: dict[str, int], packet: Packet) -> None:
        key = tuple(header[name] for name in _KEY)
        if not self.expected[key]:
            raise RunError(f"node {self.number} received a packet that it had not asked for: {header}")
        part = self.expected[key].popleft()
        mine = self.arrived[part.recv, part.tick, part.message]
        mine[part.segment] = packet.payload
        if sum(map(len, mine.values())) == part.message.num_beats * BEAT_BYTES:
            data = b"".join(mine[segment] for segment in sorted(mine))
            self.node.compute.arrive(part.recv, part.message, part.tick, data[: part.message.num_bytes])
            del self.arrived[part.recv, part.tick, part.message]
        self.left[part.recv, part.tick] -= 1
        if not self.left[part.recv, part.tick]:
            self._received(part.recv, part.tick, packet.cycle)

    def _received(self, recv: int, tick: int, cycle: int) -> None:
        row, cells = self.program.rows[recv], self.program.cells[recv]
        node, layer, place = self.node, self.program.layer(tick), self.program.place(recv)
        if row.payload == KV:
            node.compute.held |= {(cell, layer) for cell in cells}
            if row.hold != KEEP:
                node.directory.ask(KvOp.STREAM, cells, position=place, layer=layer)
            elif layer == 0:
                node.directory.ask(KvOp.ARRIVE, cells, position=place)
        self.run.delivered(recv, tick, cycle)


__all__ = ["Receiving"]
