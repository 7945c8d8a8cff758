"""Legal schedules with one named fault, each of which must break a named law: what `verify` has to catch."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from mcf.schedule import Schedule
from mcf.schedule.memory import peak_bytes
from mcf.schedule.schedule import Array
from mcf.schedule.steps import (
    ATTEND,
    CONVERGE,
    DRAIN,
    FREE,
    KEEP,
    KV,
    MERGE,
    NONE,
    PREFILL,
    PRODUCE,
    QUERY,
    RECV,
    SEND,
    STATE,
    STREAM,
)
from mcf.testing.editing import add_after, drop_rows, insert_row, set_fields


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """A named fault. `apply(schedule, rng)` returns the broken schedule, or None where the fault has no place to be."""

    name: str
    law: str
    apply: Callable[[Schedule, Random], Schedule | None]


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A schedule that breaks `law`, and how it was made."""

    name: str
    law: str
    schedule: Schedule


def _pick(rng: Random, mask: Array) -> int | None:
    rows = np.flatnonzero(mask).tolist()
    return rng.choice(rows) if rows else None


def _with_recvs(sched: Schedule, send: int) -> list[int]:
    return [send, *np.flatnonzero(sched.steps["ref"] == send).tolist()]


# --- the faults ---


def _lose_transfer(sched: Schedule, rng: Random) -> Schedule | None:
    """V1: a stream is never sent, and its receiver attends it all the same."""
    s = sched.steps
    row = _pick(rng, (s["kind"] == SEND) & (s["hold"] == STREAM) & _attended(sched))
    return None if row is None else drop_rows(sched, _with_recvs(sched, row))


def _attended(sched: Schedule) -> Array:
    """[R] KV sends whose payload some receiver attends in the same chunk."""
    s = sched.steps
    out = np.zeros(len(s), dtype=bool)
    for recv in np.flatnonzero((s["kind"] == RECV) & (s["payload"] == KV)).tolist():
        r = s[recv]
        near = (s["kind"] == ATTEND) & (s["node"] == r["node"]) & (s["chunk"] == r["chunk"])
        inside = np.ones(len(s), dtype=bool)
        for axis in "cmh":
            inside &= (s[f"{axis}_lo"] <= r[f"{axis}_lo"]) & (r[f"{axis}_hi"] <= s[f"{axis}_hi"])
        out[r["ref"]] |= bool((near & inside).any())
    return out


def _lose_query(sched: Schedule, rng: Random) -> Schedule | None:
    """V1: a remote node attends queries that it never received."""
    s = sched.steps
    row = _pick(rng, (s["kind"] == SEND) & (s["payload"] == QUERY) & (s["dst"] >= 0))
    if row is None:
        return None
    again = (s["payload"] == QUERY) & (s["kind"] == RECV) & (s["node"] == s["dst"][row]) & (s["q"] == s["q"][row])
    alone = (again & (s["chunk"] == s["chunk"][row])).sum() == 1
    return drop_rows(sched, _with_recvs(sched, row)) if alone else None


def _drain_own(sched: Schedule, rng: Random) -> Schedule | None:
    """V2: an owner drains its own block before the last section."""
    s, last = sched.steps, sched.meta.num_chunks
    own = [(c, m) for c, m in np.argwhere(sched.tokens > 0).tolist() if (sched.owner[c, m] == m).all()]
    chunk, maker = rng.choice(own) if own else (0, 0)
    if not own:
        return None
    step = np.zeros(1, dtype=s.dtype)[0]
    values = {"kind": DRAIN, "stage": CONVERGE, "node": maker, "chunk": last, "c_lo": chunk, "c_hi": chunk + 1}
    values |= {"m_lo": maker, "m_hi": maker + 1, "h_hi": sched.meta.num_kv_heads, "q": NONE, "dst": NONE}
    for name, value in (values | {"route": NONE, "ref": NONE}).items():
        step[name] = value
    rows = sched.node_rows(maker)
    at = rows.start + int((s["chunk"][rows.start : rows.stop] < last).sum())
    return insert_row(sched, at, step)


def _leave_replica(sched: Schedule, rng: Random) -> Schedule | None:
    """V3: a copy is still there after the converge section."""
    s = sched.steps
    row = _pick(rng, (s["kind"] == FREE) & (s["stage"] == CONVERGE))
    return None if row is None else drop_rows(sched, [row])


def _wrong_shares(sched: Schedule, rng: Random) -> Schedule | None:
    """V3: the shares at the end are not those declared."""
    shares = [0] * sched.meta.num_nodes
    shares[rng.randrange(len(shares))] = sched.meta.prompt_tokens + 1
    return sched.replace(meta=replace(sched.meta, shares=tuple(shares)))


def _tight_budget(sched: Schedule, rng: Random) -> Schedule | None:
    """V4: one node's budget is one byte below its peak."""
    budgets = [int(x) for x in peak_bytes(sched)]
    node = rng.choice([n for n, peak in enumerate(budgets) if peak])
    budgets[node] -= 1
    return sched.replace(meta=replace(sched.meta, budgets=tuple(budgets)))


def _small_buffer(sched: Schedule, rng: Random) -> Schedule | None:
    """V5: no stream fits the propagation buffer."""
    has_stream = (sched.steps["hold"] == STREAM).any()
    return sched.replace(meta=replace(sched.meta, buffer_bytes=1)) if has_stream else None


def _after_itself(sched: Schedule, rng: Random) -> Schedule | None:
    """V6: a row stands after itself."""
    s = sched.steps
    row = _pick(rng, s["after_hi"] > s["after_lo"])
    if row is None:
        return None
    after = sched.after.copy()
    after[s["after_lo"][row]] = row
    return sched.replace(after=after)


def _lose_recv(sched: Schedule, rng: Random) -> Schedule | None:
    """V6: a send is never received."""
    row = _pick(rng, sched.steps["kind"] == RECV)
    return None if row is None else drop_rows(sched, [row])


def _recv_of_another(sched: Schedule, rng: Random) -> Schedule | None:
    """V6: a receive names a sender that does not send it."""
    row = _pick(rng, sched.steps["kind"] == RECV)
    return None if row is None else set_fields(sched, row, dst=int(sched.steps["node"][row]))


def _twice(sched: Schedule, rng: Random) -> Schedule | None:
    """V7: a node attends a block twice."""
    s = sched.steps
    row = _pick(rng, _history_attends(sched))
    if row is None:
        return None
    users = np.flatnonzero(s["kind"] == MERGE)
    merge = next((int(m) for m in users if row in sched.after_of(int(m))), None)
    if merge is None:
        return None
    out = insert_row(sched, row, s[row])
    return add_after(out, merge + 1, row)


def _history_attends(sched: Schedule) -> Array:
    """[R] prefill attends of earlier chunks or of the node's own new block: each must be there."""
    s = sched.steps
    own = (s["m_lo"] <= s["q"]) & (s["q"] < s["m_hi"]) & (s["c_hi"] > s["chunk"])
    out: Array = (s["kind"] == ATTEND) & (s["stage"] == PREFILL) & ((s["c_hi"] <= s["chunk"]) | own)
    return out


def _missed(sched: Schedule, rng: Random) -> Schedule | None:
    """V7: a node misses blocks that it may see."""
    s = sched.steps
    merged = {
        t for m in np.flatnonzero(s["kind"] == MERGE) if len(sched.after_of(int(m))) > 1 for t in sched.after_of(int(m))
    }
    sent = {t for x in np.flatnonzero(s["payload"] == STATE) for t in sched.after_of(int(x))}
    mask = _history_attends(sched) & np.isin(np.arange(len(s)), sorted(merged - sent))
    row = _pick(rng, mask)
    return None if row is None else drop_rows(sched, [row])


def _no_merge(sched: Schedule, rng: Random) -> Schedule | None:
    """V7: queries whose states nobody merges."""
    s = sched.steps
    row = _pick(rng, (s["kind"] == MERGE) & (s["q"] == s["node"]))
    return None if row is None else drop_rows(sched, [row])


def _no_link(sched: Schedule, rng: Random) -> Schedule | None:
    """V8: a send crosses a link that is not there."""
    s = sched.steps
    row = _pick(rng, (s["kind"] == SEND) & (s["dst"] >= 0))
    if row is None:
        return None
    node = int(s["node"][row])
    bogus = ((node, node),)
    return set_fields(sched.replace(routes=(*sched.routes, bogus)), row, route=len(sched.routes))


def _broken_walk(sched: Schedule, rng: Random) -> Schedule | None:
    """V8: a route starts where the payload has not been."""
    s = sched.steps
    row = _pick(rng, (s["kind"] == SEND) & (s["route"] >= 0))
    if row is None:
        return None
    routes = list(sched.routes)
    at = int(s["route"][row])
    routes[at] = tuple((b, a) for a, b in reversed(routes[at]))
    return sched.replace(routes=tuple(routes))


def _produce_twice(sched: Schedule, rng: Random) -> Schedule | None:
    """The table of single rows: a block is made twice."""
    row = _pick(rng, sched.steps["kind"] == PRODUCE)
    return None if row is None else insert_row(sched, row, sched.steps[row])


def _keep_what_is_held(sched: Schedule, rng: Random) -> Schedule | None:
    """V1: a copy arrives where one is held already."""
    s = sched.steps
    row = _pick(rng, (s["kind"] == SEND) & (s["hold"] == KEEP) & (s["dst"] >= 0))
    if row is None:
        return None
    recv = int(np.flatnonzero(s["ref"] == row)[0])
    first, second = sorted((row, recv))
    out = insert_row(insert_row(sched, second + 1, s[second]), first + 1, s[first])
    pair = (first + 1, second + 2)
    send, new_recv = pair if row < recv else pair[::-1]
    return set_fields(out, new_recv, ref=send)


def _cross_wait(sched: Schedule, rng: Random) -> Schedule | None:
    """V6: two nodes attend each other's queries before they make their own."""
    s = sched.steps
    remote = (s["kind"] == ATTEND) & (s["stage"] == PREFILL) & (s["q"] != s["node"])
    where = {
        (int(r["chunk"]), int(r["node"]), int(r["q"])): i
        for i, r in zip(np.flatnonzero(remote), s[remote], strict=True)
    }
    pairs = sorted((c, a, b) for c, a, b in where if a < b and (c, b, a) in where)
    if not pairs:
        return None
    chunk, a, b = rng.choice(pairs)
    out = sched
    for node, row in sorted(((a, where[chunk, a, b]), (b, where[chunk, b, a])), reverse=True):
        made = (s["kind"] == PRODUCE) & (s["node"] == node) & (s["chunk"] == chunk)
        out = insert_row(out, int(np.flatnonzero(made)[0]), s[row]) if made.any() else out
    return out


def _use_while_draining(sched: Schedule, rng: Random) -> Schedule | None:
    """V1: a node attends a copy after it has begun to drain it."""
    s = sched.steps
    kept = np.flatnonzero((s["kind"] == RECV) & (s["hold"] == KEEP))
    found = [(int(a), int(r)) for r in kept for a in np.flatnonzero(_uses_later(s, s[r]))]
    found = [(a, r) for a, r in found if not (_owners(sched, r) == s["node"][a]).any()]
    if not found:
        return None
    attend, recv = rng.choice(found)
    step = s[recv].copy()
    for name, value in {
        "kind": DRAIN,
        "lane": 0,
        "payload": 0,
        "hold": 0,
        "ahead": 0,
        "dst": NONE,
        "ref": NONE,
    }.items():
        step[name] = value
    step["chunk"] = s["chunk"][attend]
    rows = sched.node_rows(int(step["node"]))
    at = rows.start + int((s["chunk"][rows.start : rows.stop] < step["chunk"]).sum())
    return insert_row(sched, at, step)


def _owners(sched: Schedule, row: int) -> Array:
    """Owners of the blocks of a row's set."""
    step = sched.step(row)
    out: Array = sched.owner[step.c_lo : step.c_hi, step.m_lo : step.m_hi, sched.groups(step.h_lo, step.h_hi)]
    return out


def _uses_later(s: Array, recv: Array) -> Array:
    """[R] prefill attends of later chunks that need a block of a receive."""
    out: Array = (s["kind"] == ATTEND) & (s["stage"] == PREFILL)
    out &= (s["node"] == recv["node"]) & (s["chunk"] > recv["chunk"])
    for axis in "cmh":
        out &= (s[f"{axis}_lo"] <= recv[f"{axis}_lo"]) & (recv[f"{axis}_hi"] <= s[f"{axis}_hi"])
    return out


MUTATIONS: tuple[Mutation, ...] = (
    Mutation(name="after itself", law="V6", apply=_after_itself),
    Mutation(name="broken walk", law="V8", apply=_broken_walk),
    Mutation(name="cross wait", law="V6", apply=_cross_wait),
    Mutation(name="drain own", law="V2", apply=_drain_own),
    Mutation(name="keep what is held", law="V1", apply=_keep_what_is_held),
    Mutation(name="leave replica", law="V3", apply=_leave_replica),
    Mutation(name="lose query", law="V1", apply=_lose_query),
    Mutation(name="lose recv", law="V6", apply=_lose_recv),
    Mutation(name="lose transfer", law="V1", apply=_lose_transfer),
    Mutation(name="missed", law="V7", apply=_missed),
    Mutation(name="no link", law="V8", apply=_no_link),
    Mutation(name="no merge", law="V7", apply=_no_merge),
    Mutation(name="produce twice", law="spec", apply=_produce_twice),
    Mutation(name="recv of another", law="V6", apply=_recv_of_another),
    Mutation(name="small buffer", law="V5", apply=_small_buffer),
    Mutation(name="tight budget", law="V4", apply=_tight_budget),
    Mutation(name="twice", law="V7", apply=_twice),
    Mutation(name="use while draining", law="V1", apply=_use_while_draining),
    Mutation(name="wrong shares", law="V3", apply=_wrong_shares),
)


def break_schedule(sched: Schedule, mutation: Mutation, seed: int) -> Broken | None:
    """Apply a mutation to a legal schedule; None where it has no place to be."""
    broken = mutation.apply(sched, Random(seed))
    return None if broken is None else Broken(name=mutation.name, law=mutation.law, schedule=broken)
