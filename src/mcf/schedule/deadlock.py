"""V6: rows wait only along edges that point forward in layers, so a dead-lock is a cycle within one group loop."""

import numpy as np

from mcf.schedule.passes import gather_after, group_keys, intersects, is_retire
from mcf.schedule.schedule import Array, Schedule
from mcf.schedule.steps import ATTEND, COMPUTE, KV, NIC, PRODUCE, QUERY, RECV, SEND, STREAM


def use_pairs(sched: Schedule) -> tuple[Array, Array]:
    """(recv row, user row) for each KV receive and each later attend or KV send of its group that touches its set."""
    steps = sched.steps
    keys = group_keys(steps, sched.meta.num_chunks)
    recvs = np.flatnonzero((steps["kind"] == RECV) & (steps["payload"] == KV))
    users = np.flatnonzero((steps["kind"] == ATTEND) | ((steps["kind"] == SEND) & (steps["payload"] == KV)))
    user_keys, recv_keys = keys[users], keys[recvs]
    bounds = np.flatnonzero(np.diff(recv_keys, prepend=-1))
    left, right = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    firsts = np.searchsorted(user_keys, recv_keys[bounds])
    lasts = np.searchsorted(user_keys, recv_keys[bounds], side="right")
    ends = np.append(bounds, len(recvs))[1:].tolist()
    for a, b, lo, hi in zip(bounds.tolist(), ends, firsts.tolist(), lasts.tolist(), strict=True):
        mine, rows = recvs[a:b], users[lo:hi]
        i, j = np.nonzero(intersects(steps[mine][:, None], steps[rows][None, :]) & (rows[None, :] > mine[:, None]))
        left.append(mine[i])
        right.append(rows[j])
    return np.concatenate(left), np.concatenate(right)


def last_uses(sched: Schedule, pairs: tuple[Array, Array]) -> Array:
    """[R] the row after which the slot of a stream receive with ahead = 0 is released; -1 elsewhere or if unused."""
    out = np.full(len(sched.steps), -1, dtype=np.int64)
    np.maximum.at(out, pairs[0], pairs[1])
    s = sched.steps
    return np.where((s["hold"] == STREAM) & (s["ahead"] == 0), out, -1)


def _edges(sched: Schedule, pairs: tuple[Array, Array]) -> tuple[Array, Array]:
    s, num = sched.steps, len(sched.steps)
    keys = group_keys(s, sched.meta.num_chunks)
    rows = np.arange(num)
    loop = ~is_retire(s)
    parts: list[tuple[Array, Array]] = [(rows, rows + num)]
    for lane in (COMPUTE, NIC):
        mine = rows[loop & (s["lane"] == lane)]
        near = keys[mine[1:]] == keys[mine[:-1]]
        parts.append((mine[:-1][near], mine[1:][near]))
    segment, target = gather_after(sched)
    near = keys[segment] == keys[target]
    parts.append((target[near] + num, segment[near]))
    recvs = rows[s["kind"] == RECV]
    parts.append((s["ref"][recvs].astype(np.int64), recvs + num))
    parts.append((recvs, s["ref"][recvs].astype(np.int64) + num))
    recv, user = pairs
    waits = (s["ahead"][recv] == 0) | ((s["kind"][user] == SEND) & (s["ahead"][user] == s["ahead"][recv]))
    parts.append((recv[waits] + num, user[waits]))
    parts.append(_query_edges(sched, keys))
    parts.append(_produce_edges(sched, keys))
    parts.append(_reuse_edges(sched, keys, pairs))
    parts.append(_relay_edges(sched))
    return np.concatenate([a for a, _ in parts]), np.concatenate([b for _, b in parts])


def _produce_edges(sched: Schedule, keys: Array) -> tuple[Array, Array]:
    """Own queries and own new blocks leave when the dense work has made them."""
    s, num = sched.steps, len(sched.steps)
    produces = np.flatnonzero(s["kind"] == PRODUCE)
    own = (s["payload"] == QUERY) & (s["q"] == s["node"])
    own |= (s["payload"] == KV) & (s["c_hi"] > s["chunk"]) & (s["m_lo"] <= s["node"]) & (s["node"] < s["m_hi"])
    sends = np.flatnonzero((s["kind"] == SEND) & own)
    at = np.searchsorted(keys[produces], keys[sends])
    found = at < len(produces)
    sends, at = sends[found], produces[at[found]]
    near = keys[sends] == keys[at]
    return at[near] + num, sends[near]


def early_forwards(sched: Schedule, pairs: tuple[Array, Array]) -> Array:
    """Sends that are further ahead than the receive that brings their blocks."""
    s = sched.steps
    recv, user = pairs
    out: Array = np.unique(user[(s["kind"][user] == SEND) & (s["ahead"][user] > s["ahead"][recv])])
    return out


def _query_edges(sched: Schedule, keys: Array) -> tuple[Array, Array]:
    s, num = sched.steps, len(sched.steps)
    recvs = np.flatnonzero((s["kind"] == RECV) & (s["payload"] == QUERY))
    reads = (s["kind"] == ATTEND) | ((s["kind"] == SEND) & (s["payload"] == QUERY))
    users = np.flatnonzero(reads & (s["q"] != s["node"]) & (s["q"] >= 0))
    if not len(recvs) or not len(users):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    span = sched.meta.num_nodes
    have, want = keys[recvs] * span + s["q"][recvs], keys[users] * span + s["q"][users]
    order = np.argsort(have, kind="stable")
    lo, hi = np.searchsorted(have[order], want), np.searchsorted(have[order], want, side="right")
    user = np.repeat(users, hi - lo)
    offset = np.arange(len(user)) - np.repeat(np.cumsum(hi - lo) - (hi - lo), hi - lo)
    return recvs[order][np.repeat(lo, hi - lo) + offset] + num, user


def _reuse_edges(sched: Schedule, keys: Array, pairs: tuple[Array, Array]) -> tuple[Array, Array]:
    """A slot is free for the first KV receive after its last use when all its uses have ended, forwards too."""
    s, num = sched.steps, len(sched.steps)
    recvs = np.flatnonzero((s["kind"] == RECV) & (s["payload"] == KV))
    last, users = last_uses(sched, pairs)[pairs[0]], pairs[1]
    nxt = np.searchsorted(recvs, last)
    inside = (last >= 0) & (nxt < len(recvs))
    users, nxt = users[inside], recvs[nxt[inside]]
    near = keys[users] == keys[nxt]
    return users[near] + num, nxt[near]


def _relay_edges(sched: Schedule) -> tuple[Array, Array]:
    """A tree hands a copy on from node to node: who stands behind a relay receives after it has."""
    s, num, span = sched.steps, len(sched.steps), sched.meta.num_nodes
    above = np.full((len(sched.routes) + 1, span), -1)  # [route, node] the node that hands it on; the last: no tree
    for route, edges in enumerate(sched.routes):
        for a, b in edges:
            above[route, b] = a
    recvs = np.flatnonzero(s["kind"] == RECV)
    sends = s["ref"][recvs].astype(np.int64)
    relays = above[np.where(s["dst"][sends] < 0, s["route"][sends], -1), s["node"][recvs]]
    behind = (relays >= 0) & (relays != s["node"][sends])
    have = sends * span + s["node"][recvs]
    order = np.argsort(have, kind="stable")
    at = np.searchsorted(have[order], (sends * span + relays)[behind])
    return recvs[order][at] + num, recvs[behind] + num


def stuck_rows(sched: Schedule, pairs: tuple[Array, Array]) -> Array:
    """Rows that can never start or end; empty when the schedule cannot dead-lock."""
    left = np.flatnonzero(_waiting(len(sched.steps), *_edges(sched, pairs)))
    return np.unique(left % max(len(sched.steps), 1))


def lone_copies(sched: Schedule) -> frozenset[int]:
    """Sends to several nodes that must go to each receiver alone, of a schedule that cannot dead-lock.

    A network that carries a send's copies together starts when all receivers have posted. Where one posts only after
    what another does with its copy, all would wait for ever. They are found as the waits show them: of the sends of a
    loop that have started and have a receiver that has posted, the first is taken apart, until nothing waits.
    """
    s, num = sched.steps, len(sched.steps)
    recvs = np.flatnonzero(s["kind"] == RECV)
    refs = s["ref"][recvs].astype(np.int64)
    together = recvs[np.bincount(refs, minlength=num)[refs] > 1]
    src, dst = _edges(sched, use_pairs(sched))
    loops = s["stage"].astype(np.int64) * (sched.meta.num_chunks + 1) + s["chunk"]
    out: set[int] = set()
    while len(together):
        ref = s["ref"][together].astype(np.int64)
        waiting = _waiting(num, np.append(src, ref + num), np.append(dst, together + num))
        held = np.unique(ref[(waiting[together + num] > 0) & (waiting[together] == 0) & (waiting[ref] == 0)])
        if not len(held):
            break
        apart = held[np.unique(loops[held], return_index=True)[1]]
        out |= set(apart.tolist())
        together = together[~np.isin(ref, apart)]
    return frozenset(out)


def _waiting(num_rows: int, src: Array, dst: Array) -> Array:
    """[2R] how much each start (row) and end (row + R) still waits for when nothing moves any more (Kahn's algorithm, a
    whole front at a time).
    """
    total = 2 * num_rows
    order = np.argsort(src, kind="stable")
    dst = dst[order]
    starts = np.searchsorted(src[order], np.arange(total + 1))
    waiting = np.bincount(dst, minlength=total)
    front = np.flatnonzero(waiting == 0)
    while len(front):
        sizes = starts[front + 1] - starts[front]
        base = np.repeat(starts[front] - (np.cumsum(sizes) - sizes), sizes)
        reached = dst[base + np.arange(len(base))]
        np.subtract.at(waiting, reached, 1)
        front = np.unique(reached[waiting[reached] == 0])
    out: Array = waiting
    return out
