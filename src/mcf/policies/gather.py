"""`gather`: owner-only KV (r = 1). In every chunk each node fetches the others' history, a layer ahead, and new KV."""

from mcf.policies.common import Children, Trees, check_slots, receivers, start, windows
from mcf.policies.request import PlanRequest
from mcf.schedule import Builder, Schedule, head_tail
from mcf.schedule.builder import Range


def plan(request: PlanRequest) -> Schedule:
    """Write the gather schedule: two multicasts per node and chunk, nothing is kept."""
    return write("gather", request)


def write(policy: str, request: PlanRequest) -> Schedule:
    """Write gather's dataflow under a policy's name.

    Raises UserError for a single stream slot where streams are forwarded.
    """
    check_slots(policy, request, forwards=request.cluster.topology.has_relays)
    b, trees = start(policy, request, head_tail), Trees(request.cluster.topology)
    for chunk in range(b.num_chunks):
        children = trees.to(receivers(b, trees.topology, chunk), chunk)
        for node in range(request.num_nodes):
            _chunk(_Hands(b, node, chunk, children), trees, request.ahead)
    b.decode()
    return b.build()


def _chunk(hands: "_Hands", trees: Trees, ahead: int) -> None:
    """Write a node's rows of a chunk in list order: what others wait for comes first."""
    b, node, chunk = hands.b, hands.node, hands.chunk
    history, new, others = (0, chunk), (chunk, chunk + 1), trees.arrivals[node]
    hands.pass_on([node], history, ahead)
    b.produce(node, chunk)
    hands.pass_on([node], new, 0)
    hands.pass_on(others, history, ahead)
    hands.pass_on(others, new, 0)
    makers = (node, *trees.attends(node, chunk))
    states = [b.attend(node, chunk, chunks=(0, chunk + 1), makers=(m, m + 1)) for m in makers]
    b.merge(node, chunk, states)


class _Hands:
    """What one node passes on to its neighbours in one chunk."""

    def __init__(self, b: Builder, node: int, chunk: int, children: list[Children]) -> None:
        self.b, self.node, self.chunk, self.children = b, node, chunk, children

    def pass_on(self, makers: list[int], chunks: Range, ahead: int) -> None:
        """Send makers' blocks to the neighbours that get them from this node, if there are any."""
        for maker in makers:
            dsts = self.children[maker].get(self.node)
            for part in windows(self.b, chunks, maker) if dsts else ():
                self.b.send_kv(self.node, dsts or (), self.chunk, chunks=part, makers=(maker, maker + 1), ahead=ahead)
