"""Whether a decode step on simulated nodes gave the golden models' bits, layer by layer."""

from collections.abc import Mapping, Sequence

from mcf.errors import RunError
from mcf.rtl.decode import DecodeCase
from mcf.rtl.decode_image import HeadNumbers
from mcf.rtl.decode_tree import Tree
from mcf.rtl.golden.attention import attend_shard
from mcf.rtl.golden.decode import States, possible
from mcf.rtl.golden.state import to_beats
from mcf.rtl.merges import OUT_BEATS

Record = list[int]  # beats


def golden_states(case: DecodeCase, heads: Sequence[HeadNumbers]) -> dict[int, States]:
    """Each node's states of one layer."""
    return {
        node: [s for head in heads for s in attend_shard(head.part(case.shard(node)), head.queries)]
        for node in range(case.mesh.num_nodes)
    }


def check_records(tree: Tree, layer: int, states: Mapping[int, States], records: Mapping[int, list[Record]]) -> int:
    """How many records are as they must be. Raises RunError where one is not."""
    for node, mine in states.items():
        child = tree.record_child(node)
        if records[node] != [to_beats(state, child, OUT_BEATS) for state in mine]:
            raise RunError(f"node {node} made other states in layer {layer} than the golden model")
    return sum(map(len, records.values()))


def check_results(
    tree: Tree, layer: int, states: Mapping[int, States], results: Mapping[int, Mapping[int, Record]]
) -> int:
    """How many results are as they must be: at all nodes the root's, which is the golden model's merge of the states in
    one of the orders in which they may have arrived. Raises RunError where one is not.
    """
    for node, mine in results.items():
        if mine != results[tree.root]:
            raise RunError(f"node {node} received other results of layer {layer} than node {tree.root}")
    for head, beats in results[tree.root].items():
        if beats not in [to_beats(state, 0, OUT_BEATS) for state in possible(tree, states, head)]:
            raise RunError(f"head {head} of layer {layer} was merged to another result than the golden model's")
    return sum(map(len, results.values()))
