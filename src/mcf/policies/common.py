"""What several policies need: a builder for a request, orders of makers and receivers, and sets cut to fit."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mcf.cluster import Topology
from mcf.errors import InfeasibleError, UserError
from mcf.mars.placement import Links
from mcf.policies.request import PlanRequest
from mcf.schedule import Builder, cut
from mcf.schedule.builder import Range
from mcf.schedule.pieces import Cutter
from mcf.units import format_bytes


def has_relays(topology: Topology) -> bool:
    """Say whether some nodes reach others only by way of third ones."""
    return topology.name != "switch" and topology.num_nodes > 3


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
    if has_relays(topology):
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

    `arrivals[n]` are the other makers as their blocks reach node n: near ones first, then as roots send.
    `attends[n]` is the order in which node n attends what it streams: the same, but what it does not forward first. A
    receive that is posted late must not wait for a slot that is being forwarded from: round a ring of such waits nobody
    would move.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        nodes = range(topology.num_nodes)
        self._known: dict[tuple[int, ...], list[Children]] = {}
        self.arrivals = [self._arrivals(n) for n in nodes]
        self.attends = self.arrivals
        if has_relays(topology):
            self.attends = [_leaves_first(n, self.arrivals[n], self.to(list(nodes))) for n in nodes]

    def to(self, needers: list[int]) -> list[Children]:
        """For each maker, the neighbours to which each node passes its blocks on, so that they reach all needers."""
        key = tuple(needers)
        if key not in self._known:
            self._known[key] = [self._children(m, needers) for m in range(self.topology.num_nodes)]
        return self._known[key]

    def _children(self, maker: int, needers: list[int]) -> Children:
        links = self.topology.multicast(maker, [n for n in needers if n != maker])
        return {star.node: star.children for star in stars(links, [maker])}

    def _arrivals(self, node: int) -> list[int]:
        num_nodes = self.topology.num_nodes
        others = [m for m in range(num_nodes) if m != node]
        return sorted(others, key=lambda m: (self.topology.hops(m, node), (node - m) % num_nodes))


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
