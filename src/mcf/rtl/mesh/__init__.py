"""Many instances of compiled modules, wired by links, run cycle by cycle: the C++ of it and its face in Python."""
