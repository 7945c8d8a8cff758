"""Table 1: prefill of 16K tokens on 2 to 16 nodes; seconds and volume of MARS, Ring and Zigzag."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from mcf.mars import C_ring, M_chunk
from mcf.sim import load_profile
from mcf.study import paper
from mcf.study.items import FITTED, IMPOSSIBLE, NOT_EXPLAINED, REPRODUCED, Item, claim
from mcf.study.lab import Lab, Outcome, Row
from mcf.study.study import Line, Panel, Study

NAME = "table1"
GB = 1e9
DIGIT_GB = 0.005  # half of the last printed digit; a printed 3.69 beside 3.70 is within it twice
RATIOS = (1.8, 3.2)  # Ring over MARS as published: 2.12 to 3.08
PROOF = (
    "eq. 20 cannot exceed eq. 21 at equal hop cost: a new block costs M(r-1) + M(N-r) = M(N-1) for any r, an older one "
    "M(N-r) <= M(N-1)"
)


def study(lab: Lab) -> Study:
    """Simulate the table on the fitted profile, and the same schedules on the hardware that is described."""
    ran = {(p, n): lab.run(paper.case(p, n)) for p in paper.TTFT_S for n in paper.NODES}
    board = {
        (p, n): lab.run(paper.case(p, n, profile=paper.PHYSICAL_PROFILE)) for p in paper.TTFT_S for n in paper.NODES
    }
    items = [*_volumes(ran), *_times(ran), *_impossible(board), *_claims(ran), *_physical(lab)]
    return Study(
        name=NAME,
        title="Table 1: 16K prefill on 2 to 16 nodes",
        settings=settings(),
        rows=(*(_row(lab, p, n, items) for p, n in ran), *_board_rows(lab)),
        items=tuple(items),
        panels=_panels(ran),
    )


def settings() -> str:
    """What was simulated, in a sentence."""
    return (
        "Qwen2.5-1.5B, INT4 weights and KV, 256 tokens per node and chunk, meshes of 2x1, 2x2, 4x2 and 4x4; seconds "
        f"are model time on {paper.FITTED_PROFILE} (fitted: not a machine) and {paper.PHYSICAL_PROFILE}."
    )


def _row(lab: Lab, policy: str, nodes: int, items: Iterable[Item]) -> Row:
    flags = {item.name: item.flag for item in items}
    name = _name(policy, nodes)
    return replace(
        lab.row(paper.case(policy, nodes), NAME),
        published={
            "ttft_s": paper.TTFT_S[policy][nodes],
            "traffic_bytes": paper.VOLUME_GB[policy][nodes] * GB,
        },
        flag={"ttft_s": flags[f"TTFT, {name}"], "traffic_bytes": flags[f"volume, {name}"]},
    )


def _board_rows(lab: Lab) -> list[Row]:
    return [
        lab.row(paper.case(p, n, profile=paper.PHYSICAL_PROFILE), NAME)
        for p, n in (*((p, n) for p in paper.TTFT_S for n in paper.NODES), ("gather", 16), ("full", 16))
    ]


def _name(policy: str, nodes: int) -> str:
    return f"{paper.NAMES[policy]}, N = {nodes}"


# --- volumes ---


def _volumes(ran: dict[tuple[str, int], Outcome]) -> list[Item]:
    out = []
    for (policy, n), outcome in ran.items():
        ours, published = outcome.traffic_bytes / GB, paper.VOLUME_GB[policy][n]
        if policy == "mars-paper":
            flag, why = NOT_EXPLAINED, f"ours {ours:.4f} is below Ring's {_closed_form_gb(n):.4f}; {PROOF}"
        else:
            flag = REPRODUCED if abs(ours - published) <= 2 * DIGIT_GB else NOT_EXPLAINED
            why = _ring_arithmetic(n)
        name = f"volume, {_name(policy, n)}"
        out.append(Item(study=NAME, name=name, flag=flag, arithmetic=why, ours=ours, published=published, unit="GB"))
    return out


def _closed_form_gb(nodes: int) -> float:
    """Eq. 21 in decimal GB."""
    chunk = paper.NODE_TOKENS * nodes
    rounds = paper.PROMPT_TOKENS // chunk
    return float(C_ring(M_chunk=M_chunk(chunk, paper.shape().kv_token_bytes), N=nodes, C=rounds)) / GB


def _ring_arithmetic(nodes: int) -> str:
    token, rounds = paper.shape().kv_token_bytes, paper.PROMPT_TOKENS // (paper.NODE_TOKENS * nodes)
    gib = _closed_form_gb(nodes) * GB / 2**30
    return (
        f"eq. 21: {paper.PROMPT_TOKENS} tokens x {token} B x (N-1 = {nodes - 1}) x ({rounds} rounds + 1)/2 = "
        f"{_closed_form_gb(nodes):.4f}e9 B; in GiB it would be {gib:.3f}: the column is decimal"
    )


# --- times ---


def _times(ran: dict[tuple[str, int], Outcome]) -> list[Item]:
    profile = load_profile(paper.FITTED_PROFILE)
    why = (
        f"a fit of four numbers to these twelve: {profile.flops_s / 1e12:.3g} TFLOP/s, {profile.link_bytes_s / GB:.3g} "
        f"GB/s per link, {profile.link_latency_s * 1e3:.3g} ms per hop, {profile.step_overhead_s * 1e6:.3g} us per step"
    )
    return [
        Item(
            study=NAME,
            name=f"TTFT, {_name(policy, n)}",
            flag=FITTED,
            arithmetic=why,
            ours=outcome.ttft_s,
            published=paper.TTFT_S[policy][n],
            unit="s",
        )
        for (policy, n), outcome in ran.items()
    ]


def _impossible(board: dict[tuple[str, int], Outcome]) -> list[Item]:
    return [
        Item(
            study=NAME,
            name=f"TTFT on the described boards, {_name(policy, n)}",
            flag=IMPOSSIBLE,
            arithmetic=implied(paper.TTFT_S[policy][n], n),
            ours=outcome.ttft_s,
            published=paper.TTFT_S[policy][n],
            unit="s",
        )
        for (policy, n), outcome in board.items()
    ]


def implied(ttft_s: float, nodes: int) -> str:
    """What a published time asks of a node, beside what the described node can do."""
    asked = paper.flops() / nodes / ttft_s
    return (
        f"{paper.flops():.3g} operations / {nodes} nodes / {ttft_s} s = {asked / 1e12:.2f} TFLOP/s per node; 127 DSPs "
        f"x 200 MHz x 2 = {paper.DSP_FLOPS_S / 1e12:.3f}, x 4 packed {paper.PACKED * paper.DSP_FLOPS_S / 1e12:.3f}; "
        f"the whole device {paper.DEVICE_FLOPS_S / 1e12:.1f}"
    )


def _physical(lab: Lab) -> list[Item]:
    """16K on the boards takes the same with every balanced context-parallel schedule: arithmetic is all there is."""
    names = ("mars-paper", "zigzag", "gather", "full")
    ran = [lab.run(paper.case(p, 16, profile=paper.PHYSICAL_PROFILE)) for p in names]
    times, bound = [outcome.ttft_s for outcome in ran], ran[0].bounds
    links = max(outcome.bounds.inbound_s for outcome in ran)
    profile = load_profile(paper.PHYSICAL_PROFILE)
    words = ", ".join(f"{name} {took:.1f}" for name, took in zip(names, times, strict=True))
    why = (
        f"{words} s; {paper.flops():.3g} operations / 16 nodes / {profile.flops_s / 1e9:.0f} GOP/s = "
        f"{bound.compute_s:.1f} s, while the links need at most {links:.2f} s: no schedule of KV changes it"
    )
    holds = max(times) < 1.02 * bound.compute_s and bound.limit == "compute"
    return [claim(NAME, "16K at N = 16 on the described boards: every balanced schedule takes the same", holds, why)]


# --- claims of section 6.5 and of the caption ---


def _claims(ran: dict[tuple[str, int], Outcome]) -> list[Item]:
    took = {key: outcome.ttft_s for key, outcome in ran.items()}
    moved = {key: outcome.traffic_bytes / GB for key, outcome in ran.items()}
    ratios = {n: took["ring", n] / took["mars-paper", n] for n in paper.NODES}
    mars = [took["mars-paper", n] for n in paper.NODES]
    order = all(took["mars-paper", n] < took["zigzag", n] <= took["ring", n] for n in paper.NODES)
    return [
        claim(
            NAME,
            "MARS is faster than Zigzag and Ring at all node counts, Zigzag no slower than Ring",
            order,
            "; ".join(f"N = {n}: " + " < ".join(f"{took[p, n]:.2f}" for p in _ORDER) for n in paper.NODES) + " s",
        ),
        claim(
            NAME,
            "Ring takes 1.8 to 3.2 times as long as MARS (published: 2.12 to 3.08)",
            all(RATIOS[0] <= ratio <= RATIOS[1] for ratio in ratios.values()),
            "; ".join(f"N = {n}: {ratio:.2f}, published {_published(n):.2f}" for n, ratio in ratios.items()),
            by_fit=True,
        ),
        claim(
            NAME,
            "MARS scales with the nodes, less than linearly (1.68 s at 2 nodes to 0.62 s at 16)",
            all(a > b for a, b in pairwise(mars)) and mars[0] / mars[-1] < 8,
            f"ours {mars[0]:.2f} to {mars[-1]:.2f} s: {mars[0] / mars[-1]:.2f} times; published "
            f"{_published_gain():.2f}; linear would be 8",
            by_fit=True,
        ),
        claim(
            NAME,
            "MARS moves slightly more than the streaming baselines at larger node counts",
            all(moved["mars-paper", n] > moved["ring", n] for n in (8, 16)),
            "ours: "
            + "; ".join(f"N = {n}: {moved['mars-paper', n]:.2f} against {moved['ring', n]:.2f} GB" for n in (8, 16))
            + f"; {PROOF}",
        ),
    ]


_ORDER = ("mars-paper", "zigzag", "ring")


def _published(nodes: int) -> float:
    return paper.TTFT_S["ring"][nodes] / paper.TTFT_S["mars-paper"][nodes]


def _published_gain() -> float:
    return paper.TTFT_S["mars-paper"][2] / paper.TTFT_S["mars-paper"][16]


def _panels(ran: dict[tuple[str, int], Outcome]) -> tuple[Panel, ...]:
    def lines(ours: dict[tuple[str, int], float], published: dict[str, dict[int, float]]) -> tuple[Line, ...]:
        out = []
        for p in paper.TTFT_S:
            out.append(Line(name=paper.NAMES[p], points=tuple((n, ours[p, n]) for n in paper.NODES)))
            theirs = tuple((n, published[p][n]) for n in paper.NODES)
            out.append(Line(name=f"{paper.NAMES[p]}, published", points=theirs, is_published=True))
        return tuple(out)

    took = {key: outcome.ttft_s for key, outcome in ran.items()}
    moved = {key: outcome.traffic_bytes / GB for key, outcome in ran.items()}
    title = f"16K prefill, {paper.FITTED_PROFILE} (model time)"
    return (
        Panel(title=title, x="nodes", y="TTFT (s)", lines=lines(took, paper.TTFT_S), is_log_x=True),
        Panel(title="Volume", x="nodes", y="GB", lines=lines(moved, paper.VOLUME_GB), is_log_x=True),
    )
