"""A measurement as a cluster profile: TOML text that `mcf.sim.load_profile` reads and `mcf plan --cluster` uses."""

import json
from collections.abc import Iterator
from statistics import median

from mcf.engine.doctor.machine import room_bytes
from mcf.engine.doctor.measure import Measurement
from mcf.engine.doctor.needs import PROCESS_BYTES
from mcf.engine.doctor.survey import NodeReport, Survey

# key of a profile -> (what the gauge calls it, what was measured)
RATES = {
    "flops_s": ("float32_flops_s", "dense work of one layer in float32: {hidden} x {inner}, {tokens} tokens"),
    "attention_flops_s": ("float32_attention_flops_s", "{tokens} queries on {past_tokens} earlier tokens in float32"),
    "bf16_flops_s": ("bfloat16_flops_s", "dense work of one layer in bfloat16: {hidden} x {inner}, {tokens} tokens"),
    "bf16_attention_flops_s": (
        "bfloat16_attention_flops_s",
        "{tokens} queries on {past_tokens} earlier tokens in bfloat16",
    ),
    "memory_bytes_s": ("float32_memory_bytes_s", "{stream_bytes} bytes of float32 weights against one token"),
    "bf16_memory_bytes_s": ("bfloat16_memory_bytes_s", "{stream_bytes} bytes of bfloat16 weights against one token"),
    "stream_bytes_s": ("stream_bytes_s", "a copy, bytes read and written, {stream_bytes} in all"),
    "step_overhead_s": ("step_overhead_s", "attention of one token to 64"),
}


def cluster_profile(found: Measurement, survey: Survey, *, name: str, command: str, date: str) -> str:
    """Return the profile's text; `command` and `date` stand at its head, with versions and machines."""
    return "\n".join(
        [*_head(survey, command, date), *_usual(found, survey, name), *_nodes(found, survey), *_links(found)]
    )


def memory_of(node: NodeReport, survey: Survey) -> int | None:
    """Return a worker's share of what its machine has free, less what the process takes before any model."""
    (mates,) = [workers for workers in survey.machines() if node in workers]
    room = room_bytes(mates)
    return None if room is None else max(1, room - PROCESS_BYTES)


def _head(survey: Survey, command: str, date: str) -> Iterator[str]:
    yield f"# Measured by `{' '.join(command.split())}` on {date}."
    yield f"# Versions: {', '.join(f'{name} {version}' for name, version in survey.nodes[0].versions.items())}."
    for workers in survey.machines():
        facts, cpu = workers[0].facts, workers[0].facts["cpu"]
        yield (
            f"# Machine {facts['host']}: {cpu['model']}, {cpu['allowed_cores']} cores, {facts['system']}; workers "
            + (", ".join(f"{node.rank} ({node.facts['cpu']['threads'] or 1} threads)" for node in workers) + ".")
        )
    yield "# All workers measured at once. The usual node is the median; each node and link follows."


def _usual(found: Measurement, survey: Survey, name: str) -> Iterator[str]:
    yield f"name = {_text(name)}"
    yield "physical = true"
    yield 'topology = "switch"'
    for key, (rate, what) in RATES.items():
        yield from _number(key, median(each[rate] for each in found.rates), f"measured: {what.format(**found.sizes)}")
    rooms = [room for node in survey.nodes if (room := memory_of(node, survey)) is not None]
    yield from _number(
        "memory_bytes", min(rooms, default=1), "free when measured, a worker's share without its libraries; the least"
    )
    yield from _number("weight_bytes", 4, "float32")
    yield from _number("bf16_weight_bytes", 2, "bfloat16")
    if found.link_bytes_s:
        yield from _number("link_bytes_s", median(found.port_bytes_s), "measured: a worker's port, all sending to all")
        yield from _number("link_latency_s", median(found.link_latency_s.values()), "measured: half a round trip")
    else:
        yield from _number("link_bytes_s", found.rates[0]["stream_bytes_s"], "not measured: one worker has no link")
        yield from _number("link_latency_s", 0, "not measured: one worker has no link")


def _number(key: str, value: float, source: str) -> Iterator[str]:
    yield f"\n[{key}]"
    yield f"value = {value:.5g}" if isinstance(value, float) else f"value = {value}"
    yield f"source = {_text(source)}"


def _text(text: str) -> str:
    """Return a TOML string: JSON's is one, as long as no character is cut into two escapes."""
    return json.dumps(text, ensure_ascii=False)


def _nodes(found: Measurement, survey: Survey) -> Iterator[str]:
    for node, rates, port in zip(survey.nodes, found.rates, found.port_bytes_s, strict=True):
        yield "\n[[nodes]]"
        yield f"name = {_text(node.label)}"
        yield 'source = "measured, as above"'
        if survey.needs and survey.needs.kv_bytes is not None:
            yield f"kv_budget_bytes = {survey.needs.kv_bytes}"
        if (room := memory_of(node, survey)) is not None:
            yield f"memory_bytes = {room}"
        yield from (f"{key} = {rates[rate]:.5g}" for key, (rate, _) in RATES.items())
        if port:
            yield f"link_bytes_s = {port:.5g}"


def _links(found: Measurement) -> Iterator[str]:
    for (src, dst), rate in found.link_bytes_s.items():
        yield "\n[[links]]"
        yield f"from = {src}\nto = {dst}"
        yield 'source = "measured: this link alone"'
        yield f"link_bytes_s = {rate:.5g}\nlink_latency_s = {found.link_latency_s[src, dst]:.5g}"
    yield ""
