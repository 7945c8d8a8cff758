"""MARS as the paper states it: one pure function per equation, in its letters. No packets, tensors, clocks."""

from mcf.mars.chunk import auto_chunk, fits_buffer
from mcf.mars.converge import is_converged, surplus
from mcf.mars.cost import B_c, C_full, C_ring, M_chunk, M_hist, M_token, R, h
from mcf.mars.placement import Links, give_up, hop_matrix, nearest_links, spread, targets
from mcf.mars.replicas import (
    M_node,
    default_alpha,
    is_worth_copying,
    most_over,
    r,
    r_feasible,
    r_mem,
    r_reuse,
)

__all__ = [
    "B_c",
    "C_full",
    "C_ring",
    "Links",
    "M_chunk",
    "M_hist",
    "M_node",
    "M_token",
    "R",
    "auto_chunk",
    "default_alpha",
    "fits_buffer",
    "give_up",
    "h",
    "hop_matrix",
    "is_converged",
    "is_worth_copying",
    "most_over",
    "nearest_links",
    "r",
    "r_feasible",
    "r_mem",
    "r_reuse",
    "spread",
    "surplus",
    "targets",
]
