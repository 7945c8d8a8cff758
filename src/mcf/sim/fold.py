"""Equal nodes: where every node's list is node 0's with the nodes renamed, the clock of node 0 is everybody's.

A renaming turns node m into (m + n) mod N. `find_fold` checks row by row that a schedule, its seconds and its routes
look the same from every node n; then one list is simulated, with its receives fed by its own sends. Nothing is assumed:
what does not fit is simulated node by node. Both give the same times to the last bit, because ties on a line go by the
order of one node's list, never by a node's number.

Payloads are seen from their sender: a hop from a to b of node 0's send stands for the hops a + n to b + n of node n's.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mcf.cluster import SWITCH, Cluster
from mcf.schedule.passes import group_keys
from mcf.schedule.schedule import Array, Schedule
from mcf.schedule.steps import DECODE, RECV
from mcf.sim.profile import Profile
from mcf.trace import Trace

Link = tuple[int, int]
SAME = ("kind", "lane", "stage", "chunk", "c_lo", "c_hi", "h_lo", "h_hi", "payload", "hold", "ahead")


@dataclass(frozen=True)
class Turn:
    """The N renamings of N nodes."""

    num_nodes: int

    def moved(self, n: Array | int, m: Array) -> Array:
        """Nodes m, renamed so that node 0 becomes n."""
        out: Array = (m + n) % self.num_nodes
        return out

    def back(self, n: Array, m: Array) -> Array:
        """Nodes m, renamed so that node n becomes 0."""
        out: Array = (m - n) % self.num_nodes
        return out

    def line(self, link: Link) -> Link:
        """The link or port of node 0 that stands for a link or port."""
        a, b = link
        if SWITCH in link:
            return (a, 0) if a == SWITCH else (0, b)
        return (a - b) % self.num_nodes, 0

    def lines(self, link: Link) -> Iterator[Link]:
        """All links or ports that one of node 0 stands for."""
        a, b = link
        for n in range(self.num_nodes):
            yield tuple(end if end == SWITCH else (end + n) % self.num_nodes for end in (a, b))  # type: ignore[misc]

    def range_starts(self, n: Array, lo: Array, hi: Array) -> Array:
        """First node of renamed ranges: of single nodes and of all; -1 for others, which may wrap round."""
        return np.where(hi - lo == 1, self.moved(n, lo), np.where(hi - lo == self.num_nodes, 0, -1))


@dataclass(frozen=True, kw_only=True, eq=False)
class Fold:
    """`schedule` holds node 0's prefill rows alone, `seconds` [P] what they take; `first` [N] each node's first row."""

    schedule: Schedule
    seconds: Array
    first: Array
    turn: Turn

    def trace(self, one: Trace) -> Trace:
        """The trace of all nodes, from that of node 0 and what its sends cause."""
        num, size = len(self.first), len(one.events)
        nodes = np.repeat(np.arange(num), size)
        events = np.tile(one.events, num)
        events["row"] += self.first.astype(np.int32)[nodes]
        for name in ("node", "peer"):
            known = events[name] >= 0
            events[name] = np.where(known, self.turn.moved(nodes, events[name]), events[name])
        reserve, moving = one.memory[:num]["bytes_in_use"], one.memory[num:]  # what each node starts with, and the rest
        memory = np.tile(moving, num)
        memory["node"] = np.repeat(np.arange(num), len(moving))
        memory["bytes_in_use"] += (reserve - reserve[0])[memory["node"]]
        order = np.lexsort((events["row"], events["t_start"]))
        return Trace(events=events[order], memory=np.concatenate([one.memory[:num], memory]), meta=one.meta)

    def link_bytes(self, one: dict[tuple[int, int, str], int]) -> dict[tuple[int, int, str], int]:
        """Bytes per (from, to, purpose) of all nodes' sends, from those of node 0's."""
        out: dict[tuple[int, int, str], int] = {}
        for (a, b, purpose), num_bytes in one.items():
            for x, y in self.turn.lines((a, b)):
                out[x, y, purpose] = out.get((x, y, purpose), 0) + num_bytes
        return dict(sorted(out.items()))

    def link_busy(self, one: dict[Link, float]) -> dict[Link, float]:
        """Seconds that each link or port was occupied, from those of node 0."""
        return {other: busy for link, busy in one.items() for other in self.turn.lines(link)}


def find_fold(sched: Schedule, seconds: Array, cluster: Cluster, profile: Profile) -> Fold | None:
    """The fold of a schedule whose nodes are all alike, on equal nodes and links; None where they are not."""
    num_nodes, tokens = sched.meta.num_nodes, sched.tokens
    has_own = cluster.links or profile.links or any(node.numbers for node in profile.nodes)
    if num_nodes == 1 or has_own or len(sched.owners) or (tokens != tokens[:, :1]).any():
        return None
    lists = _Lists.of(sched, seconds)
    if lists is None:
        return None
    turn = Turn(num_nodes)
    alike = lists.are_alike(turn, np.arange(2)) and lists.are_alike(turn, np.arange(num_nodes))  # the first is cheap
    return lists.fold(turn) if alike else None


def turned(sched: Schedule) -> Schedule:
    """The schedule with receives that are posted in a row ordered by how far behind their senders stand.

    `place_recvs` orders them by their senders' numbers, which looks another way from every node. The order says nothing
    but who comes first where two payloads reach a port at the same moment; memory and laws are the same.
    """
    s, num_nodes = sched.steps, sched.meta.num_nodes
    is_recv = s["kind"] == RECV
    keys = group_keys(s, sched.meta.num_chunks)
    runs = np.cumsum(~is_recv | np.concatenate([[True], ~is_recv[:-1] | (keys[1:] != keys[:-1])]))
    behind = np.where(is_recv & (s["stage"] != DECODE), (s["node"] - s["dst"]) % num_nodes, 0)
    order = np.lexsort((s["ref"], behind, runs))
    place = np.empty(len(s), dtype="<i4")
    place[order] = np.arange(len(s))
    steps = s[order]
    recvs = steps["kind"] == RECV
    steps["ref"][recvs] = place[steps["ref"][recvs]]
    return sched.replace(steps=steps, after=place[sched.after])


@dataclass(frozen=True, kw_only=True, eq=False)
class _Lists:
    """The nodes' lists, all of `size` prefill rows, from `first` [N] on; `after_first` [N] their first `after`."""

    sched: Schedule
    seconds: Array
    first: Array
    after_first: Array
    size: int

    @classmethod
    def of(cls, sched: Schedule, seconds: Array) -> "_Lists | None":
        """Cut a schedule into lists of equal length, decode rows left out; None where they are not equal."""
        s, bounds = sched.steps, sched.node_bounds
        first, upto = bounds[:-1], np.concatenate([[0], np.cumsum(s["stage"] != DECODE)])
        sizes = upto[bounds[1:]] - upto[first]
        if (
            sizes[0] == 0
            or s["after_lo"][0]
            or (sizes != sizes[0]).any()
            or (upto[first + sizes] - upto[first] != sizes).any()
        ):
            return None
        after_first = s["after_lo"][first].astype(np.int64)
        return cls(sched=sched, seconds=seconds, first=first, after_first=after_first, size=int(sizes[0]))

    def fold(self, turn: Turn) -> Fold:
        """Node 0's list as a schedule of its own: its receives name its own sends."""
        steps = self.sched.steps[: self.size].copy()
        recvs = steps["kind"] == RECV
        steps["ref"][recvs] -= self.first[steps["dst"][recvs]].astype("<i4")
        folded = self.sched.replace(steps=steps, after=self.sched.after[: steps["after_hi"][-1]])
        return Fold(schedule=folded, seconds=self.seconds[: self.size], first=self.first, turn=turn)

    def are_alike(self, turn: Turn, nodes: Array) -> bool:
        """Say whether the lists of some nodes, 0 first, are node 0's with the nodes renamed."""
        same = all(self._is_same(self._column(name, nodes)) for name in SAME)
        return same and self._same_work(nodes) and self._same_after(nodes) and self._same_nodes(turn, nodes)

    def _rows(self, nodes: Array) -> Array:
        out: Array = self.first[nodes][:, None] + np.arange(self.size)
        return out

    def _column(self, name: str, nodes: Array) -> Array:
        out: Array = self.sched.steps[name][self._rows(nodes)]
        return out

    @staticmethod
    def _is_same(table: Array) -> bool:
        return bool((table == table[:1]).all())

    def _same_work(self, nodes: Array) -> bool:
        rows = self._rows(nodes)
        return self._is_same(self.seconds[rows]) and self._is_same(self.sched.row_bytes[rows])

    def _same_after(self, nodes: Array) -> bool:
        """`after` lists stand one behind the other and name the same places; in which order is nobody's concern."""
        lo, hi = self._column("after_lo", nodes), self._column("after_hi", nodes)
        start = self.after_first[nodes][:, None]
        if not self._is_same(lo - start) or not self._is_same(hi - start) or (lo[0, 1:] != hi[0, :-1]).any():
            return False
        entries = start + np.arange(hi[0, -1] - lo[0, 0])
        places = self.sched.after[entries] - self.first[nodes][:, None]
        rows = np.repeat(np.arange(self.size), hi[0] - lo[0])
        return self._is_same(np.sort(rows * self.size + places, axis=1))

    def _same_nodes(self, turn: Turn, nodes: Array) -> bool:
        """Block sets, queries, receivers, senders and routes are renamed as the node is."""
        lo, hi = self._column("m_lo", nodes), self._column("m_hi", nodes)
        if not self._is_same(hi - lo) or (lo != turn.range_starts(nodes[:, None], lo[0], hi[0])).any():
            return False
        for name in ("q", "dst"):
            ends = self._column(name, nodes)
            if (ends != np.where(ends[0] >= 0, turn.moved(nodes[:, None], ends[0]), ends[0])).any():
                return False
        refs, senders = self._column("ref", nodes), self._column("dst", nodes)
        places = np.where(self._column("kind", nodes) == RECV, refs - self.first[senders], refs)
        return self._is_same(places) and self._same_routes(turn, nodes)

    def _same_routes(self, turn: Turn, nodes: Array) -> bool:
        """Routes are trees, or single links, and renamed as their root is."""
        used = self._column("route", nodes)
        if ((used < 0) != (used[0] < 0)).any():
            return False
        long = self._column("dst", nodes[:1])[0] >= 0
        if any(len(self.sched.routes[route]) > 1 for route in np.unique(used[0][long & (used[0] >= 0)]).tolist()):
            return False
        routes = {route: np.array(self.sched.routes[route]) for route in np.unique(used[used >= 0]).tolist()}
        for node, mine in zip(nodes.tolist(), used, strict=True):
            pairs = np.unique(np.stack([used[0], mine], 1)[mine >= 0], axis=0)
            for ours, theirs in pairs.tolist():
                if not np.array_equal(_codes(turn.moved(node, routes[ours])), _codes(routes[theirs])):
                    return False
        return True


def _codes(edges: Array) -> Array:
    """A number for each edge [E, 2], ascending."""
    out: Array = np.sort(edges[:, 0].astype(np.int64) * 2**32 + edges[:, 1])
    return out
