"""Logits to a token id: greedy, or temperature and nucleus sampling with a seed. numpy only."""

import numpy as np
from numpy.typing import NDArray

from mcf.errors import RunError, UserError


class Sampler:
    """Draws one id per call. The same seed and the same logits give the same ids, whatever the number of workers.

    `temperature` 0 takes the most likely id (the lowest of equals); `top_p` keeps the smallest set of ids whose
    probability reaches it. Raises UserError for values outside their ranges.
    """

    def __init__(self, *, temperature: float = 0.0, top_p: float = 1.0, seed: int = 0) -> None:
        if not 0.0 <= temperature <= 100.0:
            raise UserError(f"got temperature {temperature}: expected 0 (greedy) to 100")
        if not 0.0 < top_p <= 1.0:
            raise UserError(f"got top_p {top_p}: expected more than 0 and at most 1")
        if not 0 <= seed < 2**63:
            raise UserError(f"got seed {seed}: expected 0 to 2**63 - 1")
        self.temperature, self.top_p = temperature, top_p
        self._random = np.random.default_rng(seed)

    def pick(self, logits: NDArray[np.float32]) -> int:
        """Return the next id for logits [V]. Raises RunError when they are not numbers."""
        if not np.isfinite(logits).all():
            raise RunError("the model gave logits that are not finite numbers: its weights or its dtype are at fault")
        if not self.temperature:
            return int(logits.argmax())
        scaled = logits.astype(np.float64) / self.temperature
        weights = np.exp(scaled - scaled.max())
        probs = weights / weights.sum()
        order = np.argsort(-probs, kind="stable")
        cumulative = probs[order].cumsum()
        kept = order[: int(np.searchsorted(cumulative, self.top_p * cumulative[-1])) + 1]
        mass = probs[kept].cumsum()
        return int(kept[min(int(np.searchsorted(mass, self._random.random() * mass[-1], side="right")), len(kept) - 1)])
