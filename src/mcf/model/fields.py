"""Reading single fields of a `config.json` dict, which comes from outside: every wrong type is a `ModelError`."""

from collections.abc import Mapping
from typing import Any

from mcf.errors import ModelError

Config = Mapping[str, Any]
MAX_SIZE = 2**40  # far above any model, and small enough for exact arithmetic


def kind(config: Config) -> str:
    """Give the model type, such as `llama`; empty where config has none."""
    return str(config.get("model_type") or "")


def strings(config: Config, key: str) -> list[str]:
    """Read a list of names; empty where it is missing or null."""
    value = config.get(key)
    if value is None:
        return []
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ModelError(f"got {short(value)} as {key} in config.json: expected a list of names")
    return list(value)


def size(config: Config, key: str, default: int | None = None) -> int:
    """Read a whole number of at least 1; where it is missing or null, take the default or refuse."""
    value = config.get(key)
    if value is None:
        if default is None:
            raise ModelError(f"got no {key!r} in config.json: expected a whole number of at least 1")
        return default
    return check_size(key, value)


def check_size(field: str, value: object) -> int:
    """Return value where it is a whole number of at least 1 and not absurdly large; raise `ModelError` elsewhere."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
        raise ModelError(f"got {short(value)} as {field}: expected a whole number of at least 1")
    return value


def short(value: object) -> str:
    """Show any value from a config in a message."""
    text = ascii(value) if not isinstance(value, int) or abs(value) <= MAX_SIZE else "a huge number"
    return line(text)


def line(text: str) -> str:
    """Make text from a file fit into one line of a message."""
    line = " ".join(part for part in text.split() if part.isprintable())
    return line if len(line) <= 80 else f"{line[:80]}..."
