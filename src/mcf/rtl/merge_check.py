"""Whether reduction units of whole nodes gave a result that the golden model gives in some order of arrival."""

from collections.abc import Callable

from mcf.errors import RunError
from mcf.rtl.golden.reduce import possible_merges
from mcf.rtl.golden.state import BlockState
from mcf.rtl.holding import Holding
from mcf.rtl.lower import Lowered
from mcf.schedule.program import Program
from mcf.schedule.steps import RECV

MOST_STATES = 6  # of one merge: the orders of more are not tried


class MergeCheck:
    """Of one run; `compute_of` gives a node's side of it. `num_exact` results were as they must be."""

    def __init__(self, program: Program, low: Lowered, compute_of: Callable[[int], Holding]) -> None:
        self.program, self.low, self.compute_of = program, low, compute_of
        self.possible: dict[tuple[tuple[int, ...], int, int], list[tuple[object, ...]]] = {}
        self.num_exact = 0

    def check(self, node: int, tick: int, head: int, found: BlockState) -> None:
        """Take in a result. Raises RunError where the golden model gives no such one."""
        inputs = self.low.merges[node].inputs
        if not self.low.is_whole or len(inputs) > MOST_STATES:
            return
        key = tuple(self._source(row, tick) for row in inputs), tick, head
        if key not in self.possible:
            parts = [self.compute_of(self.program.rows[row].node).record(row, tick, head) for row in key[0]]
            self.possible[key] = [_bits(state) for state in possible_merges([[part] for part in parts])]
        if _bits(found) not in self.possible[key]:
            layer = self.program.layer(tick)
            raise RunError(
                f"node {node} merged head {head} of layer {layer} to another state than the golden model in any order: "
                "expected the same bits"
            )
        self.num_exact += 1

    def _source(self, row: int, tick: int) -> int:
        """The row that made the state which an input is."""
        step = self.program.rows[row]
        if step.kind != RECV:
            return row
        compute = self.compute_of(self.program.rows[step.ref].node)
        found: int = next(one for one in self.program.after[step.ref] if compute.has_state(one, tick))
        return found


def _bits(state: BlockState) -> tuple[object, ...]:
    return int(state.exponent), int(state.sum_), int(state.count), state.out.reshape(-1).tobytes()
