"""`gather`: owner-only KV (r = 1). In every chunk each node fetches the others' history, a layer ahead, and new KV."""

from mcf.policies.common import Trees, arrival_order, attend_order, check_slots, has_relays, receivers, start, windows
from mcf.policies.request import PlanRequest
from mcf.schedule import Builder, Schedule, head_tail
from mcf.schedule.builder import Range


def plan(request: PlanRequest) -> Schedule:
    """Write the gather schedule: two multicasts per node and chunk, nothing is kept."""
    check_slots("gather", request, forwards=has_relays(request.cluster.topology))
    b, trees = start("gather", request, head_tail), Trees(request.cluster.topology)
    for chunk in range(b.num_chunks):
        needers = receivers(b, trees.topology, chunk)
        for node in range(request.num_nodes):
            _Step(b, trees, needers, node, chunk, request.ahead).write()
    b.decode()
    return b.build()


class _Step:
    """What one node does in one chunk."""

    def __init__(self, b: Builder, trees: Trees, needers: list[int], node: int, chunk: int, ahead: int) -> None:
        self.b, self.trees, self.needers = b, trees, needers
        self.node, self.chunk, self.ahead = node, chunk, ahead

    def write(self) -> None:
        """Write the rows in list order: what others wait for comes first."""
        b, node, chunk = self.b, self.node, self.chunk
        history, new = (0, chunk), (chunk, chunk + 1)
        others = arrival_order(self.trees.topology, node)
        self._pass_on([node], history, self.ahead)
        b.produce(node, chunk)
        self._pass_on([node], new, 0)
        self._pass_on(others, history, self.ahead)
        self._pass_on(others, new, 0)
        makers = (node, *attend_order(self.trees, node))
        states = [b.attend(node, chunk, chunks=(0, chunk + 1), makers=(m, m + 1)) for m in makers]
        b.merge(node, chunk, states)

    def _pass_on(self, makers: list[int], chunks: Range, ahead: int) -> None:
        for maker in makers:
            children = self.trees.children(self.node, maker, self.needers)
            for part in windows(self.b, chunks, maker) if children else ():
                self.b.send_kv(self.node, children, self.chunk, chunks=part, makers=(maker, maker + 1), ahead=ahead)
