"""What several policies need: a builder for a request, orders of makers and receivers, and sets cut to fit."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mcf.cluster import Topology, tree_numbers
from mcf.errors import InfeasibleError, UserError
from mcf.mars.placement import Links
from mcf.policies.request import PlanRequest
from mcf.schedule import Builder, cut
from mcf.schedule.builder import Range
from mcf.schedule.pieces import Cutter
from mcf.schedule.schedule import Route
from mcf.units import format_bytes


def check_slots(policy: str, request: PlanRequest, *, forwards: bool) -> None:
    """Refuse a single stream slot where streams are forwarded: the next one comes in while the last one goes out."""
    if forwards and request.stream_slots < 2:
        raise UserError(
            f"got {request.stream_slots} stream slot for policy {policy} on a {request.cluster.topology.name} of "
            f"{request.num_nodes} nodes, where streams are forwarded: expected at least 2"
        )


def start(policy: str, request: PlanRequest, cutter: Cutter) -> Builder:
    """An empty schedule for a request, its prompt cut into pieces."""
    pieces = cut(request.prompt_tokens, request.chunk_tokens, request.num_nodes, cutter)
    return Builder(request.meta(policy), pieces)


class Sight:
    """Which blocks the queries of a node may see: all history, and new blocks with a position not after its last."""

    def __init__(self, b: Builder) -> None:
        p, size = b.pieces, (b.num_chunks, b.meta.num_nodes)
        first, last = np.full(size, b.meta.prompt_tokens), np.full(size, -1)
        np.minimum.at(first, (p["chunk"], p["node"]), p["lo"])
        np.maximum.at(last, (p["chunk"], p["node"]), p["hi"] - 1)
        self._first, self._last = first.tolist(), last.tolist()

    def chunks(self, node: int, maker: int, chunk: int) -> Range:
        """Chunks whose blocks of a maker a node's queries of a chunk attend."""
        return 0, chunk + 1 if self._first[chunk][maker] <= self._last[chunk][node] else chunk


def receivers(b: Builder, topology: Topology, chunk: int) -> list[int]:
    """Nodes that need other nodes' KV in a chunk: those with queries; on a topology with relays, every node."""
    nodes = range(topology.num_nodes)
    if topology.has_relays:
        return list(nodes)
    return [n for n in nodes if b.has_tokens(n, chunk)]


class Star(NamedTuple):
    """A node sends to its neighbours what it made (depth 0) or what has made `depth` hops."""

    depth: int
    node: int
    children: list[int]


def stars(links: Links, roots: Iterable[int]) -> list[Star]:
    """A forest as stars of direct links, parents first: a policy writes every hop, so that it can order them."""
    depth = dict.fromkeys(roots, 0)
    out: dict[int, Star] = {}
    for a, b in links:
        depth[b] = depth[a] + 1
        out.setdefault(a, Star(depth[a], a, [])).children.append(b)
    return list(out.values())


Children = dict[int, list[int]]


class Trees:
    """Who sends to whom when blocks go from their makers to everybody who needs them, and in which order they arrive.

    Where the topology has two trees of shortest ways (x first, y first), each maker's blocks take one of them in even
    chunks and the other in odd ones: half each; which one first is chosen so that the links are loaded evenly.
    `arrivals[n]` are the other makers as their blocks reach node n: near ones first, then as roots send.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.nodes = list(range(topology.num_nodes))
        self._known: dict[tuple[tuple[int, ...], int], list[Children]] = {}
        self._orders: dict[int, list[list[int]]] = {}
        self._first = tree_numbers(topology, self.nodes, self.nodes)
        far = [topology.distances(m) for m in self.nodes]
        self.arrivals = [self._arrivals(n, far) for n in self.nodes]

    def number(self, maker: int, chunk: int) -> int:
        """The tree that a maker's blocks, queries and states take in a chunk."""
        return (self._first[maker] + chunk) % self.topology.num_trees

    def route(self, node: int, dsts: Iterable[int], chunk: int) -> Route | None:
        """The tree from a node to others in a chunk; None where there is only one."""
        ends = [dst for dst in dsts if dst != node]
        if self.topology.num_trees == 1 or not ends or (len(ends) == 1 and self.topology.has_link(node, ends[0])):
            return None
        return self.topology.multicast(node, ends, tree=self.number(node, chunk))

    def back(self, node: int, q: int, chunk: int) -> Route | None:
        """The way of a state from a node to the queries' node q: the tree of the queries in reverse, where links allow.

        So all states for q travel up one tree, and a network that can merge them meets them all.
        """
        if node == q or self.topology.num_trees == 1:
            return None
        way = self.topology.route(q, node, tree=self.number(q, chunk))
        turned = tuple((b, a) for a, b in reversed(way))
        has_links = all(self.topology.has_link(*edge) for edge in turned)
        return turned if has_links and len(turned) > 1 else self.route(node, [q], chunk)

    def to(self, needers: list[int], chunk: int) -> list[Children]:
        """For each maker, the neighbours to which each node passes its blocks on, so that they reach all needers."""
        key = tuple(needers), chunk % self.topology.num_trees
        if key not in self._known:
            self._known[key] = [self._children(m, needers, chunk) for m in self.nodes]
        return self._known[key]

    def attends(self, node: int, chunk: int) -> list[int]:
        """The order in which a node attends what it streams: `arrivals`, but what it does not forward first.

        A receive that is posted late must not wait for a slot that is being forwarded from: round a ring of such waits
        nobody would move.
        """
        if not self.topology.has_relays:
            return self.arrivals[node]
        turn = chunk % self.topology.num_trees
        if turn not in self._orders:
            trees = self.to(self.nodes, chunk)
            self._orders[turn] = [_leaves_first(n, self.arrivals[n], trees) for n in self.nodes]
        return self._orders[turn][node]

    def _children(self, maker: int, needers: list[int], chunk: int) -> Children:
        others = [n for n in needers if n != maker]
        links = self.topology.multicast(maker, others, tree=self.number(maker, chunk))
        return {star.node: star.children for star in stars(links, [maker])}

    def _arrivals(self, node: int, far: list[list[int]]) -> list[int]:
        num_nodes = self.topology.num_nodes
        others = [m for m in self.nodes if m != node]
        return sorted(others, key=lambda m: (far[m][node], (node - m) % num_nodes))


def _leaves_first(node: int, makers: list[int], trees: list[Children]) -> list[int]:
    return sorted(makers, key=lambda m: node in trees[m])


def windows(b: Builder, chunks: Range, maker: int) -> Iterator[Range]:
    """Cut a maker's chunk range so that each part fits the propagation buffer; the whole range where there is no bound.

    Raises InfeasibleError when a single block does not fit.
    """
    lo, limit = chunks[0], b.meta.buffer_bytes
    if not limit:
        yield chunks
        return
    for hi in range(lo + 1, chunks[1] + 1):
        if _slot_bytes(b, (hi - 1, hi), maker) > limit:
            raise _too_large(b, hi - 1, maker)
        if _slot_bytes(b, (lo, hi), maker) > limit:
            yield lo, hi - 1
            lo = hi - 1
    if lo < chunks[1]:
        yield lo, chunks[1]


def rectangles(runs: Mapping[int, Sequence[Range]]) -> list[tuple[Range, Range]]:
    """Merge chunk ranges per maker into (chunk range, maker range) sets: neighbours with the same range become one."""
    out: list[tuple[Range, Range]] = []
    for maker in sorted(runs):
        for run in runs[maker]:
            found = next((i for i, (chunks, makers) in enumerate(out) if chunks == run and makers[1] == maker), None)
            if found is None:
                out.append((run, (maker, maker + 1)))
            else:
                out[found] = (run, (out[found][1][0], maker + 1))
    return out


def _slot_bytes(b: Builder, chunks: Range, maker: int) -> int:
    return b.meta.pages(b.tokens_in(chunks, (maker, maker + 1))) * b.meta.page_bytes


def _too_large(b: Builder, chunk: int, maker: int) -> InfeasibleError:
    tokens, need = b.tokens_in((chunk, chunk + 1), (maker, maker + 1)), _slot_bytes(b, (chunk, chunk + 1), maker)
    return InfeasibleError(
        f"got a propagation buffer of {format_bytes(b.meta.buffer_bytes)}: expected at least {format_bytes(need)}, "
        f"which the {tokens} tokens of one block need per layer; enlarge the buffer or choose "
        f"{'another policy' if b.meta.policy == 'one-shot' else 'smaller chunks'}",
        missing_bytes=need - b.meta.buffer_bytes,
    )
