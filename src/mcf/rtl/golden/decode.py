"""What a decode step must give: each node's states by the model of its compute half, merged along the tree."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mcf.rtl.decode import DecodeCase, Layout, layer_commands
from mcf.rtl.decode_tree import Tree
from mcf.rtl.golden.compute import ComputeModel
from mcf.rtl.golden.reduce import possible_merges
from mcf.rtl.golden.state import BlockState, merge

States = list[BlockState]  # one for each query head
Order = Callable[[int, int], Sequence[int]]  # node, query head -> its children in the order in which they arrived


def node_states(case: DecodeCase, tree: Tree, node: int, image: bytearray, layer: int) -> States:
    """The states of one node in one layer, from its memory and its commands, in the order in which they leave."""
    model = ComputeModel(image=image)
    model.run(list(layer_commands(Layout(case=case, node=node), layer, child=tree.record_child(node))))
    assert [child for _, child in model.states] == [tree.record_child(node)] * case.shape.num_q_heads
    return [state for state, _ in model.states]


def merged(tree: Tree, states: Mapping[int, States], order: Order | None = None) -> States:
    """One layer's result: the states of all nodes, merged at each node of the tree as they arrived.

    Without `order` a node's own state comes first, then its children's by number; another order may differ in the last
    bits.
    """
    num_heads = len(states[tree.root])
    return [_up(tree, tree.root, head, states, order) for head in range(num_heads)]


def _up(tree: Tree, node: int, head: int, states: Mapping[int, States], order: Order | None) -> BlockState:
    if tree.is_leaf(node):
        return states[node][head]
    senders = {0: node, **{tree.child[n]: n for n, parent in tree.parent.items() if parent == node}}
    arrived = sorted(senders) if order is None else order(node, head)
    assert sorted(arrived) == sorted(senders), arrived
    return merge([states[node][head] if c == 0 else _up(tree, senders[c], head, states, order) for c in arrived])


def possible(tree: Tree, states: Mapping[int, States], head: int) -> States:
    """All results that a query head may have at the root, for all orders in which states may arrive; few differ."""
    return _possible(tree, tree.root, states, head)


def _possible(tree: Tree, node: int, states: Mapping[int, States], head: int) -> States:
    if tree.is_leaf(node):
        return [states[node][head]]
    parts = [[states[node][head]]]
    parts += [_possible(tree, child, states, head) for child, parent in tree.parent.items() if parent == node]
    return possible_merges(parts)


def outputs(states: States, v_scales: Sequence[float], head_dim: int) -> np.ndarray:
    """Attention outputs [heads, d] of merged states; `v_scales` of each query head."""
    rows = [state.out[:head_dim] / max(int(state.sum_), 1) * s for state, s in zip(states, v_scales, strict=True)]
    return np.stack(rows)
