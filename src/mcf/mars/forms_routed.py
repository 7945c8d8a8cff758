"""Closed forms of policies whose queries travel: pass-q and ulysses."""

from collections.abc import Iterator
from math import gcd

import numpy as np

from mcf.cluster import tree_numbers
from mcf.mars.form import Form, kv_bytes, own_bytes, traffic_of
from mcf.mars.job import Array, Job


def pass_q(j: Job) -> Form:
    """KV stays; queries go to all who hold what they may see, and states come back."""
    return _routed("pass-q", j, groups=1)


def ulysses(j: Job) -> Form:
    """KV is split by heads inside teams of gcd(KV heads, N) nodes; queries and states travel between all."""
    return _routed("ulysses", j, groups=gcd(j.shape.num_kv_heads, j.N))


def _routed(policy: str, j: Job, groups: int) -> Form:
    query, state = j.query_bytes * j.L // groups, j.state_bytes * j.L // groups
    queries = states = 0
    into, out = np.zeros(j.N, np.int64), np.zeros(j.N, np.int64)
    first = np.array(tree_numbers(j.topology, range(j.N), range(j.N)))
    for turn, asks, tokens in _rounds(j, groups):
        sent = asks * tokens[:, None]  # [q, n] tokens whose queries go from q to n, and whose states come back
        queries += int((_query_edges(j, asks, groups, first + turn) * tokens).sum()) * query
        states += int((sent.T * j.hops).sum()) * state
        into += sent.sum(0) * query + sent.sum(1) * state
        out += asks.reshape(j.N, -1, groups).any(1).sum(1) * tokens * query + sent.sum(0) * state
    new, new_into, new_out = _by_heads(j, groups)
    return Form(
        policy=policy,
        job=j,
        traffic=traffic_of(new, 0, queries, states),
        peak_bytes=own_bytes(j)[-1] if groups == 1 else _head_peaks(j, groups),
        into=into + new_into,
        out_of=out + new_out,
    )


def _rounds(j: Job, groups: int) -> Iterator[tuple[int, Array, Array]]:
    """(turn, [q, n] whether queries of q go to n, [N] tokens of q): once per turn where everybody asks everybody.

    Chunks take the topology's trees in turns.
    """
    every, turns = j.T[:-1].min(1) > 0, np.arange(len(j.t)) % j.topology.num_trees
    for turn in range(j.topology.num_trees):
        yield turn, ~np.eye(j.N, dtype=bool), j.t[every & (turns == turn)].sum(0)
    for c in np.flatnonzero(~every).tolist():
        yield int(turns[c]), _asks(j, c, groups), j.t[c]


def _asks(j: Job, c: int, groups: int) -> Array:
    """[N, N] whether queries of a node go to another: to those who hold, with their team, what they may see."""
    team = np.arange(j.N) // groups
    held, fresh = (np.bincount(team, weights=x)[team] > 0 for x in (j.T[c], j.t[c]))
    seen = np.asarray(j.sees(c).reshape(j.N, -1, groups).any(2))[:, team]
    asks = (held[None, :] | (fresh[None, :] & seen)) & (j.t[c] > 0)[:, None]
    out: Array = asks & ~np.eye(j.N, dtype=bool)
    return out


def _query_edges(j: Job, asks: Array, groups: int, turns: Array) -> Array:
    """[N] links of the trees that a node's queries take to all that it asks, one tree for each head group."""
    if j.topology.is_switch:
        return np.asarray(asks.sum(1))
    asked = [[[n for n in range(g, j.N, groups) if row[n]] for g in range(groups)] for row in asks]
    trees = (turns % j.topology.num_trees).tolist()
    lengths = ([len(j.topology.multicast(q, a, tree=tree)) for a in asked[q] if a] for q, tree in enumerate(trees))
    return np.array([sum(each) for each in lengths])


def _by_heads(j: Job, groups: int) -> tuple[int, Array, Array]:
    """New KV by heads to the other members of each maker's team: bytes over links, into and out of each node."""
    made = j.t.sum(0) * (kv_bytes(j) // groups)
    team = np.arange(j.N) // groups
    sent = made[:, None] * ((team[:, None] == team[None, :]) & ~np.eye(j.N, dtype=bool))
    return int((sent * j.hops).sum()), sent.sum(0), sent.sum(1)


def _head_peaks(j: Job, groups: int) -> Array:
    """[N] own heads of own and team blocks for ever; the heads of others for a chunk."""
    pages, page = j.pages(j.t), j.page_bytes * j.L // groups
    team = np.arange(j.N) // groups
    own = j.pages(j.T[1:]) + j.reserve_pages(j.T[-1]) + (groups - 1) * j.pages(j.generated)
    everybody = pages.cumsum(0)
    teams = np.stack([np.bincount(team, weights=row) for row in everybody])[:, team].astype(np.int64)
    return np.asarray(((own + teams - everybody + pages * (groups - 1)) * page).max(0))
