"""Table 2: decoding and power. Its columns are checked against each other, and decode against what memory allows."""

from dataclasses import replace

from mcf.sim import load_profile
from mcf.study import paper
from mcf.study.items import FITTED, NOT_EXPLAINED, REPRODUCED, Item, claim
from mcf.study.lab import Lab
from mcf.study.study import Study

NAME = "table2"
# name -> (tokens per second, watts, printed efficiency in tokens per second and watt), as printed; a node each but MCF
COLUMNS: dict[str, tuple[float, float, float]] = {
    "LightMamba": (7.21, 3.2, 0.87),
    "Hummingbird, U250": (19.4, 14.61, 1.51),
    "Li et al.": (4.9, 6.57, 0.74),
    "LlamaF": (1.48, 5.08, 0.09),
    "Hummingbird, ZCU104": (8.6, 7.09, 1.39),
    "Hummingbird, KV260": (4.8, 3.81, 1.44),
    "TeLLMe": (25, 5, 5.0),
    "MEADOW": (2.0, 10, 0.20),
    "MCF, 4 nodes": (17.3, 4 * 4.52, 0.81),
}
TOKENS_S = 17.3
DIGIT = 0.005  # half of the last printed digit
DECODE_PROMPTS = (2048, 16384)


def study(lab: Lab) -> Study:
    """Check the columns; no schedule is simulated but for the bytes of a decoded token."""
    cases = [replace(paper.case("mars-paper", 4, prompt_tokens=s)) for s in DECODE_PROMPTS]
    moved = [sum(lab.run(case).report.decode_traffic.values()) for case in cases]
    return Study(
        name=NAME,
        title="Table 2: decoding and power",
        settings="columns as printed; what a decoded token moves is that of MARS's schedules on 4 nodes.",
        rows=tuple(lab.row(case, NAME) for case in cases),
        items=(*(_efficiency(name) for name in COLUMNS), _bandwidth(), _arithmetic(), _stationary(moved)),
    )


def _efficiency(name: str) -> Item:
    tokens_s, watts, printed = COLUMNS[name]
    ours = tokens_s / watts
    return Item(
        study=NAME,
        name=f"power efficiency, {name}",
        flag=REPRODUCED if abs(ours - printed) <= DIGIT + 0.01 * printed else NOT_EXPLAINED,
        arithmetic=f"{tokens_s:g} tokens/s / {watts:g} W = {ours:.2f}; printed {printed:g}",
        ours=ours,
        published=printed,
        unit="tokens/s/W",
    )


def _weight_bytes() -> float:
    return paper.shape().num_weights * load_profile(paper.PHYSICAL_PROFILE).weight_bytes


def _bandwidth() -> Item:
    """Every node reads all weights for each token: there is no tensor parallelism."""
    speed = load_profile(paper.PHYSICAL_PROFILE).memory_bytes_s
    most = speed / _weight_bytes()
    return Item(
        study=NAME,
        name="decode, tokens per second of the cluster",
        flag=FITTED,
        arithmetic=f"{_weight_bytes() / 1e9:.2f}e9 B of INT4 weights per token at {speed / 1e9:.1f}e9 B/s: at most "
        f"{most:.1f} tokens/s; {TOKENS_S} is {TOKENS_S / most:.0%} of it: plausible, and more nodes do not help",
        ours=most,
        published=TOKENS_S,
        unit="tokens/s",
    )


def _arithmetic() -> Item:
    """The same boards' prefill in operations per second beside their decode."""
    decode = 2 * paper.shape().num_weights * TOKENS_S
    prefill = paper.flops() / 4 / paper.TTFT_S["mars-paper"][4]
    return claim(
        NAME,
        "Decode and prefill (Table 1) are of the same boards",
        prefill / decode < paper.PACKED,
        f"decode: 2 x {paper.shape().num_weights:.3g} weights x {TOKENS_S} = {decode / 1e9:.0f} GFLOP/s on a node; "
        f"prefill: {prefill / 1e9:,.0f} GFLOP/s per node at N = 4, {prefill / decode:.0f} times as much",
    )


def _stationary(moved: list[int]) -> Item:
    return claim(
        NAME,
        "What a decoded token moves does not grow with the context",
        len(set(moved)) == 1,
        "; ".join(f"{size:,} B per token behind {s} tokens" for s, size in zip(DECODE_PROMPTS, moved, strict=True)),
    )
