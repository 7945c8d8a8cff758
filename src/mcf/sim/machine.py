"""The event loop: lanes start rows, links carry payloads, memory moves in list order. It decides nothing.

Events are (time, rank, instance): ties go first to what ends, then to what has passed a line, then to requests for a
link or a sender's port, then for a receiver's port; among requests to what the running layer needs before what is
fetched ahead; then to the lower instance, which is the order of rows (at a sender's port of the send, else of the
receive).
"""

from array import array
from heapq import heappop, heappush
from typing import NoReturn

from mcf.errors import RunError
from mcf.schedule.schedule import Schedule
from mcf.schedule.steps import COMPUTE, NIC, RECV, SEND
from mcf.sim.events import DONE, ENTER, MEMORY, PASSED, Event
from mcf.sim.network import Network
from mcf.sim.packets import PacketTransfers
from mcf.sim.program import Program
from mcf.sim.reduce import Reduction
from mcf.sim.transfers import Transfers

LEDGER = 2  # the third walker of a node, beside its lanes COMPUTE and NIC
WALKERS = 3


class Machine:
    """One run: `start` and `end` per instance, `samples` of memory, `transfers.hops`."""

    def __init__(
        self, sched: Schedule, network: Network, seconds: list[float], num_ticks: int, *, merges: bool = False
    ) -> None:
        self.program, self.ticks, self.seconds = Program(sched, num_ticks), num_ticks, seconds
        nodes, num = range(sched.meta.num_nodes), len(sched) * num_ticks
        self.conditions = self.program.conditions
        self.nan = float("nan")
        self.start, self.end = [self.nan] * num, [self.nan] * num
        self.ended, self.granted = bytearray(num), bytearray(num)
        self.left = list(self.program.num_runs)
        self.heap: list[Event] = []
        self.network = network
        reduction = Reduction(sched, num_ticks, has_ports=network.has_ports) if merges else None
        self.transfers = self._transfers(reduction)
        self.hands_over = isinstance(self.transfers, PacketTransfers)
        self.lanes = [[self.program.lane(n, lane) for lane in (COMPUTE, NIC)] for n in nodes]
        self.heads = [[0, 0] for _ in nodes]
        self.busy = [False for _ in nodes]
        self.memory = [self.program.memory(n) for n in nodes]
        self.next_memory = [0 for _ in nodes]
        self.samples = array("d")  # time, node, row, 1 for memory that is taken or -1 for given back; and the next
        self.waiting: dict[int, list[int]] = {}  # what has to happen -> walkers that then look again
        self.awake: list[int] = [WALKERS * n + walker for n in nodes for walker in (COMPUTE, NIC, LEDGER)]

    def _transfers(self, reduction: Reduction | None) -> Transfers | PacketTransfers:
        if self.network.profile.port_bytes_s is None:
            return Transfers(self.program, self.network, self.heap, reduction)
        return PacketTransfers(self.program, self.network, self.heap)

    def run(self) -> None:
        """Run to the end. Raises RunError when nobody can go on: `verify` refuses such schedules."""
        heap, transfers, awake = self.heap, self.transfers, self.awake
        self._settle(0.0)
        while heap:
            now, rank, inst = heappop(heap)
            if rank == DONE:
                self._finish(inst, now)
                if awake:
                    self._settle(now)
            elif rank == MEMORY:
                self._run_memory(inst, now)
                self._settle(now)
            elif rank >= ENTER:
                transfers.enter(inst, now)
            elif rank == PASSED:
                transfers.passed(inst, now)
            else:
                transfers.leave(inst, now)
        for lanes, heads in zip(self.lanes, self.heads, strict=True):
            for lane, head in zip(lanes, heads, strict=True):
                if head < len(lane):
                    self._stopped(lane[head] // self.ticks)
        if self.network.dead():
            self._stopped(0)  # nobody waits for it, but a payload never arrives

    def _stopped(self, row: int) -> NoReturn:
        dead = self.network.dead()
        if dead:
            links = ", ".join(f"{a}>{b}" for a, b in dead)
            raise RunError(f"link {links} is dead and the schedule needs it: plan around it (`Cluster.around`)")
        raise RunError(f"the simulation stopped at row {row}: expected a schedule that `verify` has passed")

    def _settle(self, now: float) -> None:
        awake = self.awake
        while awake:
            walker = awake.pop()
            node = walker // WALKERS
            kind = walker - node * WALKERS
            if kind == LEDGER:
                self._run_ledger(node, now)
            elif kind == NIC:
                self._run_nic(node, now)
            else:
                self._run_compute(node, now)

    def _finish(self, inst: int, now: float) -> None:
        """Record what an event ends: work, or a delivery and with it perhaps its send."""
        row = inst // self.ticks
        if self.program.kind[row] == RECV:
            self._end(inst, now)
            send = self.transfers.arrive(inst, now)
            if send >= 0:
                self._end(send, now)
            return
        if self.program.lane_of[row] == COMPUTE:
            node = self.program.node[row]
            self.busy[node] = False
            self.awake.append(WALKERS * node + COMPUTE)
        self._end(inst, now)

    def _end(self, inst: int, now: float) -> None:
        row = inst // self.ticks
        self.ended[inst], self.end[inst] = 1, now
        self.left[row] -= 1
        waiting = self.waiting
        if inst in waiting:
            self.awake += waiting.pop(inst)
        if not self.left[row] and ~row in waiting:
            self.awake += waiting.pop(~row)

    # --- walkers ---

    def _run_compute(self, node: int, now: float) -> None:
        """Start the next row of the compute lane unless one is running: one processor, in list order."""
        lane, heads, busy = self.lanes[node][COMPUTE], self.heads[node], self.busy
        while not busy[node] and heads[COMPUTE] < len(lane):
            inst = lane[heads[COMPUTE]]
            row = inst // self.ticks
            if self.conditions[row] is not None and self._is_blocked(inst, row, WALKERS * node + COMPUTE):
                return
            heads[COMPUTE] += 1
            self.start[inst] = now
            if self.program.is_retire[row]:
                self._end(inst, now)
            else:
                busy[node] = True
                heappush(self.heap, (now + self.seconds[row], DONE, inst))

    def _run_nic(self, node: int, now: float) -> None:
        """Start rows of the NIC lane until one is blocked; none waits for an earlier one to end."""
        lane, heads = self.lanes[node][NIC], self.heads[node]
        while heads[NIC] < len(lane):
            inst = lane[heads[NIC]]
            row = inst // self.ticks
            if self.conditions[row] is not None and self._is_blocked(inst, row, WALKERS * node + NIC):
                return
            heads[NIC] += 1
            self.start[inst] = now
            kind = self.program.kind[row]
            if kind == RECV:
                self.transfers.post(inst, now)
            elif kind == SEND:
                self.transfers.send(inst, now)
            else:
                heappush(self.heap, (now + self.seconds[row], DONE, inst))

    def _run_ledger(self, node: int, now: float) -> None:
        """Memory moves at once; where packets are ordered one by one, behind what is ready to be handed over."""
        if self.hands_over and now:
            heappush(self.heap, (now, MEMORY, node))
        else:
            self._run_memory(node, now)

    def _run_memory(self, node: int, now: float) -> None:
        """Take and give back memory in list order; a give waits for the last use."""
        events, at, waiting, samples = self.memory[node], self.next_memory[node], self.waiting, self.samples
        while at < len(events):
            row, inst, is_take, needs, runs = events[at]
            if is_take:
                self.granted[inst] = 1
                grant = inst + len(self.ended)
                if grant in waiting:
                    self.awake += waiting.pop(grant)
            elif self._is_in_use(needs, runs, WALKERS * node + LEDGER):
                break
            samples.extend((now, node, row, 1 if is_take else -1))
            at += 1
        self.next_memory[node] = at

    def _is_in_use(self, needs: tuple[int, ...], runs: tuple[int, ...], walker: int) -> bool:
        """Say whether memory to give back still has uses, and wake the walker when that may have changed."""
        for inst in needs:
            if not self.ended[inst]:
                return self._waits_for(inst, walker)
        for row in runs:
            if self.left[row]:
                return self._waits_for(~row, walker)
        return False

    # --- waiting ---

    def _waits_for(self, what: int, walker: int) -> bool:
        """Register a walker for what it waits for; always true: it waits."""
        waiting = self.waiting.get(what)
        if waiting is None:
            self.waiting[what] = [walker]
        else:
            waiting.append(walker)
        return True

    def _is_blocked(self, inst: int, row: int, walker: int) -> bool:
        """Say whether an instance cannot start yet, and wake its walker when that may have changed."""
        ticks, ended = self.ticks, self.ended
        conditions = self.conditions[row]
        if conditions is None:
            return False
        tick = inst - row * ticks
        waits, shifted, runs, gate = conditions
        for base in waits:
            if not ended[base + tick]:
                return self._waits_for(base + tick, walker)
        for base, shift in shifted:
            if 0 <= tick + shift < ticks and not ended[base + tick]:
                return self._waits_for(base + tick, walker)
        for other in runs:
            if self.left[other]:
                return self._waits_for(~other, walker)
        if gate and (gate == 2 or not tick) and not self.granted[inst]:
            return self._waits_for(self._grant_of(inst), walker)
        return False

    def _grant_of(self, inst: int) -> int:
        return inst + len(self.ended)
