"""The processor beside a node during a decode step: what it does between products and attention, in counted operations.

Norm, RoPE, activation, residual, quantising and the choice of a token have no hardware here: a node's own processor
does them, and this counts them. How fast it is stays an assumption (`Processor`), named wherever a time is shown.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mcf.model import ModelShape

ROW_BYTES = 4  # a row comes as a number of 32 bits
COMMAND_WORDS, DESCRIPTOR_WORDS = 8, 8  # and one more for its doorbell
SLOT_WORDS = 5


@dataclass(frozen=True, kw_only=True)
class Processor:
    """Assumed, not measured: four cores as on the KR260's part, at a clock and rates well below their peaks.

    `operations_per_cycle` and `bytes_per_cycle` are of all cores together, `store_cycles` of one word written to a
    register of the node.
    """

    clock_hz: float = 1.2e9
    operations_per_cycle: float = 8
    bytes_per_cycle: float = 8
    store_cycles: int = 180

    def cycles(self, work: "Work") -> float:
        """The longer of arithmetic and memory, and what registers cost."""
        busy = max(work.operations / self.operations_per_cycle, work.num_bytes / self.bytes_per_cycle)
        return busy + work.stores * self.store_cycles

    def seconds(self, work: "Work") -> float:
        """The same in seconds."""
        return self.cycles(work) / self.clock_hz

    def says(self) -> str:
        """The assumption in words."""
        return (
            f"processor: assumed {self.operations_per_cycle:g} operations and {self.bytes_per_cycle:g} bytes a cycle "
            f"at {self.clock_hz / 1e9:g} GHz, {self.store_cycles} cycles for a register"
        )


@dataclass(frozen=True, kw_only=True)
class Work:
    """Something the processor does once: arithmetic operations, bytes of memory, words written to registers."""

    name: str
    operations: int = 0
    num_bytes: int = 0
    stores: int = 0


def _over(name: str, elements: int, operations: int, num_bytes: int) -> Work:
    return Work(name=name, operations=elements * operations, num_bytes=elements * num_bytes)


def layer_work(shape: ModelShape, *, num_commands: int) -> Iterator[Work]:
    """What one layer of one token needs. Numbers are float32 between the steps, 4 bytes each way."""
    hidden, wide = shape.hidden_size, shape.intermediate_size
    queries, kv = shape.num_q_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    rows = queries + 2 * kv + hidden + 2 * wide + hidden
    yield _over("rows to float", rows, 1, ROW_BYTES + 4)
    yield _over("norm", 2 * hidden, 4, 8)  # square, add; scale, weight
    yield _over("rope", queries + kv, 3, 8)  # two products and a sum each, angles from a table
    yield _over("quantise", 2 * hidden + 2 * queries + wide + 2 * kv, 4, 6)  # largest; scale, round, clip
    yield _over("states to outputs", queries, 1, 6)
    yield _over("activation", wide, 14, 12)  # exp as a polynomial, a division, the product with the gate's other half
    yield _over("residual", 2 * hidden, 1, 12)
    yield Work(name="commands", stores=num_commands * (COMMAND_WORDS + 1))
    yield Work(name="slots", stores=shape.num_q_heads * SLOT_WORDS)  # on a node where states meet
    yield Work(name="descriptors", stores=shape.num_kv_heads * (DESCRIPTOR_WORDS + 1))


def token_work(shape: ModelShape) -> Iterator[Work]:
    """What one token needs beside its layers: its embedding, the last norm, the choice among all logits."""
    yield _over("norm", shape.hidden_size, 4, 8)
    yield _over("quantise", shape.hidden_size, 4, 6)
    yield _over("choice", shape.vocab_size, 2, ROW_BYTES)
