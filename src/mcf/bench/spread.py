"""Repeated measurements in a few numbers, and the ratio of two of them."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from mcf.errors import UserError


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return `median`, `low` and `high` (the quartiles), `min`, `max` and the `values` in the order measured."""
    if not values:
        raise UserError("got no measurement: expected at least one round")
    low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {
        "median": median,
        "low": low,
        "high": high,
        "min": min(values),
        "max": max(values),
        "values": list(values),
    }


def ratio(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, float]:
    """Return the ratio of the medians of two spreads, and the range between their opposite quartiles."""
    return {"median": a["median"] / b["median"], "low": a["low"] / b["high"], "high": a["high"] / b["low"]}
