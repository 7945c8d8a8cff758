"""`run`: obey a schedule in one process, in float64."""

import numpy as np

from mcf.ref.machine import Machine
from mcf.ref.world import Tensors, World
from mcf.schedule.program import Program, check_tensors
from mcf.schedule.schedule import Schedule
from mcf.trace.outcome import Array, Outcome, Residency, certify


def run(
    schedule: Schedule, q: Array, k: Array, v: Array, *, decode_tokens: int = 0, order: int | None = None
) -> Outcome:
    """Run a schedule that `verify` has passed, on N simulated nodes that read nothing but their own stores.

    q [L, S+T, Hq, d], k and v [L, S+T, Hkv, d], T = `decode_tokens`; positions from S on are the generated tokens. The
    attention scale is d**-0.5. `order` seeds which node and lane goes next: the results are the same bit for bit.
    Raises ScheduleError for tensors or token counts that do not fit, LawError("V6") with the grid for a dead-lock.
    """
    program = Program(schedule, decode_tokens)
    q, k, v = check_tensors(program, q=q, k=k, v=v)
    world = World(program, Tensors(q=q, k=k, v=v))
    machine = Machine(world, order)
    machine.run()
    return _outcome(schedule, world, machine)


def _outcome(sched: Schedule, world: World, machine: Machine) -> Outcome:
    meta, stores = sched.meta, [w.store for w in machine.workers]
    weights = np.diff(meta.head_cuts) / meta.num_kv_heads
    return Outcome(
        out=world.output(),
        trace=world.trace.to_trace({"executor": "ref", "policy": meta.policy}),
        residency=Residency(
            shape=(meta.num_chunks, meta.num_nodes, meta.num_groups),
            changes=tuple(tuple(sorted(s.changes, key=lambda change: change[0])) for s in stores),
        ),
        peak_bytes=tuple(s.peak for s in stores),
        certificate=certify([s.directory for s in stores], sched.tokens, weights),
    )
