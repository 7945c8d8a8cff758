"""The dry-run scheduler: nodes, lanes and transfers take turns until everything has run, or nobody can move."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from mcf.errors import LawError
from mcf.ref.worker import Worker
from mcf.ref.world import Flight, World
from mcf.schedule.steps import KIND_NAMES, LANE_NAMES
from mcf.schedule.text import grid

Turn = Callable[[int], int]
LIMITS = (0, 1, 2, 5, 1000)  # how many things a lane may do in one turn when an order is drawn


class Machine:
    """Runs a world's rows. `order` seeds who goes next; the results do not depend on it."""

    def __init__(self, world: World, order: int | None) -> None:
        self.world = world
        self.program = world.program
        self.workers = [Worker(world, n) for n in range(world.meta.num_nodes)]
        self.heads = [[0, 0] for _ in self.workers]
        self.rng = None if order is None else np.random.default_rng(order)

    def run(self) -> None:
        """Run to the end; raises LawError("V6") with the grid when nobody can go on."""
        while self._unfinished():
            if self.rng is not None and self._sweep(self.rng):
                continue
            if not sum(turn(LIMITS[-1]) for turn in self._turns()):
                self._stuck()

    def _sweep(self, rng: np.random.Generator) -> int:
        turns = list(self._turns())
        limits = rng.choice(LIMITS, len(turns)).tolist()
        return sum(turns[i](limits[i]) for i in rng.permutation(len(turns)).tolist())

    def _turns(self) -> Iterator[Turn]:
        for node in range(len(self.workers)):
            yield partial(self._run_memory, node)
            for lane in LANE_NAMES:
                yield partial(self._run_lane, node, lane)
        yield self._run_transfers

    def _unfinished(self) -> bool:
        return bool(self.world.flights) or any(True for _ in self._next_instances()) or self._memory_left()

    def _memory_left(self) -> bool:
        return not all(worker.progress.has_ended for worker in self.workers)

    def _next_instances(self) -> Iterator[tuple[int, int]]:
        for node, program in enumerate(self.program.nodes):
            for lane in LANE_NAMES:
                if self.heads[node][lane] < len(program.lanes[lane]):
                    yield node, lane

    # --- turns ---

    def _run_lane(self, node: int, lane: int, limit: int) -> int:
        """Start rows of one lane in list order, until one is blocked; returns how many started."""
        todo, worker, done = self.program.nodes[node].lanes[lane], self.workers[node], 0
        while done < limit and self.heads[node][lane] < len(todo):
            inst = todo[self.heads[node][lane]]
            if worker.blocked(inst):
                break
            worker.start(inst)
            self.heads[node][lane] += 1
            done += 1
        return done

    def _run_memory(self, node: int, limit: int) -> int:
        done = 0
        while done < limit and self.workers[node].ledger.step():
            done += 1
        return done

    def _run_transfers(self, limit: int) -> int:
        flights = list(self.world.flights)
        if self.rng is not None:
            flights = [flights[i] for i in self.rng.permutation(len(flights)).tolist()]
        return sum(self._deliver(flight) for flight in flights[:limit])

    def _deliver(self, flight: Flight) -> int:
        """Copy a send's payload to every posted receive that the tree has reached; returns the number of copies."""
        worker, done = self.workers[self.program.rows[flight.inst.row].node], 0
        for edge in list(flight.left):
            links, before, node = edge
            recv = self.program.recv_of[flight.inst.row, node]
            if before not in flight.reached or (recv, flight.tick) not in self.world.posted:
                continue
            arrays = worker.payload(flight.inst)
            self.workers[node].arrive(recv, flight.tick, arrays)
            self.world.moved(flight, links, sum(a.size for a in arrays))
            self.world.end(recv, flight.tick)
            flight.reached.add(node)
            flight.left.remove(edge)
            done += 1
        if not flight.left:
            self.world.flights.remove(flight)
            self.world.end(flight.inst.row, flight.tick)
        return done

    # --- dead-lock ---

    def _stuck(self) -> None:
        reasons = [self._reason(node, lane) for node, lane in self._next_instances()]
        rows = [row for row, _ in reasons] + [flight.inst.row for flight in self.world.flights]
        row = rows[0] if rows else 0
        text = f"nobody can go on: {'; '.join(text for _, text in reasons) or 'a send has no posted receive'}"
        raise LawError("V6", text, row=row, grid=grid(self.program.sched, mark=row))

    def _reason(self, node: int, lane: int) -> tuple[int, str]:
        inst = self.program.nodes[node].lanes[lane][self.heads[node][lane]]
        why, kind = self.workers[node].blocked(inst), KIND_NAMES[self.program.rows[inst.row].kind]
        return inst.row, f"node {node} {LANE_NAMES[lane]} row {inst.row} ({kind}) waits for {why}"
