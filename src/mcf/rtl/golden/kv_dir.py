"""The replica directory without clocks: entries by kv_id, moved by the transition table of `mcf.schedule.kv`."""

from dataclasses import dataclass, field

from mcf.errors import ScheduleError
from mcf.rtl.kv_ops import (
    CREATING,
    ENDING,
    EVENTS,
    KV_ID_BITS,
    KV_ID_LOW,
    LOSING,
    MAX_READERS,
    PACKET_OPS,
    SERVING,
    WAYS,
    KvCode,
    KvOp,
    set_of,
)
from mcf.schedule.kv import ABSENT, STREAMED, next_state
from mcf.schedule.wire import FIELDS

_OP = FIELDS["op"]


@dataclass(kw_only=True)
class Entry:
    """One copy: where it lies, who owns it, who reads it; `dying` waits for its readers."""

    state: int
    base: int
    owner: bool
    readers: int = 0
    dying: bool = False


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What an operation came to: the code, the base of the entry concerned and its state afterwards."""

    code: KvCode
    base: int = 0
    state: int = ABSENT


@dataclass(kw_only=True)
class KvDirectoryModel:
    """The twin of `hdl.kv_dir.KvDirectory`: the same operations give the same answers."""

    entries: int = 256
    table: dict[int, Entry] = field(default_factory=dict)

    @property
    def set_bits(self) -> int:
        """Bits of a set's number."""
        return (self.entries // WAYS).bit_length() - 1

    def apply(self, op: int, kv_id: int, *, owner: bool = False, base: int = 0) -> Answer:
        """Do one operation, or refuse it and change nothing."""
        entry = self.table.get(kv_id)
        if op in CREATING:
            code = self._create(op, kv_id, owner, base)
        elif entry is None:
            code = KvCode.MISSING
        else:
            code = self._change(op, kv_id, entry)
        entry = entry or self.table.get(kv_id, Entry(state=ABSENT, base=0, owner=False))
        state = self.table[kv_id].state if kv_id in self.table else ABSENT
        return Answer(code=code, base=entry.base, state=state)

    def receive(self, header: int) -> Answer | None:
        """Do what a packet's header asks for; None where that is nothing to the directory. Nobody gets the answer."""
        op = PACKET_OPS.get(header >> _OP.low & _OP.limit - 1)
        if op is None:
            return None
        return self.apply(op, header >> KV_ID_LOW & (1 << KV_ID_BITS) - 1)

    def _create(self, op: int, kv_id: int, owner: bool, base: int) -> KvCode:
        state = next_state(ABSENT, EVENTS[op])
        if kv_id in self.table:
            return KvCode.OWNER if self.table[kv_id].owner else KvCode.STATE
        if owner and state == STREAMED:
            return KvCode.OWNER
        number = set_of(kv_id, self.set_bits)
        if sum(set_of(other, self.set_bits) == number for other in self.table) == WAYS:
            return KvCode.FULL
        self.table[kv_id] = Entry(state=state, base=base, owner=owner)
        return KvCode.OK

    def _change(self, op: int, kv_id: int, entry: Entry) -> KvCode:
        if op == KvOp.LOOK:
            return KvCode.OK
        if op == KvOp.READ:
            return self._read(entry)
        if op == KvOp.DONE:
            return self._done(kv_id, entry)
        if op in LOSING and entry.owner:
            return KvCode.OWNER
        try:
            after = next_state(entry.state, EVENTS[op])
        except (ScheduleError, KeyError):
            return KvCode.STATE
        if op in ENDING:
            return self._end(kv_id, entry)
        entry.state = after
        return KvCode.OK

    def _read(self, entry: Entry) -> KvCode:
        if entry.state not in SERVING or entry.dying:
            return KvCode.STATE
        if entry.readers == MAX_READERS:
            return KvCode.READERS
        entry.readers += 1
        return KvCode.OK

    def _done(self, kv_id: int, entry: Entry) -> KvCode:
        if entry.readers == 0:
            return KvCode.READERS
        entry.readers -= 1
        if entry.dying and entry.readers == 0:
            del self.table[kv_id]
            return KvCode.FREED
        return KvCode.OK

    def _end(self, kv_id: int, entry: Entry) -> KvCode:
        if entry.dying:
            return KvCode.STATE
        if entry.readers:
            entry.dying = True
            return KvCode.HELD
        del self.table[kv_id]
        return KvCode.OK
