"""What the event loop's heap holds: (time, rank, number). Ties go by rank, then by number."""

Event = tuple[
    float, int, int
]  # the number is an instance's; with rank PASSED that of a line, a payload or a port, with MEMORY a node
DONE, PASSED, LEAVE, LEAVE_AHEAD, ENTER, ENTER_AHEAD, MEMORY = range(7)
