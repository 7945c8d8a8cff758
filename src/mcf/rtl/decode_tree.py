"""The tree on which a decode step's states meet: routes, reduction slots, and the descriptors that send states off.

A state per query head goes up a tree of reduction units, and the root's result to all nodes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mcf.model import ModelShape
from mcf.rtl.decode import DecodeCase
from mcf.rtl.descriptor import STATE_BIT, pack_descriptor
from mcf.rtl.entry import Entry, Port
from mcf.rtl.golden.reduce import Setup
from mcf.rtl.headers import STATE_TO_MERGE
from mcf.rtl.lower import NUM_EPOCHS
from mcf.rtl.merges import RECORD_BEATS
from mcf.rtl.registers import NUM_SLOTS
from mcf.rtl.routes import Mesh, Tables, gather, spread
from mcf.schedule.wire import Collective, Op, pack


@dataclass(frozen=True, kw_only=True, eq=False)
class Tree:
    """Where states meet. `parent` and `child` (a node's place among its parent's children; 0 is the parent's own) of
    all nodes but the root; `children` counts a node's own state. Routes: `up` towards the root, `down` from it to all,
    `own` from a node to itself.
    """

    mesh: Mesh
    root: int
    tables: Tables
    parent: Mapping[int, int]
    child: Mapping[int, int]
    children: Mapping[int, int]
    up: int
    down: int
    own: Mapping[int, int] = field(default_factory=dict)

    def is_leaf(self, node: int) -> bool:
        """Say whether a node's states go straight to its parent's reduction unit."""
        return self.children[node] == 1 and node != self.root

    def record_child(self, node: int) -> int:
        """The child number in the records that a node's compute half makes."""
        return self.child[node] if self.is_leaf(node) else 0


def tree_of(mesh: Mesh) -> Tree:
    """A tree over all nodes, its root as near to all as can be. Routes are free of circles (Tables.check)."""
    topology, nodes = mesh.topology, range(mesh.num_nodes)
    root = min(nodes, key=lambda n: (max(len(topology.route(n, m)) for m in nodes), n))
    edges = topology.multicast(root, nodes, tree=1)  # walked from its leaves it goes x first, as what comes back
    tables, parent = Tables(mesh=mesh), {b: a for a, b in edges}
    child = {b: 1 + [d for c, d in edges if c == a].index(b) for a, b in edges}
    children = {node: 1 + sum(a == node for a, _ in edges) for node in nodes}
    up = tables.add(gather(mesh, root, edges))
    down = tables.add(spread(mesh, root, topology.multicast(root, nodes), nodes))
    local = Entry(in_port=Port.LOCAL, outs=frozenset({Port.LOCAL}))
    own = {node: tables.add({node: local}) for node in nodes if children[node] > 1 or node == root}
    tables.check()
    return Tree(
        mesh=mesh, root=root, tables=tables, parent=parent, child=child, children=children, up=up, down=down, own=own
    )


def tag_of(shape: ModelShape, layer: int, q_head: int) -> int:
    """Slot and epoch of a query head's state in a layer: layers take turns on the slots."""
    sets = NUM_SLOTS // shape.num_q_heads
    epoch = layer // sets % NUM_EPOCHS
    return layer % sets * shape.num_q_heads + q_head | epoch << NUM_SLOTS.bit_length() - 1


def state_header(case: DecodeCase, tree: Tree, node: int, *, layer: int, q_head: int) -> dict[str, int]:
    """The header of a state that a node's compute half made, in the order in which they leave: head after head."""
    goal = tree.parent[node] if tree.is_leaf(node) else node
    route = tree.up if tree.is_leaf(node) else tree.own[node]
    return _header(case, node, layer=layer, q_head=q_head) | {
        "dst_node": goal,
        "dst_root": tree.root,
        "route_id": route,
    }


def state_descriptors(case: DecodeCase, tree: Tree, node: int, layer: int, *, wait_event: int) -> Iterator[int]:
    """One for each KV head: the records of its query heads leave one after the other, once its event has been set.

    The first KV head's event is `wait_event`, as in `layer_commands`.
    """
    group = case.shape.num_group_heads
    for head in range(case.shape.num_kv_heads):
        yield pack_descriptor(
            state_header(case, tree, node, layer=layer, q_head=head * group),
            address=1 << STATE_BIT,
            beats=RECORD_BEATS,
            repeat=group - 1,
            step_tag=1,
            wait_event=wait_event + head,
        )


def setup_words(case: DecodeCase, tree: Tree, node: int, layer: int) -> list[int]:
    """The set-ups as hardware takes them."""
    return [s.header | s.tag << 128 | s.children << 136 | s.child << 141 for s in setups(case, tree, node, layer)]


def setups(case: DecodeCase, tree: Tree, node: int, layer: int) -> Iterator[Setup]:
    """What arms a node's reduction slots for one layer; a leaf has none."""
    if tree.is_leaf(node):
        return
    for q_head in range(case.shape.num_q_heads):
        header = _header(case, node, layer=layer, q_head=q_head) | {"dst_root": tree.root}
        if node == tree.root:
            header |= {"op": Op.REDUCE_RESULT, "collective": Collective.MULTICAST, "block": q_head}
            header |= {"dst_node": node, "route_id": tree.down}
        else:
            header |= {"dst_node": tree.parent[node], "route_id": tree.up}
        yield Setup(tag=header["tag"], children=tree.children[node], child=tree.child.get(node, 0), header=pack(header))


def _header(case: DecodeCase, node: int, *, layer: int, q_head: int) -> dict[str, int]:
    return {
        **STATE_TO_MERGE,
        "src": node,
        "layer": layer,
        "head": q_head // case.shape.num_group_heads,
        "tag": tag_of(case.shape, layer, q_head),
    }
