"""Pure functions Schedule -> Schedule: place receives, expand multicast; and the row arithmetic that they share with
`verify`.

A *group* is what one node runs in one loop: (node, chunk, stage). Rows of a node are ordered by group.
"""

from dataclasses import dataclass

import numpy as np

from mcf.schedule.schedule import Array, Route, Schedule
from mcf.schedule.steps import ATTEND, DRAIN, FREE, KEEP, KV, MERGE, NIC, NONE, RECV, SEND, STATE, STEP, STREAM


def group_keys(steps: Array, num_chunks: int) -> Array:
    """[R] int64 key of each row's (node, chunk, stage), rising along every node's list."""
    span = 3 * (num_chunks + 1)
    out: Array = steps["node"].astype(np.int64) * span + steps["chunk"] * 3 + steps["stage"]
    return out


def is_retire(steps: Array) -> Array:
    """[R] rows that stand outside the layer loop."""
    out: Array = (steps["kind"] == DRAIN) | (steps["kind"] == FREE)
    return out


def intersects(a: Array, b: Array) -> Array:
    """Say for each pair (broadcast) whether two block sets share a cell."""
    out = np.ones(np.broadcast_shapes(a.shape, b.shape), dtype=bool)
    for lo, hi in (("c_lo", "c_hi"), ("m_lo", "m_hi"), ("h_lo", "h_hi")):
        out &= (a[lo] < b[hi]) & (b[lo] < a[hi])
    return out


def uses(recvs: Array, recv_keys: Array, steps: Array, keys: Array) -> tuple[Array, Array]:
    """First and last row using each KV receive: attends and KV sends of its group that touch its set; -1 if none."""
    first = np.full(len(recvs), NONE, dtype=np.int64)
    last = np.full(len(recvs), NONE, dtype=np.int64)
    is_user = (steps["kind"] == ATTEND) | ((steps["kind"] == SEND) & (steps["payload"] == KV))
    users = np.flatnonzero(is_user)
    order = np.argsort(recv_keys, kind="stable")
    bounds = np.flatnonzero(np.diff(recv_keys[order], prepend=-1))
    user_keys = keys[users]
    for a, b in zip(bounds, [*bounds[1:], len(order)], strict=True):
        mine = order[a:b]
        lo, hi = np.searchsorted(user_keys, [recv_keys[mine[0]], recv_keys[mine[0]] + 1])
        if hi == lo:
            continue
        rows = users[lo:hi]
        hit = intersects(recvs[mine][:, None], steps[rows][None, :])
        some = hit.any(1)
        first[mine[some]] = rows[hit.argmax(1)[some]]
        last[mine[some]] = rows[len(rows) - 1 - hit[:, ::-1].argmax(1)[some]]
    return first, last


def recv_table(sched: Schedule) -> Array:
    """One RECV record per (send, receiver), in send order; `ref` is the send's row, `dst` the sending node."""
    steps = sched.steps
    sends = np.flatnonzero(steps["kind"] == SEND)
    trees = sends[steps["dst"][sends] < 0]
    sizes = np.ones(len(sends), dtype=np.int64)
    route_len = np.array([len(r) for r in sched.routes], dtype=np.int64)
    sizes[steps["dst"][sends] < 0] = route_len[steps["route"][trees]]
    rows = np.repeat(sends, sizes)
    out = steps[rows].copy()
    node = steps["dst"][rows].copy()
    if len(trees):
        heads = np.concatenate([[b for _, b in sched.routes[r]] for r in steps["route"][trees].tolist()])
        node[node < 0] = heads
    out["kind"], out["lane"], out["ref"] = RECV, NIC, rows
    out["dst"], out["node"], out["route"] = steps["node"][rows], node, NONE
    out["after_lo"], out["after_hi"] = 0, 0
    return out


def _positions(sched: Schedule, recvs: Array) -> Array:
    """Row index before which each receive is inserted (semantics 8)."""
    steps, meta = sched.steps, sched.meta
    keys = group_keys(steps, meta.num_chunks)
    want = group_keys(recvs, meta.num_chunks)
    retired = np.concatenate([[0], np.cumsum(is_retire(steps))])
    lo, hi = np.searchsorted(keys, want), np.searchsorted(keys, want, side="right")
    pos: Array = lo + retired[hi] - retired[lo]
    late = np.flatnonzero((recvs["payload"] == KV) & (recvs["hold"] == STREAM) & (recvs["ahead"] == 0))
    attends = np.flatnonzero(steps["kind"] == ATTEND)
    if not len(late) or not len(attends):
        return pos
    first, _ = uses(recvs[late], want[late], steps, keys)
    before_group = np.searchsorted(attends, lo[late])
    k = np.searchsorted(attends, first) - before_group
    early = (first < 0) | (k < meta.stream_slots)
    anchor = attends[np.minimum(before_group + np.maximum(k - meta.stream_slots + 1, 0), len(attends) - 1)]
    pos[late] = np.where(early, pos[late], np.minimum(anchor, np.where(first < 0, anchor, first)))
    return pos


def _segments(steps: Array) -> Array:
    """Row of each entry of the `after` array, in row order."""
    return np.repeat(np.arange(len(steps)), steps["after_hi"] - steps["after_lo"])


def gather_after(sched: Schedule) -> tuple[Array, Array]:
    """(row, target) of each `after` entry, in row order."""
    steps = sched.steps
    segment = _segments(steps)
    if not len(segment):
        return segment, segment
    starts = np.cumsum(steps["after_hi"] - steps["after_lo"]) - (steps["after_hi"] - steps["after_lo"])
    offset = np.arange(len(segment)) - starts[segment]
    return segment, sched.after[steps["after_lo"][segment] + offset].astype(np.int64)


def _with_after(sched: Schedule, steps: Array, segment: Array, target: Array) -> Schedule:
    """Attach `after` entries (row, target); a merge's inputs stand in ascending (first maker, chunk, head)."""
    t = steps[target]
    plain = steps["kind"][segment] != MERGE
    rank = [np.where(plain, 0, t[name]) for name in ("h_lo", "c_lo", "m_lo")]
    order = np.lexsort((target, *rank, segment))
    counts = np.bincount(segment, minlength=len(steps)) if len(segment) else np.zeros(len(steps), dtype=np.int64)
    ends = np.cumsum(counts)
    steps["after_lo"], steps["after_hi"] = ends - counts, ends
    return sched.replace(steps=steps, after=target[order].astype("<i4"))


def place_recvs(sched: Schedule) -> Schedule:
    """Insert one receive per (send, receiver); merges that name a remote STATE send then name its receive."""
    if (sched.steps["kind"] == RECV).any():
        raise ValueError("the schedule has receives already")
    recvs = recv_table(sched)
    segment, target = gather_after(sched)
    num_rows = len(sched.steps)
    pos = np.concatenate([np.arange(num_rows), _positions(sched, recvs)]) if num_rows else np.empty(0, np.int64)
    is_row = np.concatenate([np.ones(num_rows, bool), np.zeros(len(recvs), bool)])
    node = np.concatenate([sched.steps["node"], recvs["node"]])
    group = np.concatenate([np.zeros(num_rows, np.int64), group_keys(recvs, sched.meta.num_chunks)])
    order = np.lexsort((np.arange(len(pos)), group, is_row, pos, node))
    new_row = np.empty(len(order), dtype=np.int64)
    new_row[order] = np.arange(len(order))
    recvs["ref"] = new_row[recvs["ref"]]
    steps = np.concatenate([sched.steps, recvs])[order] if len(recvs) else sched.steps.copy()
    segment, target = new_row[segment], new_row[target]
    target = _remote_to_recv(steps, segment, target, sched.meta.num_nodes)
    by_row = np.argsort(segment, kind="stable")
    return _with_after(sched, steps, segment[by_row], target[by_row])


def _remote_to_recv(steps: Array, segment: Array, target: Array, num_nodes: int) -> Array:
    """Replace `after` entries that name another node's send by this node's receive of it."""
    remote = np.flatnonzero(steps["node"][segment] != steps["node"][target])
    if not len(remote):
        return target
    rows = np.flatnonzero(steps["kind"] == RECV)
    key = steps["ref"][rows].astype(np.int64) * num_nodes + steps["node"][rows]
    order = np.argsort(key)
    want = target[remote] * num_nodes + steps["node"][segment[remote]]
    found = np.minimum(np.searchsorted(key[order], want), len(rows) - 1)
    hit = rows[order[found]]
    good = key[order[found]] == want
    out = target.copy()
    out[remote[good]] = hit[good]
    return out


def strip_recvs(sched: Schedule) -> Schedule:
    """Undo `place_recvs`: drop receives; merges name the remote STATE sends again."""
    steps = sched.steps
    keep = steps["kind"] != RECV
    segment, target = gather_after(sched)
    is_recv = steps["kind"][target] == RECV
    target = np.where(is_recv, steps["ref"][target], target) if len(target) else target
    new_row = np.cumsum(keep) - 1
    return _with_after(sched, steps[keep].copy(), new_row[segment], new_row[target])


@dataclass
class _Hop:
    """One plain send of an expanded tree: original row, from, to, hops from the root; forwards are inserted before
    `pos`.
    """

    row: int
    src: int
    dst: int
    depth: int
    pos: int


def unicast(sched: Schedule) -> Schedule:
    """Expand every multicast into plain sends, parents first; a forward stands before the first use of its set."""
    bare = strip_recvs(sched)
    steps = bare.steps
    trees = np.flatnonzero((steps["kind"] == SEND) & (steps["dst"] < 0))
    if not len(trees):
        return sched
    keys = group_keys(steps, bare.meta.num_chunks)
    hops = [hop for row in trees.tolist() for hop in _hops(bare, keys, row)]
    plain = np.flatnonzero((steps["kind"] != SEND) | (steps["dst"] >= 0))
    extra = steps[[h.row for h in hops]].copy()
    extra["node"], extra["dst"], extra["route"] = [h.src for h in hops], [h.dst for h in hops], NONE
    rows = np.concatenate([steps[plain], extra])
    pos = np.concatenate([plain, [h.pos for h in hops]])
    rank = np.concatenate([np.full(len(plain), len(rows)), [h.depth if h.depth else len(rows) for h in hops]])
    group = group_keys(rows, bare.meta.num_chunks)
    order = np.lexsort((np.arange(len(rows)), rank, group, pos, rows["node"]))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    segment, target = _expand_after(bare, plain, hops, place)
    out = rows[order]
    by_row = np.argsort(segment, kind="stable")
    return place_recvs(_with_after(bare, out, segment[by_row], target[by_row]))


def _hops(sched: Schedule, keys: Array, row: int) -> list[_Hop]:
    root = int(sched.steps[row]["node"])
    route: Route = sched.routes[int(sched.steps[row]["route"])]
    depth = {root: 0}
    out = []
    for a, b in route:
        depth[b] = depth[a] + 1
        out.append(_Hop(row, a, b, depth[a], row if a == root else _forward_position(sched, keys, row, a)))
    return out


def _forward_position(sched: Schedule, keys: Array, row: int, node: int) -> int:
    """Before the first attend of the node's group that uses the payload, else before its first attend, else at its end.

    States come last: only merges wait for them, and nothing of a layer waits for its merges.
    """
    step = sched.steps[row : row + 1].copy()
    step["node"] = node
    key = group_keys(step, sched.meta.num_chunks)[0]
    lo, hi = (int(x) for x in np.searchsorted(keys, [key, key + 1]))
    attends = lo + np.flatnonzero(sched.steps["kind"][lo:hi] == ATTEND)
    if not len(attends) or step["payload"] == STATE:
        return hi
    sets = sched.steps[attends]
    hit = intersects(sets, step) if step["payload"] == KV else sets["q"] == step["q"]
    return int(attends[hit.argmax()])


def _expand_after(sched: Schedule, plain: Array, hops: list[_Hop], place: Array) -> tuple[Array, Array]:
    """`after` entries in the new numbering: a merge's remote send becomes the hop that reaches its node; a root hop
    keeps its own.
    """
    segment, target = gather_after(sched)
    new_of = {int(r): int(place[i]) for i, r in enumerate(plain)}
    hop_to = {(h.row, h.dst): int(place[len(plain) + i]) for i, h in enumerate(hops)}
    roots: dict[int, list[int]] = {}
    seg_out: list[int] = []
    tgt_out: list[int] = []
    for i, h in enumerate(hops):
        row = int(place[len(plain) + i])
        if h.src == int(sched.steps[h.row]["node"]):
            roots.setdefault(h.row, []).append(row)
        elif sched.steps[h.row]["payload"] == STATE:  # a forwarded state is the one that arrived
            seg_out.append(row)
            tgt_out.append(hop_to[h.row, h.src])
    for s, t in zip(segment.tolist(), target.tolist(), strict=True):
        goal = new_of[t] if t in new_of else hop_to[t, int(sched.steps[s]["node"])]
        for row in [new_of[s]] if s in new_of else roots.get(s, []):
            seg_out.append(row)
            tgt_out.append(goal)
    return np.array(seg_out, dtype=np.int64), np.array(tgt_out, dtype=np.int64)


__all__ = [
    "KEEP",
    "STEP",
    "gather_after",
    "group_keys",
    "intersects",
    "is_retire",
    "place_recvs",
    "recv_table",
    "strip_recvs",
    "unicast",
    "uses",
]
