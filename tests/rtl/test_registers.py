"""The register map is sound as data: nothing overlaps, everything fits."""

import pytest

from mcf.rtl.registers import (
    ADDRESS_BITS,
    BY_NAME,
    COUNTER_INDEX,
    COUNTERS,
    ERRORS,
    REGISTERS,
    WINDOW_BY_NAME,
    WINDOWS,
    fields_of,
    markdown,
    value_of,
)


def test_no_two_words_share_an_address() -> None:
    words = [register.address for register in REGISTERS]
    words += [window.address + 4 * i for window in WINDOWS for i in range(window.num_words)]
    assert len(set(words)) == len(words)
    assert max(words) < 1 << ADDRESS_BITS
    assert {address % 4 for address in words} == {0}


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window.name)
def test_a_window_is_aligned_to_its_size(window) -> None:
    assert window.address % (4 << (window.num_words - 1).bit_length()) == 0, "hardware cuts its index from the address"
    assert window.width <= 32 * window.entry_words


@pytest.mark.parametrize("register", REGISTERS, ids=lambda register: register.name)
def test_the_fields_of_a_register_do_not_overlap(register) -> None:
    masks = [(1 << f.width) - 1 << f.low for f in register.fields]
    assert sum(masks) == sum(masks) | 0 < 1 << 32
    assert bin(sum(masks)).count("1") == sum(f.width for f in register.fields)


def test_words_and_fields_are_inverse() -> None:
    word = value_of("node", id=513, x=3, y=30, last=1023)
    assert word == 513 | 3 << 10 | 30 << 15 | 1023 << 20
    assert fields_of("node", word) == {"id": 513, "x": 3, "y": 30, "last": 1023}


def test_the_document_names_everything() -> None:
    text = markdown()
    names = [*BY_NAME, *WINDOW_BY_NAME, *COUNTER_INDEX, *(name for name, _ in ERRORS)]
    assert [name for name in names if f"`{name}`" not in text] == []
    assert len(COUNTER_INDEX) == len(COUNTERS)
