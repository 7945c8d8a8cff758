"""Measure a joined world: every worker's rates, all at once, and every link."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcf.dist.world import World
from mcf.engine.planner import RUN_TOKENS
from mcf.model import ModelShape

SECONDS = 0.5  # per item: the median of what fits into it
LINK_SECONDS = 6.0  # all pairs together, but at least LEAST_LINK_S each
LEAST_LINK_S, MOST_LINK_S = 0.05, 0.7
STREAM_BYTES = 256 << 20  # per worker: beyond the cache that a worker can count on
PAST_TOKENS = 2048
PROBE_BYTES, MOST_BYTES = 1 << 20, 16 << 20
MOST_HIDDEN, MOST_INNER = 2048, 8192  # larger products run no faster, and take memory and time
USUAL = ModelShape(  # Qwen2.5-0.5B: where no model is given
    name="24 layers of 896",
    num_layers=24,
    num_q_heads=14,
    num_kv_heads=2,
    head_dim=64,
    hidden_size=896,
    intermediate_size=4864,
    vocab_size=151936,
    max_positions=32768,
)
Edge = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What was measured, in rank order.

    `rates` by the names of `mcf.dist.gauge`, in operations, bytes or seconds; `link_bytes_s` and `link_latency_s` by
    (from, to), one pair at a time; `port_bytes_s` what leaves each worker while all send to all (0 where it is alone).
    `sizes` says how large the work was.
    """

    rates: list[Mapping[str, float]]
    link_bytes_s: Mapping[Edge, float]
    link_latency_s: Mapping[Edge, float]
    port_bytes_s: list[float]
    sizes: Mapping[str, Any]


def measure(world: World, *, num_threads: Sequence[int], shape: ModelShape | None = None) -> Measurement:
    """Measure a world that has joined, with that many threads by rank; about 10 seconds for two workers.

    Raises RunError kinds.
    """
    ranks, sizes = range(world.num_workers), sizes_of(shape or USUAL)
    for rank in ranks:
        world.send(rank, "measure_compute", sizes={**sizes, "num_threads": num_threads[rank]})
    compute = world.wait_for("measured_compute")
    pairs = world.num_workers * (world.num_workers - 1)
    seconds = min(MOST_LINK_S, max(LEAST_LINK_S, LINK_SECONDS / max(1, pairs)))
    world.broadcast("measure_link", probe_bytes=PROBE_BYTES, most_bytes=MOST_BYTES, seconds=seconds)
    links = world.wait_for("measured_link")
    found = [(rank, *link) for rank in ranks for link in links[rank]["links"]]
    return Measurement(
        rates=[compute[rank]["rates"] for rank in ranks],
        link_bytes_s={(src, dst): rate for src, dst, rate, _ in found},
        link_latency_s={(src, dst): latency for src, dst, _, latency in found},
        port_bytes_s=[links[rank]["port_bytes_s"] for rank in ranks],
        sizes=sizes,
    )


def sizes_of(shape: ModelShape) -> dict[str, Any]:
    """Return the sizes of the work for a model: those of one of its layers, and of a usual chunk."""
    return {
        "tokens": RUN_TOKENS,
        "past_tokens": PAST_TOKENS,
        "hidden": min(shape.hidden_size, MOST_HIDDEN),
        "inner": min(shape.intermediate_size, MOST_INNER),
        "q_heads": shape.num_q_heads,
        "kv_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "stream_bytes": STREAM_BYTES,
        "seconds": SECONDS,
    }
