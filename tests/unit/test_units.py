"""Quantities: exact reading, one-line refusals, printing that reads well."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcf.errors import UnitError, UserError
from mcf.units import (
    format_bytes,
    format_rate,
    format_seconds,
    format_tokens,
    parse_bytes,
    parse_rate,
    parse_seconds,
    parse_tokens,
)

PARSERS = [parse_bytes, parse_tokens, parse_rate, parse_seconds]
BAD_TEXT = ["", " ", "-1", "-5MiB", "nan", "NaN", "inf", "-inf", "1e3", "1,5", "1 2", "x", "1_000", "0x10", "1\n2"]
BAD_TEXT += ["1..5", "--", "\N{ARABIC-INDIC DIGIT THREE}", "9" * 50, "1" + "0" * 10**5]
BAD_VALUES = [-1, float("nan"), float("inf"), float("-inf"), None, True, [1], b"1"]


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("256MiB", 256 * 2**20),
        ("1GB", 10**9),
        ("24GiB", 24 * 2**30),
        ("1024", 1024),
        (1024, 1024),
        ("1 KiB", 1024),
        (" 2TiB ", 2 * 2**40),
        ("3kB", 3000),
        ("3KB", 3000),
        ("7B", 7),
        ("5MB", 5 * 10**6),
        ("5TB", 5 * 10**12),
        ("0.1GB", 10**8),
        (".5KiB", 512),
        ("2gib", 2 * 2**30),
    ],
)
def test_bytes_are_read_exactly(text: str | int, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize(
    ("text", "num_tokens"), [("8k", 8192), ("8K", 8192), ("1M", 1048576), ("300", 300), (300, 300), ("1.5k", 1536)]
)
def test_k_means_1024_tokens(text: str | int, num_tokens: int) -> None:
    assert parse_tokens(text) == num_tokens


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1Gbps", 1e9),
        ("100Mbit/s", 1e8),
        ("10kbps", 1e4),
        ("1Tbps", 1e12),
        ("9600bps", 9600.0),
        ("9600 bit/s", 9600.0),
        ("125MB/s", 1e9),
        ("1MiB/s", 8.0 * 2**20),
        (2.5e9, 2.5e9),
        ("800", 800.0),
    ],
)
def test_rates_are_bits_per_second(text: str | float, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("200us", 2e-4),
        ("200\N{MICRO SIGN}s", 2e-4),
        ("200\N{GREEK SMALL LETTER MU}s", 2e-4),
        ("1.5s", 1.5),
        ("2m", 120.0),
        ("2min", 120.0),
        ("1h", 3600.0),
        ("3ms", 3e-3),
        ("4ns", 4e-9),
        ("30", 30.0),
        (0.25, 0.25),
        ("0s", 0.0),
        (0, 0.0),
    ],
)
def test_durations_are_seconds(text: str | float, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("bad", BAD_TEXT + BAD_VALUES)
def test_bad_input_is_one_line_that_says_got_and_expected(parse, bad: object) -> None:
    with pytest.raises(UnitError) as caught:
        parse(bad)
    message = str(caught.value)
    assert message.startswith("got ")
    assert "expected for example" in message
    assert "\n" not in message
    assert len(message) < 200
    assert isinstance(caught.value, UserError)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("parse", [parse_bytes, parse_tokens, parse_rate])
@pytest.mark.parametrize("zero", ["0", "0.0", 0])
def test_zero_is_refused_where_it_makes_no_sense(parse, zero: str | int) -> None:
    with pytest.raises(UnitError, match="above zero"):
        parse(zero)


@pytest.mark.parametrize(
    ("parse", "text", "why"),
    [
        (parse_bytes, "24G", "unknown unit 'G'; known are GB, GiB"),
        (parse_bytes, "24Gb", "unknown unit 'Gb'"),
        (parse_bytes, "24gb", "unknown unit 'gb'"),
        (parse_bytes, "1.0001KiB", "not a whole number"),
        (parse_bytes, "1.5", "not a whole number"),
        (parse_bytes, 1.5, "not a whole number"),
        (parse_bytes, "9223372036854775808", "too large"),
        (parse_tokens, "8kB", "unknown unit 'kB'; known are k, K"),
        (parse_tokens, "8m", "unknown unit 'm'; known are M"),
        (parse_rate, "1G", "unknown unit 'G'"),
        (parse_rate, "1Mb", "unknown unit 'Mb'"),
        (parse_seconds, "1d", "unknown unit 'd'"),
        (parse_seconds, "5 parsecs", "unknown unit 'parsecs'"),
    ],
)
def test_the_reason_is_named(parse, text: str | float, why: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse(text)
    assert why in str(caught.value)


@given(st.integers(1, 2**62))
def test_whole_bytes_and_tokens_survive_a_round_trip(number: int) -> None:
    assert parse_bytes(str(number)) == number
    assert parse_tokens(format_tokens(number)) == number


@given(st.integers(1, 1000 * 2**40))
def test_printed_bytes_are_close(number: int) -> None:
    text = format_bytes(number)
    value, unit = text.split()
    factor = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[unit]
    assert abs(float(value) * factor - number) <= 0.0051 * number
    assert float(value) < 1024


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (2**20 - 1, "1 MiB"),
        (1234567, "1.18 MiB"),
        (256 * 2**20, "256 MiB"),
        (5000 * 2**40, "5000 TiB"),
        (-1536, "-1.5 KiB"),
    ],
)
def test_bytes_print_with_binary_units(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (5e-9, "5 ns"),
        (2e-4, "200 us"),
        (0.0125, "12.5 ms"),
        (0.99999, "1 s"),
        (59.94, "59.9 s"),
        (119.4, "119 s"),
        (119.6, "2 m 0 s"),
        (3599.6, "1 h 0 m"),
        (7384.0, "2 h 3 m"),
    ],
)
def test_durations_print_for_people(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_rates_print_in_decimal_bits() -> None:
    assert [format_rate(rate) for rate in (800.0, 1e6, 999.9e6, 2.5e9)] == [
        "800 bit/s",
        "1 Mbit/s",
        "1 Gbit/s",
        "2.5 Gbit/s",
    ]
