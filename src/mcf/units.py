"""Quantities as people write them: bytes, tokens, bits per second, seconds.

    bytes    `kB MB GB TB` are decimal, `KiB MiB GiB TiB` binary; a plain number is bytes
    tokens   `k` is 1,024 and `M` 1,048,576; a plain number is tokens
    rates    `kbps Mbps Gbps Tbps` or `kbit/s Mbit/s ...` are bits, `MB/s MiB/s ...` bytes; a plain number is bit/s
    seconds  `ns us ms s m h`; a plain number is seconds

Numbers are read exactly (as fractions), so `0.1GB` is 100,000,000 bytes. Whoever parses gets a value that is finite and
not negative, or a `UnitError` of one line.
"""

import math
import re
from collections.abc import Mapping
from fractions import Fraction

from mcf.errors import UnitError

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+) ?([^\W\d_/]*(?:/s)?)")
_LONGEST = 40  # characters: no quantity needs more, and it bounds the work done on bad input
_MAX_INT = 2**63 - 1  # what a column of a schedule can hold

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

_Factors = Mapping[str, Fraction]


def _factors(*tables: dict[str, int | Fraction]) -> _Factors:
    return {unit: Fraction(factor) for table in tables for unit, factor in table.items()}


_BYTES = _factors(
    {"": 1, "KB": 10**3},
    {f"{prefix}B": factor for prefix, factor in (_DECIMAL | _BINARY).items()},
    {f"{prefix}B".lower(): factor for prefix, factor in _BINARY.items()},  # `gb` could be bits, `gib` could not
)
_TOKENS = _factors({"": 1, "k": 2**10, "K": 2**10, "M": 2**20})
_RATES = _factors(
    {"": 1},
    {f"{prefix}bps": factor for prefix, factor in _DECIMAL.items()},
    {f"{prefix}bit/s": factor for prefix, factor in _DECIMAL.items()},
    {f"{prefix}B/s": 8 * factor for prefix, factor in (_DECIMAL | _BINARY).items()},
)
_SECONDS = _factors(
    {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600},
    {"ms": Fraction(1, 10**3), "us": Fraction(1, 10**6), "ns": Fraction(1, 10**9)},
    {"\N{MICRO SIGN}s": Fraction(1, 10**6), "\N{GREEK SMALL LETTER MU}s": Fraction(1, 10**6)},
)


def count(num: int, what: str) -> str:
    """Return a number of things in words.

    >>> count(1, "token"), count(2048, "token")
    ('1 token', '2,048 tokens')
    """
    return f"{num:,} {what}{'' if num == 1 else 's'}"


def parse_bytes(value: str | int) -> int:
    """Read a memory size, at least one byte.

    >>> parse_bytes("256MiB"), parse_bytes("1GB"), parse_bytes("1024"), parse_bytes("1.5KiB")
    (268435456, 1000000000, 1024, 1536)
    """
    return _whole(value, _BYTES, "size in bytes", "256MiB, 24GiB or 1GB")


def parse_tokens(value: str | int) -> int:
    """Read a number of tokens, at least one.

    >>> parse_tokens("8k"), parse_tokens("1M"), parse_tokens("300")
    (8192, 1048576, 300)
    """
    return _whole(value, _TOKENS, "number of tokens", "300, 8k or 1M")


def parse_rate(value: str | float) -> float:
    """Read a link's rate in bits per second, above zero.

    >>> parse_rate("1Gbps"), parse_rate("100Mbit/s"), parse_rate("125MB/s")
    (1000000000.0, 100000000.0, 1000000000.0)
    """
    what, examples = "rate", "1Gbps, 100Mbit/s or 125MB/s"
    rate = _exact(value, _RATES, what, examples)
    if rate == 0:
        raise _refusal(value, what, examples, "it must be above zero")
    return float(rate)


def parse_seconds(value: str | float) -> float:
    """Read a duration in seconds; zero is allowed.

    >>> parse_seconds("200us"), parse_seconds("1.5s"), parse_seconds("2m")
    (0.0002, 1.5, 120.0)
    """
    return float(_exact(value, _SECONDS, "duration", "200us, 1.5s or 2m"))


def format_bytes(num_bytes: float) -> str:
    """Print a memory size with a binary unit and about three digits.

    >>> format_bytes(268435456), format_bytes(1000), format_bytes(1536), format_bytes(0)
    ('256 MiB', '1000 B', '1.5 KiB', '0 B')
    """
    return _scaled(num_bytes, 1024.0, ("B", "KiB", "MiB", "GiB", "TiB"))


def format_rate(bits_per_s: float) -> str:
    """Print a rate in bits per second.

    >>> format_rate(1e9), format_rate(1.25e8)
    ('1 Gbit/s', '125 Mbit/s')
    """
    return _scaled(bits_per_s, 1000.0, ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"))


def format_seconds(seconds: float) -> str:
    """Print a duration.

    >>> format_seconds(0.0002), format_seconds(1.5), format_seconds(125), format_seconds(7384)
    ('200 us', '1.5 s', '2 m 5 s', '2 h 3 m')
    """
    if round(seconds) >= 3600:
        minutes = round(seconds / 60)
        return f"{minutes // 60} h {minutes % 60} m"
    if round(seconds) >= 120:
        whole = round(seconds)
        return f"{whole // 60} m {whole % 60} s"
    if seconds >= 1 or seconds <= 0:
        return f"{_digits(seconds)} s"
    return _scaled(seconds * 1e9, 1000.0, ("ns", "us", "ms", "s"))


def format_tokens(num_tokens: int) -> str:
    """Print a number of tokens so that `parse_tokens` reads the same number.

    >>> format_tokens(8192), format_tokens(1048576), format_tokens(6700)
    ('8k', '1M', '6700')
    """
    for unit, factor in (("M", 2**20), ("k", 2**10)):
        if num_tokens and num_tokens % factor == 0:
            return f"{num_tokens // factor}{unit}"
    return str(num_tokens)


def _whole(value: str | int, factors: _Factors, what: str, examples: str) -> int:
    exact = _exact(value, factors, what, examples)
    if exact.denominator != 1:
        raise _refusal(value, what, examples, "it is not a whole number")
    if not 1 <= exact <= _MAX_INT:
        raise _refusal(value, what, examples, "it must be above zero" if exact == 0 else "it is too large")
    return int(exact)


def _exact(value: str | float, factors: _Factors, what: str, examples: str) -> Fraction:
    if isinstance(value, str):
        return _exact_text(value, factors, what, examples)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _refusal(value, what, examples, "it is not a finite number")
    if value < 0:
        raise _refusal(value, what, examples, "it is negative")
    return Fraction(value)


def _exact_text(value: str, factors: _Factors, what: str, examples: str) -> Fraction:
    text = value.strip()
    if text.startswith("-"):
        raise _refusal(value, what, examples, "it is negative")
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise _refusal(value, what, examples)
    number, unit = match.groups()
    if unit not in factors:
        raise _refusal(value, what, examples, f"unknown unit {unit!r}{_near_unit(unit, factors)}")
    return Fraction(number) * factors[unit]


def _near_unit(unit: str, factors: _Factors) -> str:
    same_letter = [known for known in factors if known and known[0].lower() == unit[0].lower()]
    return f"; known are {', '.join(same_letter)}" if same_letter else ""


def _refusal(value: object, what: str, examples: str, why: str = "") -> UnitError:
    text = repr(value)
    got = text if len(text) <= _LONGEST + 2 else f"{text[:_LONGEST]}..."
    return UnitError(f"got {got} as {what}{why and f' ({why})'}: expected for example {examples}")


def _scaled(value: float, base: float, units: tuple[str, ...]) -> str:
    number, rank = float(value), 0
    while rank < len(units) - 1 and round(abs(number), 3 if rank == 0 else 0) >= base:
        number, rank = number / base, rank + 1
    return f"{_digits(number)} {units[rank]}"


def _digits(number: float) -> str:
    decimals = 2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 else 0
    text = f"{number:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
