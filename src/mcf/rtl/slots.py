"""The reduction slots of one node of a run: armed for each layer of a token, and what comes out of them."""

from collections import defaultdict, deque
from typing import TYPE_CHECKING

import numpy as np

from mcf.attn import PartialState, merge
from mcf.rtl.board import Packet
from mcf.rtl.golden.state import BlockState, from_beats, num_payload_beats
from mcf.rtl.headers import result_header
from mcf.rtl.registers import NUM_SLOTS
from mcf.schedule.steps import RECV
from mcf.schedule.wire import pack

if TYPE_CHECKING:
    from mcf.rtl.run import Run


class Slots:
    """A slot for each query head of a tick; `merge` is the row that they do for this node, None where there is none."""

    def __init__(self, run: "Run", number: int) -> None:
        self.run, self.number, self.low = run, number, run.low
        self.merge = run.low.merges.get(number)
        self.armed: set[int] = set()
        self.tags: dict[tuple[int, int], deque[int]] = defaultdict(deque)  # (tag, layer) of results -> their ticks
        self.results: dict[int, dict[int, BlockState]] = defaultdict(dict)

    def does(self, row: int) -> bool:
        """Say whether a merge is done by these slots."""
        return self.merge is not None and self.merge.row == row

    def takes(self, row: int) -> bool:
        """Say whether the states of a row are merged by these slots."""
        return self.merge is not None and row in self.merge.inputs

    def blocked(self, tick: int) -> str:
        """What arming for a tick waits for; "" for nothing."""
        if self.merge is None or tick in self.armed:
            return ""
        heads = range(self.low.slots_per_tick)
        wanted = sum(1 << self.low.slot(tick, head) % NUM_SLOTS for head in heads)
        old = tick - NUM_SLOTS // self.low.slots_per_tick
        is_old_done = old < 0 or bool(self.run.progress.ended[self.merge.row][old])
        return "" if is_old_done and not self.run.board.armed(self.number) & wanted else "reduction slots"

    def arm(self, tick: int) -> None:
        """Arm the slots of one layer of a token, once."""
        if tick in self.armed:
            return
        self.armed.add(tick)
        num_children = len(self.low.merges[self.number].inputs)
        setups = []
        for head in range(self.low.slots_per_tick):
            header = result_header(self.low, self.number, tick=tick, q_head=head)
            self.tags[header["tag"], header["layer"]].append(tick)
            setups.append(pack(header) | self.low.slot(tick, head) << 128 | num_children << 136)
        self.run.board.arm(self.number, setups)

    def is_complete(self, tick: int) -> bool:
        """Say whether all heads' results of a tick have come."""
        return len(self.results[tick]) == self.low.slots_per_tick

    def take(self, tick: int) -> PartialState:
        """The merged state of a tick, over all query heads."""
        parts = self.results.pop(tick)
        states = [self.run.nodes[self.number].compute.merged(tick, head, parts[head]) for head in sorted(parts)]
        return merge(states)

    def receive(self, header: dict[str, int], packet: Packet) -> None:
        """Take in the result of one query head; with the last one the states that were merged have arrived."""
        beats = packet.beats
        head_dim = self.low.sched.meta.head_dim
        assert len(beats) >= num_payload_beats(head_dim)
        tick = self.tags[header["tag"], header["layer"]].popleft()
        block = from_beats(beats, head_dim)[0]
        self.run.merge_check.check(self.number, tick, header["block"], block)
        self.results[tick][header["block"]] = row_of(block)
        if self.is_complete(tick):
            for row in self.low.merges[self.number].inputs:
                if self.run.program.rows[row].kind == RECV:
                    self.run.delivered(row, tick, packet.cycle)


def row_of(block: BlockState) -> BlockState:
    """One state as that of one row with one head."""
    exponent, sum_, count = (np.reshape(x, (1, 1)) for x in (block.exponent, block.sum_, block.count))
    return BlockState(exponent=exponent, sum_=sum_, count=count, out=np.reshape(block.out, (1, 1, -1)))


__all__ = ["Slots"]
