"""One node of a run: its lanes, what each row must find there and does, what its network half sends and receives."""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mcf.attn import PartialState, finish, merge
from mcf.errors import RunError
from mcf.rtl.board import Packet
from mcf.rtl.compute import Compute
from mcf.rtl.descriptor import pack_descriptor
from mcf.rtl.directory import Directory
from mcf.rtl.golden.state import BlockState, decode, encode, from_beats, num_payload_beats, to_beats
from mcf.rtl.kv_ops import KvOp
from mcf.rtl.lower import OUT_BEATS, Message, descriptors, header_of, result_header, state_header
from mcf.rtl.registers import NUM_SLOTS
from mcf.schedule.kv import ABSENT
from mcf.schedule.packets import BEAT_BYTES, SEGMENT_BEATS
from mcf.schedule.program import Instance, MemoryEvent
from mcf.schedule.progress import NodeProgress
from mcf.schedule.steps import (
    ALL,
    ATTEND,
    DECODE,
    DRAIN,
    FREE,
    KEEP,
    KV,
    MERGE,
    PRODUCE,
    QUERY,
    RECV,
    SEND,
    STATE,
    Step,
)
from mcf.schedule.wire import Op, Stage, pack, unpack

if TYPE_CHECKING:
    from mcf.rtl.run import Run

_POSITION_BITS = 14  # of a row's place in its list, in `block`; 5 more in `head`, 1 in `is_v`
_KEY = ("src", "op", "layer", "head", "is_v", "block", "tag")


class _Part(NamedTuple):
    """A packet that a posted receive waits for."""

    recv: int
    tick: int
    message: Message
    segment: int


class Node:
    """The rows of one node: `blocked` says what an instance waits for, `start` runs it."""

    def __init__(self, run: "Run", number: int) -> None:
        self.run, self.number, self.program, self.low = run, number, run.program, run.low
        self.compute = Compute(run.program, number)
        self.directory = Directory(run.board, run.low.sched, number, self._freed)
        self.progress = NodeProgress(run.progress, number)
        self.heads = [0, 0]
        self.expected: dict[tuple[int, ...], deque[_Part]] = defaultdict(deque)
        self.left: dict[tuple[int, int], int] = {}
        self.arrived: dict[tuple[int, int, Message], dict[int, bytes]] = defaultdict(dict)
        self.results: dict[int, dict[int, PartialState]] = defaultdict(dict)
        self.armed_ticks: set[int] = set()
        self.tags: dict[tuple[int, int], deque[int]] = defaultdict(deque)  # (tag, layer) of results -> their ticks
        self.kept: set[tuple[int, int, int]] = set()
        self.reading: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        self._waits: dict[int, Callable[[Step, Instance], str]] = {
            SEND: self._wait_send,
            RECV: self._wait_recv,
            ATTEND: self._wait_attend,
            MERGE: self._wait_merge,
            DRAIN: self._wait_retire,
            FREE: self._wait_retire,
        }
        self._deeds: dict[int, Callable[[Step, Instance], None]] = {
            PRODUCE: self._produce,
            SEND: self._send,
            RECV: self._recv,
            ATTEND: self._attend,
            MERGE: self._merge,
            DRAIN: self._drain,
            FREE: self._free,
        }

    # --- what a row waits for: "" when it can start ---

    def blocked(self, inst: Instance) -> str:
        """What the instance waits for."""
        row = self.program.rows[inst.row]
        return self.progress.blocked(inst) or (self._waits[row.kind](row, inst) if row.kind in self._waits else "")

    def start(self, inst: Instance) -> None:
        """Run an instance; sends, receives and frees end later."""
        row = self.program.rows[inst.row]
        self.run.num_started[inst.row] += 1
        self._deeds[row.kind](row, inst)
        if row.kind not in (SEND, RECV, FREE):
            self.run.end(inst.row, inst.it + row.ahead)

    def _wait_send(self, row: Step, inst: Instance) -> str:
        if row.payload == KV:
            return self._wait_blocks(inst, row)
        return self._wait_queries(inst, row) if row.payload == QUERY else ""

    def _wait_recv(self, row: Step, inst: Instance) -> str:
        if row.payload == STATE and row.stage == DECODE and self.number in self.low.merges:
            return self._wait_slots(inst.it)
        return ""

    def _wait_slots(self, tick: int) -> str:
        if tick in self.armed_ticks:
            return ""
        heads = range(self.low.slots_per_tick)
        wanted = sum(1 << self.low.slot(tick, head) % NUM_SLOTS for head in heads)
        before = NUM_SLOTS // self.low.slots_per_tick
        old = tick - before
        is_old_done = old < 0 or bool(self.run.progress.ended[self.low.merges[self.number].row][old])
        return "" if is_old_done and not self.run.board.armed(self.number) & wanted else "reduction slots"

    def _wait_attend(self, row: Step, inst: Instance) -> str:
        if row.stage == DECODE and self.number in self.low.merges and (reason := self._wait_slots(inst.it)):
            return reason
        return self._wait_queries(inst, row) or self._wait_blocks(inst, row)

    def _wait_queries(self, inst: Instance, row: Step) -> str:
        return "" if self.compute.has_queries(row, inst.it) else f"the queries of node {row.q}"

    def _wait_blocks(self, inst: Instance, row: Step) -> str:
        layer = self.program.layer(inst.it + row.ahead)
        return "" if self.compute.has_blocks(self.program.cells[inst.row], layer) else "blocks that it does not hold"

    def _wait_merge(self, row: Step, inst: Instance) -> str:
        is_units = self._is_unit_merge(inst.row)
        if not is_units or len(self.results[inst.it]) == self.low.slots_per_tick:
            return ""
        return "its merged states"

    def _wait_retire(self, row: Step, inst: Instance) -> str:
        """Readers under way hold the entries: the directory waits for them, we only for those not yet under way."""
        done = all(map(self.run.all_started, self.program.readers[inst.row]))
        if row.kind == DRAIN:
            done = done and all(map(self.run.progress.has_ended, self.program.bringers[inst.row]))
        return "" if done else "rows that bring or use its blocks"

    # --- what a row does ---

    def _produce(self, row: Step, inst: Instance) -> None:
        meta, layer = self.low.sched.meta, self.program.layer(inst.it)
        positions = self.program.positions(row.chunk, self.number, inst.it)
        q, k, v = self.run.tensors
        query = ALL if row.stage == DECODE else self.number
        self.compute.queries[row.chunk, query, inst.it] = q[layer, positions].copy()
        if row.stage == DECODE:
            if meta.generated_home(inst.it // meta.num_layers) == self.number:
                self.compute.keep(layer, positions, k[layer, positions], v[layer, positions])
            return
        self.compute.keep(layer, positions, k[layer, positions], v[layer, positions])
        cells = self.program.cells[inst.row]
        self.compute.held |= {(cell, layer) for cell in cells}
        if layer == 0:
            self.kept |= set(cells)
            self.directory.ask(KvOp.PRODUCE, cells, position=self.program.place(inst.row))

    def _attend(self, row: Step, inst: Instance) -> None:
        self.compute.states[inst.row, inst.it] = state = self.compute.attend(inst.row, inst.it)
        merge_of = self.low.merges.get(self.number)
        if merge_of is not None and inst.row in merge_of.inputs and row.stage == DECODE:
            self._arm(inst.it)
            self._send_state(inst.row, inst.it, state, ())

    def _merge(self, row: Step, inst: Instance) -> None:
        if self._is_unit_merge(inst.row):
            parts = self.results.pop(inst.it)
            state = merge([parts[head] for head in sorted(parts)])
        else:
            keys = [(target, inst.it) for target in self.program.after[inst.row]]
            state = merge([self.compute.states[key] for key in keys if key in self.compute.states])
        self.compute.states[inst.row, inst.it] = state
        if self.program.final_merge.get((self.number, row.chunk)) == inst.row:
            self.run.write_out(row, inst.it, finish(state))

    def _drain(self, row: Step, inst: Instance) -> None:
        self.directory.ask(KvOp.DRAIN, self.program.cells[inst.row], position=self.program.place(inst.row))

    def _free(self, row: Step, inst: Instance) -> None:
        cells = self.program.cells[inst.row]
        self.directory.ask(KvOp.FREE, cells, position=self.program.place(inst.row), row=inst.row)
        if not cells:
            self.run.end(inst.row, 0)

    def _freed(self, row: int) -> None:
        cells = self.program.cells[row]
        self.kept -= set(cells)
        self.compute.forget(cells, range(self.low.sched.meta.num_layers))
        self.directory.changes += [(self.program.place(row), *cell, ABSENT) for cell in cells]
        self.run.end(row, 0)

    # --- sending ---

    def _send(self, row: Step, inst: Instance) -> None:
        if row.payload == KV:
            self._reading(inst.row, inst.it + row.ahead)
        self.run.depart(inst.row, inst.it + row.ahead)

    def _reading(self, row: int, tick: int) -> None:
        """A send reads copies that are kept; those in layer slots have no other reader."""
        self.reading[row, tick] = [cell for cell in self.program.cells[row] if cell in self.kept]
        self.directory.ask(KvOp.READ, self.reading[row, tick], position=self.program.place(row))

    def sent(self, row: int, tick: int) -> None:
        """A send has reached all its receivers."""
        self.directory.ask(KvOp.DONE, self.reading.pop((row, tick), []), position=self.program.place(row))

    def launch(self, row: int, tick: int, to: Sequence[int]) -> None:
        """These receivers have posted: the payload goes to the network half, as descriptors."""
        step, board = self.program.rows[row], self.run.board
        state = self._source(row, tick) if step.payload == STATE else None
        if row not in self.low.messages:
            assert state is not None
            self._send_state(row, tick, state, to)
            return
        messages = self.low.messages[row]
        layer = self.program.layer(tick)
        parts = [self.compute.payload(step, message, tick, state) for message in messages]
        padded = [part + bytes(-len(part) % BEAT_BYTES) for part in parts]
        address = board.store(self.number, b"".join(padded))
        headers = [header_of(self.low, row, message, layer=layer, to=to) for message in messages]
        board.post(self.number, descriptors(headers, [message.num_beats for message in messages], address))

    def _source(self, row: int, tick: int) -> PartialState:
        states = self.compute.states
        return states[next((t, tick) for t in self.program.after[row] if (t, tick) in states)]

    def _send_state(self, row: int, tick: int, state: PartialState, to: Sequence[int]) -> None:
        """One packet for each query head: to the reduction units of the receivers; of nobody, to the node's own."""
        blocks = encode(state, self.run.v_scale)
        for head in range(self.low.slots_per_tick):
            beats = to_beats(_one(blocks, head), self.low.child[row], OUT_BEATS)
            address = self.run.board.store(self.number, b"".join(beat.to_bytes(BEAT_BYTES, "little") for beat in beats))
            header = state_header(self.low, row, tick=tick, q_head=head, to=to)
            self.run.board.post(self.number, [pack_descriptor(header, address=address, beats=len(beats))])

    # --- receiving ---

    def _recv(self, row: Step, inst: Instance) -> None:
        tick = inst.it + row.ahead
        if row.payload == KV:
            self._post_kv(row, inst, tick)
        if row.ref not in self.low.messages:
            self._arm(tick)
        else:
            self._expect(inst.row, row, tick)
        self.run.board.post(self.number, [self._credit(row, tick)])

    def _post_kv(self, row: Step, inst: Instance, tick: int) -> None:
        cells, layers = self.program.cells[inst.row], self.low.sched.meta.num_layers
        if self.program.is_loop_slot(inst.row) and inst.it > 0:
            self.release(inst.row, inst.it - 1)
        if row.hold == KEEP and tick % layers == 0:
            self.directory.ask(KvOp.RECV, cells, position=self.program.place(inst.row))
            self.kept |= set(cells)

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

    def _arm(self, tick: int) -> None:
        """Arm the reduction slots of one layer of a token, once."""
        if tick in self.armed_ticks:
            return
        self.armed_ticks.add(tick)
        num_children = len(self.low.merges[self.number].inputs)
        setups = []
        for head in range(self.low.slots_per_tick):
            header = result_header(self.low, self.number, tick=tick, q_head=head)
            self.tags[header["tag"], header["layer"]].append(tick)
            setups.append(pack(header) | self.low.slot(tick, head) << 128 | num_children << 136)
        self.run.board.arm(self.number, setups)

    def receive(self, packet: Packet) -> None:
        """Take in a packet of the network half."""
        header = unpack(packet.header)
        if header["op"] == Op.CREDIT:
            place = header["block"] | header["head"] << _POSITION_BITS | header["is_v"] << _POSITION_BITS + 5
            self.run.credits[self.low.sched.node_rows(self.number).start + place][header["src"]] += 1
        elif header["op"] == Op.REDUCE_RESULT:
            self._result(header, packet)
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
            self.compute.arrive(part.recv, part.message, part.tick, data[: part.message.num_bytes])
            del self.arrived[part.recv, part.tick, part.message]
        self.left[part.recv, part.tick] -= 1
        if not self.left[part.recv, part.tick]:
            self._received(part.recv, part.tick, packet.cycle)

    def _received(self, recv: int, tick: int, cycle: int) -> None:
        row, cells = self.program.rows[recv], self.program.cells[recv]
        layer = self.program.layer(tick)
        if row.payload == KV:
            self.compute.held |= {(cell, layer) for cell in cells}
            if row.hold != KEEP:
                self.directory.ask(KvOp.STREAM, cells, position=self.program.place(recv), layer=layer)
            elif layer == 0:
                self.directory.ask(KvOp.ARRIVE, cells, position=self.program.place(recv))
        self.run.delivered(recv, tick, cycle)

    def _result(self, header: dict[str, int], packet: Packet) -> None:
        beats = [int.from_bytes(packet.payload[i : i + 16], "little") for i in range(0, len(packet.payload), 16)]
        meta, head = self.low.sched.meta, header["block"]
        assert len(beats) >= num_payload_beats(meta.head_dim)
        block, _ = from_beats(beats, meta.head_dim)
        tick = self.tags[header["tag"], header["layer"]].popleft()
        self.results[tick][head] = self.compute.pad(decode(_row(block), self.run.v_scale), slice(head, head + 1))
        if len(self.results[tick]) == self.low.slots_per_tick:
            for row in self.low.merges[self.number].inputs:
                if self.program.rows[row].kind == RECV:
                    self.run.delivered(row, tick, packet.cycle)

    def _is_unit_merge(self, row: int) -> bool:
        merge_of = self.low.merges.get(self.number)
        return merge_of is not None and merge_of.row == row

    # --- turns ---

    def run_lane(self, lane: int) -> int:
        """Start rows of one lane in list order until one is blocked; returns how many started."""
        todo, done = self.program.nodes[self.number].lanes[lane], 0
        while self.heads[lane] < len(todo) and not self.blocked(todo[self.heads[lane]]):
            self.start(todo[self.heads[lane]])
            self.heads[lane] += 1
            done += 1
        return done

    def next_row(self, lane: int) -> Instance | None:
        """The instance at which a lane stands; None at its end."""
        todo = self.program.nodes[self.number].lanes[lane]
        return todo[self.heads[lane]] if self.heads[lane] < len(todo) else None

    def run_memory(self) -> int:
        """Take and give back memory in list order, across lanes, until something has to wait; returns how often."""
        done = 0
        while (event := self.progress.step()) is not None:
            self._move(event)
            done += 1
        return done

    def _move(self, event: MemoryEvent) -> None:
        self.compute.move(event)
        for tick in self.progress.ticks_left(event):
            self.release(event.row, tick)
        self.run.sample(self.number, self.compute.bytes, self.program.rows[event.row].chunk)

    # --- layer slots ---

    def release(self, recv: int, tick: int) -> None:
        """Give up one layer's copy of a stream receive."""
        layer, at = self.program.layer(tick), self.program.release_place(recv)
        self.directory.ask(KvOp.RELEASE, self.program.cells[recv], position=at, layer=layer)
        self.compute.forget(self.program.cells[recv], [layer])


def _one(blocks: BlockState, head: int) -> BlockState:
    exponent, sum_, out, count = (x[0, head] for x in (blocks.exponent, blocks.sum_, blocks.out, blocks.count))
    return BlockState(exponent=exponent, sum_=sum_, out=out, count=count)


def _row(block: BlockState) -> BlockState:
    """One state as that of one row with one head."""
    numbers = (np.reshape(x, (1, 1)) for x in (block.exponent, block.sum_, block.count))
    exponent, sum_, count = numbers
    return BlockState(exponent=exponent, sum_=sum_, count=count, out=np.reshape(block.out, (1, 1, -1)))


__all__ = ["Node"]
