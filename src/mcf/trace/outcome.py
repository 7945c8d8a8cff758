"""What an executor that is given tensors returns: tensors, trace, residency, peaks, certificate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcf.schedule.kv import ABSENT, ARRIVING, DRAINING, STREAMED, VALID
from mcf.trace import Trace

Array = NDArray[Any]
NO_HOLDER, MANY_HOLDERS = -1, -2
Change = tuple[int, int, int, int, int]


@dataclass(frozen=True, kw_only=True, eq=False)
class Residency:
    """Which blocks each node holds after each row of its own list, as seen in layer 0.

    `changes[n]` are (list position, chunk, maker, head group, new state) in list order; `shape` is (C, N, G). Codes are
    those of `mcf.schedule.kv`; a copy whose receive is posted counts as valid, because its memory is taken.
    """

    shape: tuple[int, int, int]
    changes: tuple[tuple[Change, ...], ...]

    def at(self, node: int, position: int) -> NDArray[np.uint8]:
        """Return the states [C, N, G] on a node after row `position` of its list (-1: before the first)."""
        out = np.full(self.shape, ABSENT, dtype=np.uint8)
        for at, chunk, maker, group, state in self.changes[node]:
            if at > position:
                break
            out[chunk, maker, group] = VALID if state == ARRIVING else state
        return out

    def end(self, node: int) -> NDArray[np.uint8]:
        """Return the states [C, N, G] on a node after its whole list."""
        return self.at(node, self.changes[node][-1][0] if self.changes[node] else -1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Certificate:
    """The layout at the end of prefill, read from the nodes' own directories after the converge section.

    `holder` [C, N, G]: the one node that holds the block in every layer; `NO_HOLDER` (also where a block has no
    tokens), `MANY_HOLDERS`. `tokens` [N]: prompt tokens that each node holds, weighted by its share of the KV heads.
    """

    holder: Array
    tokens: tuple[float, ...]
    is_exact: bool


def certify(directories: Sequence[Array], tokens: Array, head_weights: Array) -> Certificate:
    """Read the certificate from one directory [C, N, G, L] per node; `tokens` [C, N], `head_weights` [G]."""
    whole = np.stack([(d == VALID).all(-1) for d in directories])
    touched = np.stack([np.isin(d, (ARRIVING, VALID, DRAINING, STREAMED)).any(-1) for d in directories])
    count = whole.sum(0)
    holder = np.where(count == 1, whole.argmax(0), np.where(count == 0, NO_HOLDER, MANY_HOLDERS))
    live = np.broadcast_to((tokens > 0)[:, :, None], count.shape)
    weight = tokens[:, :, None] * head_weights
    return Certificate(
        holder=holder,
        tokens=tuple(float((w * weight).sum()) for w in whole),
        is_exact=bool((count[live] == 1).all() and (touched.sum(0)[live] == 1).all()),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What `run` saw: `out` [L, S+T, Hq, d] float64 attention outputs, `peak_bytes` [N] KV memory in use at most."""

    out: Array
    trace: Trace
    residency: Residency
    peak_bytes: tuple[int, ...]
    certificate: Certificate
