"""A small schedule that shows what the hardware is for, on a mesh of any size from 2 nodes on.

Each chunk's KV goes to all nodes as replicas, by multicast. Node 0's first block goes round the last node, which gets
it from node 1's replica later. Before the third chunk replicas of the first are drained and freed, while that reader
may still hold one; what is missing is then fetched ahead from its owner. Decode merges a state of each node per token.
"""

from mcf.errors import ScheduleError
from mcf.rtl.routes import Mesh
from mcf.schedule import Builder, Schedule, ScheduleMeta, contiguous, cut
from mcf.schedule.packets import BLOCK_TOKENS
from mcf.schedule.steps import KEEP, STREAM

NUM_CHUNKS = 3
NEW_TOKENS = 4
SMALL = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 32, "kv_bytes": 2}
WHOLE = {"num_q_heads": 2, "num_kv_heads": 1, "head_dim": 128, "kv_bytes": 0.5, "kv_scale_bytes": 2}
MAX_NODES = 16  # a merge takes one state of each


def demo_schedule(mesh: Mesh, *, is_whole: bool = False) -> Schedule:
    """Write the schedule for a mesh, `is_whole`: in sizes that whole nodes take. Raises ScheduleError for fewer than 2
    or more than 16 nodes.
    """
    num_nodes = mesh.num_nodes
    if not 2 <= num_nodes <= MAX_NODES:
        raise ScheduleError(
            f"got a mesh of {num_nodes} nodes: expected 2 to {MAX_NODES} for the demo; choose another mesh"
        )
    meta = ScheduleMeta(
        policy="demo",
        num_nodes=num_nodes,
        prompt_tokens=NUM_CHUNKS * BLOCK_TOKENS * num_nodes,
        chunk_tokens=BLOCK_TOKENS * num_nodes,
        num_layers=2,
        **(WHOLE if is_whole else SMALL),
        act_bytes=2,
        topology=mesh.topology.name,
        max_new_tokens=NEW_TOKENS,
    )
    b = Builder(meta, cut(meta.prompt_tokens, meta.chunk_tokens, num_nodes, contiguous))
    for chunk in range(NUM_CHUNKS):
        _chunk(b, chunk, num_nodes)
    for node, maker in _pairs(num_nodes):
        for retire in (b.drain, b.free):
            retire(node, NUM_CHUNKS, chunks=(1, NUM_CHUNKS), makers=(maker, maker + 1))
    b.decode()
    return b.build()


def _pairs(num_nodes: int) -> list[tuple[int, int]]:
    return [(node, maker) for node in range(num_nodes) for maker in range(num_nodes) if maker != node]


def _chunk(b: Builder, chunk: int, num_nodes: int) -> None:
    last, nodes = num_nodes - 1, range(num_nodes)
    if chunk == NUM_CHUNKS - 1:
        for node, maker in _pairs(num_nodes):
            if _keeps(node, maker, last):
                for retire in (b.drain, b.free):
                    retire(node, chunk, chunks=(0, 1), makers=(maker, maker + 1))
    for node in nodes:
        b.produce(node, chunk)
        receivers = [n for n in nodes if chunk or _keeps(n, node, last)]
        b.send_kv(node, receivers, chunk, chunks=(chunk, chunk + 1), makers=(node, node + 1), hold=KEEP)
    if not _keeps(last, 0, last) and chunk < NUM_CHUNKS - 1:
        b.send_kv(min(chunk, 1), [last], chunk, chunks=(0, 1), makers=(0, 1), hold=STREAM)
    if chunk == NUM_CHUNKS - 1:
        for node in nodes:
            b.send_kv(node, nodes, chunk, chunks=(0, 1), makers=(node, node + 1), hold=STREAM, ahead=1)
    for node in nodes:
        blocks = [b.attend(node, chunk, chunks=(0, chunk + 1), makers=(maker, maker + 1)) for maker in nodes]
        b.merge(node, chunk, blocks)


def _keeps(node: int, maker: int, last: int) -> bool:
    """Say whether a node keeps a maker's first block: all do but the last node that of node 0."""
    return last < 2 or (node, maker) != (last, 0)
