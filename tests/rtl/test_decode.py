"""A decode step lowered to nodes: its memory, commands, tree and result, against float64; and what no node can take."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from mcf.errors import RunError, ScheduleError
from mcf.model import ModelShape
from mcf.model.named import named_shape
from mcf.rtl.commands import ComputeOp, unpack_command
from mcf.rtl.decode import GIB, DecodeCase, Layout, batches_of, layer_commands
from mcf.rtl.decode_check import check_records, check_results, golden_states
from mcf.rtl.decode_image import image_of, quantised, random_source, tile_runs, value_runs
from mcf.rtl.decode_tree import setups, state_descriptors, state_header, tag_of, tree_of
from mcf.rtl.descriptor import META_BITS, STATE_BIT
from mcf.rtl.golden.attention import attend_shard
from mcf.rtl.golden.decode import merged, node_states, outputs, possible
from mcf.rtl.golden.desc_ring import expand
from mcf.rtl.golden.reduce import ReduceModel
from mcf.rtl.golden.state import from_beats, to_beats
from mcf.rtl.golden.tiles import key_tiles, port_runs, value_tiles
from mcf.rtl.routes import Mesh
from mcf.schedule.wire import Flags, pack

SHAPE = named_shape("qwen2.5-1.5b")
SMALL = replace(SHAPE, num_layers=3, num_q_heads=4, num_kv_heads=2, head_dim=16, hidden_size=64, intermediate_size=64)
PAPER = DecodeCase(shape=SHAPE, mesh=Mesh(width=2, height=2), context=16384)


def case(width: int = 2, height: int = 2, context: int = 700, shape: ModelShape = SMALL, **other: int) -> DecodeCase:
    return DecodeCase(shape=shape, mesh=Mesh(width=width, height=height), context=context, **other)


@pytest.mark.parametrize("context", [1, 64, 65, 700, 16384])
@pytest.mark.parametrize("nodes", [1, 2, 3, 6])
def test_shards_are_whole_pages_in_order_and_within_one_of_each_other(context: int, nodes: int) -> None:
    shards = [case(nodes, 1, context).shard(node) for node in range(nodes)]
    assert [token for shard in shards for token in shard] == list(range(context))
    assert all(shard.start % 64 == 0 for shard in shards if shard)
    pages = [-(-len(shard) // 64) for shard in shards]
    assert max(pages) - min(pages) <= 1


@pytest.mark.parametrize("tokens", [0, 1, 128, 200])
def test_runs_made_at_once_are_the_runs_of_single_beats(tokens: int) -> None:
    rng = np.random.default_rng(tokens)
    numbers, scales = rng.integers(-8, 8, (tokens, 16)), rng.integers(0, 65536, tokens)
    assert tile_runs(numbers, scales) == port_runs(key_tiles(numbers, scales))
    assert value_runs(numbers, scales) == port_runs(value_tiles(numbers, scales))


@pytest.mark.parametrize(("width", "height"), [(1, 1), (2, 1), (2, 2), (4, 4), (3, 2)])
def test_the_tree_reaches_all_nodes_and_its_routes_have_no_circle(width: int, height: int) -> None:
    tree = tree_of(Mesh(width=width, height=height))  # Tables.check is part of it
    assert set(tree.parent) == set(range(width * height)) - {tree.root}
    for node in tree.parent:
        steps = 0
        while node != tree.root:
            node, steps = tree.parent[node], steps + 1
        assert steps <= width + height
    for node in range(width * height):
        numbers = [tree.child[n] for n, parent in tree.parent.items() if parent == node]
        assert sorted([0, *numbers]) == list(range(tree.children[node]))


def test_a_step_is_that_of_float64_within_its_bound_and_the_network_merges_what_the_model_says() -> None:
    here = case(2, 2, 700, num_layers=2)
    tree, source = tree_of(here.mesh), random_source(here, seed=5)
    numbers = {layer: quantised(here, source(layer)) for layer in here.layers}
    images = {n: image_of(Layout(case=here, node=n), numbers.__getitem__) for n in range(4)}
    for layer in here.layers:
        states = {n: node_states(here, tree, n, images[n], layer) for n in range(4)}
        result = merged(tree, states)
        scales = [head.v_scale for head in numbers[layer] for _ in range(2)]
        expected = np.concatenate([head.exactly for head in numbers[layer]])
        beyond = np.abs(outputs(result, scales, 16) - expected).max(-1) - 2.5 * 2.0**-15 * np.array(scales)
        assert (beyond < 1e-3 * np.abs(expected).max(-1)).all()
        assert network(here, tree, states, layer) == [to_beats(state, 0, 16) for state in result]


def network(here: DecodeCase, tree: object, states: dict, layer: int) -> list[list[int]]:
    """The root's results, when every packet goes where its header says, leaves first."""
    units = {n: ReduceModel() for n in range(here.mesh.num_nodes)}
    for node, unit in units.items():
        assert all(unit.arm(setup) for setup in setups(here, tree, node, layer))
    order = sorted(units, key=lambda n: (n != tree.root, -n))
    for node in [*(n for n in order if not tree.is_leaf(n)), *(n for n in order if tree.is_leaf(n))]:
        for q_head, state in enumerate(states[node]):
            header = state_header(here, tree, node, layer=layer, q_head=q_head)
            units[header["dst_node"]].packet([pack(header), *to_beats(state, tree.record_child(node), 16)])
    return [payload for _, payload in climb(tree, units)]


def climb(tree: object, units: dict[int, ReduceModel]) -> list:
    """Pass results on to parents, deepest nodes first."""
    depth = dict.fromkeys(units, 0)
    for node in units:
        at = node
        while at != tree.root:
            at, depth[node] = tree.parent[at], depth[node] + 1
    for node in sorted(units, key=lambda n: -depth[n])[:-1]:
        for header, payload in units[node].results:
            units[tree.parent[node]].packet([header, *payload])
    return units[tree.root].results


def test_the_memory_and_the_commands_give_each_shards_states() -> None:
    here = case(3, 1, 300, num_layers=1)
    tree, numbers = tree_of(here.mesh), quantised(here, random_source(here, seed=1, sigma=4)(0))
    for node in range(3):
        image = image_of(Layout(case=here, node=node), lambda _: numbers)
        got = node_states(here, tree, node, image, 0)
        alone = [s for head in numbers for s in attend_shard(head.part(here.shard(node)), head.queries)]
        for a, b in zip(got, alone, strict=True):
            assert to_beats(a, 0, 16) == to_beats(b, 0, 16)


def test_a_descriptor_for_each_kv_head_sends_the_records_with_their_headers() -> None:
    here = case(2, 2, 700, num_layers=2)
    tree = tree_of(here.mesh)
    for node, layer in ((tree.root, 0), (3, 1)):
        words = list(state_descriptors(here, tree, node, layer, wait_event=5))
        items = [item for word in words for item in expand(word)]
        assert [(item.address, item.beats, item.wait) for item in items] == [
            (1 << STATE_BIT, 17, wait) for wait in (5, 0, 6, 0)
        ]
        for q_head, item in enumerate(items):
            header = state_header(here, tree, node, layer=layer, q_head=q_head) | {"flags": Flags.LAST}
            assert item.meta == pack(header) & (1 << META_BITS) - 1


def test_the_possible_results_are_those_of_all_orders_of_arrival() -> None:
    here = case(3, 2, 700, num_layers=1)
    tree, heads = tree_of(here.mesh), quantised(here, random_source(here, seed=2, sigma=4)(0))
    states = golden_states(here, heads)
    most = max(tree.children.values())
    orders = [
        merged(tree, states, lambda n, _, o=order: [c for c in o if c < tree.children[n]])
        for order in permutations(range(most))
    ]
    assert most > 2
    several = 0
    for q_head in range(4):
        bits = [to_beats(state, 0, 16) for state in possible(tree, states, q_head)]
        assert {tuple(to_beats(order[q_head], 0, 16)) for order in orders} <= set(map(tuple, bits))
        several += len(bits) > 1
    assert several > 0  # the order shows


def test_results_that_no_order_gives_and_records_of_another_node_are_errors() -> None:
    here = case(2, 1, 130, num_layers=1)
    tree, heads = tree_of(here.mesh), quantised(here, random_source(here)(0))
    states = golden_states(here, heads)
    records = {n: [to_beats(s, tree.record_child(n), 16) for s in states[n]] for n in range(2)}
    assert check_records(tree, 0, states, records) == 8
    good = {h: to_beats(state, 0, 16) for h, state in enumerate(merged(tree, states))}
    assert check_results(tree, 0, states, {0: good, 1: dict(good)}) == 8
    off = good | {2: [*good[2][:5], good[2][5] ^ 1, *good[2][6:]]}
    with pytest.raises(RunError, match="head 2 of layer 0 was merged to another result than the golden model's"):
        check_results(tree, 0, states, {0: off, 1: off})
    with pytest.raises(RunError, match=f"node {1 - tree.root} received other results of layer 0 than node {tree.root}"):
        check_results(tree, 0, states, {tree.root: good, 1 - tree.root: off})
    with pytest.raises(RunError, match="node 0 made other states in layer 7 than the golden model"):
        check_records(tree, 7, states, records | {0: records[0][::-1]})


def test_a_node_without_tokens_gives_empty_states_that_change_nothing() -> None:
    here = case(2, 1, 60, num_layers=1)
    tree, numbers = tree_of(here.mesh), quantised(here, random_source(here)(0))
    states = {
        n: node_states(here, tree, n, image_of(Layout(case=here, node=n), lambda _: numbers), 0) for n in range(2)
    }
    assert {len(here.shard(n)) for n in range(2)} == {0, 60}
    full = next(n for n in range(2) if here.shard(n))
    for state, alone in zip(merged(tree, states), states[full], strict=True):
        np.testing.assert_array_equal(state.out, alone.out)


def test_the_papers_model_takes_its_commands_and_slots() -> None:
    tree = tree_of(PAPER.mesh)
    words = [unpack_command(w) for w in layer_commands(Layout(case=PAPER, node=1), 27, child=3, set_event=9)]
    assert [w["op"] for w in words] == [ComputeOp.LOAD, ComputeOp.LOAD, ComputeOp.ATTEND, ComputeOp.ATTEND]
    assert [(w["tiles"], w["tokens"], w["count"], w["slot"]) for w in words[2:]] == [(32, 128, 6, 0), (32, 128, 6, 6)]
    assert [w["set_event"] for w in words] == [0, 0, 9, 10]
    tags = {tag_of(SHAPE, layer, head) for layer in range(16) for head in range(12)}
    assert len(tags) == 16 * 12  # no slot is armed again under the same tag within eight turns
    assert Layout(case=PAPER, node=0).num_bytes < 32e6
    assert len(list(setups(PAPER, tree, tree.root, 3))) == 12


def test_more_query_heads_than_accumulators_come_in_batches() -> None:
    many = replace(SMALL, num_q_heads=28, num_kv_heads=4)
    here = case(2, 1, 130, many, num_layers=1)
    assert [len(batch) for batch in batches_of(many)] == [2, 2]
    tree, numbers = tree_of(here.mesh), quantised(here, random_source(here)(0))
    image = image_of(Layout(case=here, node=0), lambda _: numbers)
    got = node_states(here, tree, 0, image, 0)
    alone = [s for head in numbers for s in attend_shard(head.part(here.shard(0)), head.queries)]
    assert [to_beats(s, 0, 16) for s in got] == [to_beats(s, 0, 16) for s in alone]
    back, _ = from_beats(to_beats(got[-1], 0, 16), 16)
    assert int(back.sum_) == int(got[-1].sum_)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"head_dim": 256}, "got heads of 256: expected at most 128, the rows of the array"),
        ({"num_layers": 129}, "got 129 layers: expected at most 128"),
        ({"num_q_heads": 34}, "got 17 query heads per KV head: expected at most 16; choose another model"),
        (
            {"num_q_heads": 36, "num_kv_heads": 12},
            "got 36 query heads: expected at most 32, the reduction slots; choose",
        ),
        ({"num_q_heads": 33, "num_kv_heads": 33}, "got 33 KV heads: the packet header has room for 32"),
        ({"num_layers": 128, "vocab_size": 10_000_000}, "GiB of weights, expected at most 3.50 GiB together"),
    ],
)
def test_a_model_that_a_node_cannot_take_is_one_line_with_the_limit(changes: dict[str, int], said: str) -> None:
    sizes = {"hidden_size": 1536} if "vocab_size" in changes else {}
    with pytest.raises(ScheduleError, match=said):
        case(shape=replace(SMALL, **changes, **sizes))


def test_a_context_group_or_layer_count_that_does_not_fit_is_one_line_with_the_limit() -> None:
    with pytest.raises(ScheduleError, match=r"got a context of 64000 tokens: .* use more nodes or a shorter context"):
        case(1, 1, 64_000, SHAPE, memory_bytes=3 * GIB // 2)
    with pytest.raises(ScheduleError, match="got 1000000 tokens on one node: expected at most 65535"):
        case(1, 1, 1_000_000)
    with pytest.raises(ScheduleError, match="got a quantisation group of 256: expected 1 to 128"):
        case(group=256)
    with pytest.raises(ScheduleError, match="got 4 layers: expected at most 3"):
        case(num_layers=4)
    with pytest.raises(ScheduleError, match="got a context of 0 tokens"):
        case(context=0)
    assert replace(PAPER, memory_bytes=2 * GIB).shard(3).stop == 16384
