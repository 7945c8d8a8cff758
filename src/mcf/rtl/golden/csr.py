"""The control and status registers in plain Python: a dict of words, and a log of what was handed to hardware."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mcf.rtl.registers import REGISTERS, WINDOWS, Access, Register, Window

OKAY, SLVERR = 0, 2
_BY_ADDRESS = {register.address: register for register in REGISTERS}


@dataclass(kw_only=True)
class Registers:
    """What software sees; `inputs` is what hardware shows on registers that it owns, `tables` what windows read."""

    inputs: Mapping[str, int]
    tables: Mapping[str, list[int]]
    words: dict[str, int] = field(default_factory=lambda: {r.name: r.value for r in REGISTERS})
    handed: list[tuple[str, int, int]] = field(default_factory=list)  # name, index, data; strobes have index 0
    _earlier: dict[int, int] = field(default_factory=dict)

    def read(self, address: int) -> tuple[int, int]:
        """Return (response, word)."""
        register = _BY_ADDRESS.get(address & ~3)
        if register is not None:
            return (SLVERR, 0) if register.access is Access.STROBE else (OKAY, self._word(register))
        window, number, part = _place(address)
        if window is None or window.access is not Access.WINDOW_READ:
            return SLVERR, 0
        return OKAY, self.tables[window.name][number * window.stride_words + part]

    def write(self, address: int, word: int, strobes: int = 0b1111) -> int:
        """Return the response."""
        if strobes != 0b1111:
            return SLVERR
        register = _BY_ADDRESS.get(address & ~3)
        if register is not None:
            return self._write_register(register, word)
        window, number, part = _place(address)
        if window is None or window.access is not Access.WINDOW_WRITE:
            return SLVERR
        self._write_window(window, number, part, word)
        return OKAY

    def raise_errors(self, bits: int) -> None:
        """Hardware reports errors: they stay until software clears them."""
        self.words["errors"] |= bits

    def _word(self, register: Register) -> int:
        return self.inputs[register.name] if register.access is Access.READ else self.words[register.name]

    def _write_register(self, register: Register, word: int) -> int:
        kept = word & (1 << register.width) - 1
        if register.access is Access.READ_WRITE:
            self.words[register.name] = kept
        elif register.access is Access.CLEAR:
            self.words[register.name] &= ~kept
        elif register.access is Access.STROBE:
            self.handed.append((register.name, 0, kept))
        else:
            return SLVERR
        return OKAY

    def _write_window(self, window: Window, number: int, part: int, word: int) -> None:
        if not window.is_whole:
            self.handed.append((window.name, number * window.stride_words + part, word))
            return
        self._earlier[part] = word
        if part == window.entry_words - 1:
            whole = sum(self._earlier.get(i, 0) << 32 * i for i in range(window.entry_words))
            self.handed.append((window.name, number, whole & (1 << window.width) - 1))


def _place(address: int) -> tuple[Window | None, int, int]:
    """The window of an address, its entry and its word; None where there is none."""
    for window in WINDOWS:
        number, part = divmod((address - window.address) // 4, window.stride_words)
        if 0 <= number < window.num_entries and part < window.entry_words:
            return window, number, part
    return None, 0, 0
