"""A decode step on the simulated hardware against model time on `kr260-rtl`, part by part: for `calibrate.py --decode`.

The hardware runs what `mcf rtl sim --decode` runs on whole nodes: one layer's attention of the paper's model on INT4
keys and values, its states merged up a tree, and one product. The model is what `mcf sim run` prints with
`decode = true`, but for the link layers: that command leaves them out, and they are 6 of a hop's 16 cycles.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mcf.cli.rtl_decode import read_case
from mcf.cluster import Cluster
from mcf.model import named_shape
from mcf.policies import PlanRequest, plan
from mcf.rtl.decode_image import random_source
from mcf.rtl.decode_run import run_decode
from mcf.rtl.run import CLOCK_HZ
from mcf.sim import Profile, TokenParts, token_parts

MODEL = "qwen2.5-1.5b"
STEPS = ((4, 16384), (2, 512), (8, 2048), (16, 4096))  # nodes, context
PLAIN_HOP = 10  # cycles: the router and the wire
SHAPE = replace(named_shape(MODEL), kv_bytes=0.5, kv_scale_bytes=2)


def measured_step(num_nodes: int, context: int) -> dict[str, Any]:
    """Cycles of one layer and of one product on the hardware."""
    case = read_case(MODEL, num_nodes=num_nodes, context=context, num_layers=1)
    found = run_decode(case, random_source(case))
    return {
        "nodes": num_nodes,
        "context": case.context,
        "mesh": f"mesh:{case.mesh.width}x{case.mesh.height}",
        "product": [found.product.rows, found.product.columns],
        "cycles": {
            "attention": found.attention_cycles,
            "merge": found.merge_cycles,
            "layer": found.cycles,
            "product": found.product.cycles,
        },
    }


def model_step(row: dict[str, Any], profile: Profile) -> dict[str, float]:
    """The same in model time, in cycles of the assumed clock."""
    plain = replace(profile, link_latency_s=PLAIN_HOP / CLOCK_HZ)
    parts, num_layers = parts_of(row, plain), SHAPE.num_layers
    rows, columns = row["product"]
    layer = {"attention": parts.attention_s / num_layers, "merge": parts.network_s / num_layers}
    product = rows * columns * profile.weight_bytes / profile.memory_bytes_s
    found = layer | {"layer": sum(layer.values()), "product": product}
    return {name: seconds * CLOCK_HZ for name, seconds in found.items()}


def parts_of(row: dict[str, Any], profile: Profile) -> TokenParts:
    """A token of a schedule in which each node owns an equal part of the context."""
    cluster = Cluster.uniform(row["mesh"], row["nodes"])
    asked = PlanRequest(shape=SHAPE, cluster=cluster, prompt_tokens=row["context"], chunk_tokens=row["context"])
    return token_parts(plan("gather", asked), profile, shape=SHAPE)


def compared_steps(rows: list[dict[str, Any]], profile: Profile) -> list[dict[str, Any]]:
    """The rows with model time and its ratio to the hardware's, part by part."""
    out = []
    for row in rows:
        model = model_step(row, profile)
        ratios = {name: round(model[name] / cycles, 4) for name, cycles in row["cycles"].items()}
        out.append(row | {"model": {name: round(value) for name, value in model.items()}, "ratio": ratios})
    return out


def all_steps() -> Iterator[dict[str, Any]]:
    """Of all sizes; minutes."""
    for num_nodes, context in STEPS:
        yield measured_step(num_nodes, context)
