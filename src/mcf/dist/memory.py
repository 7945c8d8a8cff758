"""A worker that runs out of memory: recognised, and said in words. Needs the standard library alone."""

import re
from pathlib import Path

from mcf.units import format_bytes

KIND = "OutOfMemory"
CURE = "use more workers, a smaller --kv-memory or --chunk-tokens, or --dtype bfloat16"
_DOING = {
    "join": "while its libraries were loaded",
    "load": "while the weights were loaded",
    "plan": "while the KV pool was taken",
    "prefill": "in prefill",
    "decode": "in decode",
}
# what torch, numpy, safetensors and the system say; the first two name how much was asked for
_ASKED = re.compile(r"allocate (?P<bytes>\d+) bytes|[Uu]nable to allocate (?P<size>[\d.]+ [KMGTPE]?i?B)")
_SAYS = ("can't allocate memory", "Cannot allocate memory", "Unable to allocate", "bad_alloc", "not enough memory")


def is_out_of_memory(exc: BaseException) -> bool:
    """Say whether an exception means that memory was refused."""
    return isinstance(exc, MemoryError) or any(words in str(exc) for words in _SAYS)


def in_words(text: str, doing: str) -> str:
    """Return one line from an exception's text: where (`doing` is a frame's type), how much was asked, what to do."""
    found = _ASKED.search(text)
    asked = ""
    if found is not None:
        size = found["size"] or format_bytes(int(found["bytes"]))
        asked = f": it asked for {size} more and did not get it"
    where = f" {_DOING[doing]}" if doing in _DOING else ""
    return f"out of memory{where}{asked}; {CURE}"


def num_oom_kills() -> int | None:
    """Return how many processes this machine has killed for want of memory, None where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    counts = [line.split()[1] for line in lines if line.startswith("oom_kill ")]
    return int(counts[0]) if counts else None
