"""The partial state of attention (max, sum, output) and its merge law: arithmetic only, nothing about nodes.

This face is numpy only. The torch kernels, for real workers, are imported by name: `mcf.attn.kernels`.
"""

from mcf.attn.state import PartialState, attend, empty, finish, lse, merge

__all__ = ["PartialState", "attend", "empty", "finish", "lse", "merge"]
