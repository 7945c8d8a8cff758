"""The records of a reduction slot: what arms it, what is kept of that, and what has arrived."""

from amaranth.lib import data

from mcf.rtl.golden.state import HEADROOM_BITS, MAX_CHILDREN, STATE_FIELDS
from mcf.rtl.hdl.beat import BEAT_BITS
from mcf.rtl.hdl.meta import Meta

CHILDREN_BITS = HEADROOM_BITS + 1
TAG_BITS = Meta["tag"].width

StateBeat = data.StructLayout({**dict(STATE_FIELDS), "rest": BEAT_BITS - sum(width for _, width in STATE_FIELDS)})

SlotSetup = data.StructLayout({"header": BEAT_BITS, "tag": TAG_BITS, "children": CHILDREN_BITS, "child": HEADROOM_BITS})

SlotConfig = data.StructLayout(
    {"epoch": TAG_BITS, "children": CHILDREN_BITS, "reduce_op": Meta["reduce_op"].width, "child": HEADROOM_BITS}
)

Progress = data.StructLayout({"seen": MAX_CHILDREN, "count": CHILDREN_BITS, "poisoned": 1})
