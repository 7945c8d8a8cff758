"""Which unit of a node takes a packet that has reached it: data, reduction, or control."""

from enum import IntEnum

from mcf.schedule.wire import Op, ReduceOp


class Unit(IntEnum):
    """Who takes a packet."""

    KV = 0  # the compute half: KV blocks, queries, states and results, with their payload
    REDUCE = 1  # the reduction unit: states to be merged on their way
    CONTROL = 2  # the directory and the events: headers that need no answer of the network


OPS: dict[Unit, frozenset[Op]] = {
    Unit.KV: frozenset({Op.KV_REPLICA, Op.KV_FETCH, Op.KV_DATA, Op.QUERY, Op.STATE, Op.REDUCE_RESULT}),
    Unit.CONTROL: frozenset({Op.KV_DRAIN, Op.KV_INVALIDATE, Op.CREDIT, Op.ACK, Op.BARRIER, Op.CONFIG}),
    Unit.REDUCE: frozenset(),  # a STATE whose reduce_op is not NONE
}


def unit_of(op: int, reduce_op: int) -> Unit | None:
    """The unit for a header with these codes; None for an operation without a name, which is dropped."""
    if op == Op.STATE and reduce_op != ReduceOp.NONE:
        return Unit.REDUCE
    return next((unit for unit, ops in OPS.items() if op in ops), None)
