"""Calls that ask no name server.

Torch's store client looks up the name of every address that it connects to, for its log alone, and its time-out runs
meanwhile. Where the name server does not answer, as on hosts without a way to the internet, that takes 10 s each time.
"""

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_RETRY = 1  # where resolv.h's struct has the number of attempts, counted in ints


def without_names(call: Callable[[], T]) -> T:
    """Return what the call returns, or raise what it raises; it runs in a thread whose name lookups fail at once.

    Names in /etc/hosts are still found. Where the system's library is not glibc the call looks up names as usual.
    """
    found: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        _forget_name_servers()
        try:
            found.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="mcf-nameless", daemon=True)
    thread.start()
    thread.join()
    for error in errors:
        raise error
    return found[0]


def _forget_name_servers() -> None:
    """Set this thread's attempts per name server to 0 (resolver(3)); the state is each thread's own."""
    libc = ctypes.CDLL(None)
    try:
        init, state = libc.__res_init, libc.__res_state
    except AttributeError:
        return
    state.restype = ctypes.POINTER(ctypes.c_int)
    if init() == 0:
        state()[_RETRY] = 0
