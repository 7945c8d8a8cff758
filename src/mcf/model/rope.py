"""Rotary positions: which kinds MCF computes rightly, and the window that a config announces with them."""

from collections.abc import Mapping

from mcf.errors import ModelError
from mcf.model.fields import Config, short, size

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_MAX_FACTOR = 2**20  # far above any model


def max_positions(config: Config) -> int:
    """Give the window in tokens that config announces, RoPE scaling included.

    `linear` and `yarn` stretch the pre-training window by their factor. `llama3` configs already name the stretched
    window. YaRN without a factor takes its factor from the two windows.
    """
    announced = size(config, "max_position_embeddings")
    return min((_stretched(rope, config, announced) for rope in rope_params(config)), default=announced)


def rope_params(config: Config) -> list[Config]:
    """List the RoPE dicts: one, none, or one for each layer type. The older `rope_scaling` wins, as in transformers."""
    params = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(params, Mapping):
        raise ModelError(f"got {short(params)} as RoPE parameters in config.json: expected an object with a rope_type")
    nested = [value for value in params.values() if isinstance(value, Mapping)]
    return nested or ([params] if params else [])


def _rope_type(rope: Config) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")


def check_rope(rope: Config) -> None:
    """Raise `ModelError` for a RoPE dict that MCF would compute wrongly."""
    kind = _rope_type(rope)
    if kind in ("dynamic", "longrope"):
        raise ModelError(
            f"got RoPE type {short(kind)}, whose angles depend on the length of each call: expected one of "
            f"{', '.join(ROPE_TYPES)}"
        )
    if kind not in ROPE_TYPES or rope.get("mrope_section"):
        raise ModelError(f"got unknown RoPE type {short(kind)}: expected one of {', '.join(ROPE_TYPES)}")
    factor = rope.get("factor")
    if kind == "default":
        if factor not in (None, 1, 1.0):
            raise ModelError(
                f"got a RoPE factor of {short(factor)} without a rope_type: expected one of {ROPE_TYPES[1:]}"
            )
    elif not _is_factor(factor) and not (kind == "yarn" and factor is None):
        raise ModelError(
            f"got {short(factor)} as the factor of RoPE type {short(kind)}: expected a number of at least 1"
        )


def _is_factor(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value <= _MAX_FACTOR


def _stretched(rope: Config, config: Config, announced: int) -> int:
    if _rope_type(rope) not in ("linear", "yarn") or rope.get("factor") is None:
        return announced
    key = "original_max_position_embeddings"
    original = size(config, key, size(rope, key, announced))
    return int(original * float(rope["factor"]))
