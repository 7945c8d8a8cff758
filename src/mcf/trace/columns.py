"""The columns of the event table and of the memory table.

One row per thing that happened on one node. `kind`, `lane`, `stage` and `purpose` are the codes of
`mcf.schedule.steps`; `row` is the schedule's row (-1: none), `peer` the other node of a transfer (-1: none), `chunk`
and `layer` count from 0 (-1: none). Times are seconds on one monotonic clock.

- A transfer over one link is one SEND event of the sending node (`peer` receives): bytes are counted there and only
  there. The receiving node may have a RECV event of the same transfer; its bytes are not counted again.
- A SEND or RECV event with purpose 0 is a posting, not a transfer: it counts as no communication time.
- `wait` = 1 marks time in which the compute lane was blocked on communication: exposed communication.
"""

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.void]

EVENT = np.dtype(
    [
        *[("row", "<i4"), ("kind", "u1"), ("lane", "u1"), ("stage", "u1")],
        *[(name, "<i4") for name in ("node", "peer", "chunk", "layer")],
        *[("purpose", "u1"), ("t_start", "<f8"), ("t_end", "<f8"), ("payload_bytes", "<i8"), ("wait", "u1")],
    ]
)
MEMORY = np.dtype([("node", "<i4"), ("chunk", "<i4"), ("t", "<f8"), ("bytes_in_use", "<i8")])
