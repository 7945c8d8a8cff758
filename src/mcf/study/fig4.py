"""Figure 4: KV memory and replica factor of MARS during 16K prefill on 8 and 16 nodes, and where they end."""

from dataclasses import dataclass

import numpy as np

from mcf.schedule.memory import own_bytes
from mcf.sim import load_profile
from mcf.study import paper
from mcf.study.items import NOT_EXPLAINED, Item, claim
from mcf.study.lab import Case, Lab, Outcome
from mcf.study.study import Line, Panel, Study

NAME = "fig4"
NODES = (8, 16)
NODE_TOKENS = 64  # a page per node and chunk: many steps, as the figure has
MEMORY = 3.0  # times a node's own share: the figure does not say; less does not hold 16 nodes' layer slots
MB = 1e6


@dataclass(frozen=True, kw_only=True)
class Curve:
    """After each chunk, on the fullest node: bytes with replicas and slots, bytes owner-only; copies per token."""

    with_copies: tuple[float, ...]
    owner_only: tuple[float, ...]
    factor: tuple[float, ...]
    at_end: tuple[int, ...]  # [N] bytes when everything has drained
    owned: tuple[int, ...]  # [N] bytes of the owners' pages


def study(lab: Lab) -> Study:
    """Simulate both sizes and read the memory samples of their traces."""
    cases = {n: _case(n) for n in NODES}
    ran = {n: lab.run(case) for n, case in cases.items()}
    curves = {n: curve(outcome) for n, outcome in ran.items()}
    return Study(
        name=NAME,
        title="Figure 4: memory of MARS during 16K prefill",
        settings=f"as Table 1, but {NODE_TOKENS} tokens per node and chunk and a KV budget of {MEMORY:g} times a "
        "node's own share: the figure says neither.",
        rows=tuple(lab.row(case, NAME) for case in cases.values()),
        items=(*_claims(ran, curves), _pressure()),
        panels=(*(_memory_panel(n, curves[n]) for n in NODES), _factor_panel(curves)),
    )


def _case(nodes: int) -> Case:
    return paper.case("mars-paper", nodes, node_tokens=NODE_TOKENS, memory=MEMORY)


def curve(ran: Outcome) -> Curve:
    """Read the curves from the simulated trace's memory samples and the replay's report."""
    memory, meta = ran.result.trace.memory, ran.schedule.meta
    own = own_bytes(ran.schedule)
    most = [int(memory["bytes_in_use"][memory["chunk"] == c].max()) for c in range(meta.num_chunks)]
    ends = [memory["bytes_in_use"][memory["node"] == n][-1] for n in range(meta.num_nodes)]
    return Curve(
        with_copies=tuple(float(x) for x in most),
        owner_only=tuple(float(x) for x in own[1:].max(1)),
        factor=ran.report.replica_factor,
        at_end=tuple(int(x) for x in ends),
        owned=tuple(int(x) for x in own[-1]),
    )


def _claims(ran: dict[int, Outcome], curves: dict[int, Curve]) -> list[Item]:
    out: list[Item] = []
    for n, c in curves.items():
        over = [a / b for a, b in zip(c.with_copies, c.owner_only, strict=True)]
        chunks, half = len(over), len(over) // 2
        falls = bool((np.diff(over) <= 1e-9).mean() > 0.8 and over[-1] < over[0])
        out += [
            claim(
                NAME,
                f"N = {n}: more memory than owner-only in the early and middle stages",
                min(over[: half + 1]) > 1.5,
                f"fullest node over owner-only: {over[0]:.1f} times after chunk 1 of {chunks}, {over[half]:.1f} "
                f"after chunk {half + 1}; the peak is {max(c.with_copies) / MB:.1f} MB of {_budget(ran[n]) / MB:.1f}",
            ),
            claim(
                NAME,
                f"N = {n}: what is held beyond owner-only shrinks as prefill goes on",
                falls,
                f"{over[0]:.1f} times at first, {over[half]:.1f} in the middle, {over[-1]:.1f} in the last chunk "
                "(layer slots included)",
            ),
            claim(
                NAME,
                f"N = {n}: it ends owner-only, balanced",
                c.at_end == c.owned and max(c.owned) - min(c.owned) <= _page_bytes(ran[n]),
                f"{min(c.at_end)} to {max(c.at_end)} bytes per node at the end; owners' pages are {min(c.owned)} to "
                f"{max(c.owned)}",
            ),
            claim(
                NAME,
                f"N = {n}: the replica factor starts high, falls, and ends at 1",
                c.factor[0] > n * 0.9 and bool((np.diff(c.factor) <= 0.05).all()) and c.at_end == c.owned,
                f"copies per token {c.factor[0]:.1f} after chunk 1, {c.factor[half]:.1f} after chunk {half + 1}, "
                f"{c.factor[-1]:.1f} after the last, then all replicas drain: 1",
            ),
        ]
    return out


def _budget(ran: Outcome) -> int:
    return ran.schedule.meta.budgets[0]


def _page_bytes(ran: Outcome) -> int:
    return ran.schedule.meta.page_bytes * ran.schedule.meta.num_layers


def _pressure() -> Item:
    """Where the memory pressure of the figure would come from."""
    token, board = paper.shape().kv_token_bytes, load_profile(paper.PHYSICAL_PROFILE)
    weights = paper.shape().num_weights * board.weight_bytes
    whole = token * paper.PROMPT_TOKENS
    return Item(
        study=NAME,
        name="Memory pressure makes replicas drain at 16K",
        flag=NOT_EXPLAINED,
        arithmetic=f"{paper.PROMPT_TOKENS} tokens x {token} B = {whole / MB:.0f} MB = {whole / board.memory_bytes:.1%} "
        f"of a {board.memory_bytes / 1e9:.0f} GB board: copies of everything fit up to "
        f"{(board.memory_bytes - weights) / token / 1e3:.0f}K tokens beside the weights; a budget must be made up",
    )


def _memory_panel(nodes: int, c: Curve) -> Panel:
    def line(name: str, values: tuple[float, ...]) -> Line:
        return Line(name=name, points=tuple((i + 1, v / MB) for i, v in enumerate(values)))

    end = Line(name="after convergence", points=((len(c.factor) + 1, max(c.at_end) / MB),))
    lines = (line("MARS, fullest node", c.with_copies), line("owner-only", c.owner_only), end)
    return Panel(title=f"KV memory, N = {nodes}", x="chunk", y="MB per node", lines=lines)


def _factor_panel(curves: dict[int, Curve]) -> Panel:
    lines = tuple(
        Line(name=f"N = {n}", points=(*((i + 1, f) for i, f in enumerate(c.factor)), (len(c.factor) + 1, 1.0)))
        for n, c in curves.items()
    )
    return Panel(title="Active replica factor", x="chunk", y="copies per token", lines=lines)
