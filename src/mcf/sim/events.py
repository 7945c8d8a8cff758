"""What the event loop's heap holds: (time, rank, number). Ties go by rank, then by number."""

Event = tuple[float, int, int]  # the number is an instance's; with rank PASSED that of a line or a payload
DONE, PASSED, LEAVE, LEAVE_AHEAD, ENTER, ENTER_AHEAD = range(6)
