"""Calls that ask no name server."""

import ctypes
import platform
import socket
import threading

import pytest

from mcf.dist.names import without_names

needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the resolver of glibc")


def attempts() -> int:
    """How often this thread asks each name server: `retry` of resolv.h's struct, behind `retrans`."""
    libc = ctypes.CDLL(None)
    state = libc.__res_state
    state.restype = ctypes.POINTER(ctypes.c_int)
    return state()[1]


def fail() -> None:
    raise ValueError("as it was raised")


def test_it_returns_and_raises_what_the_call_does() -> None:
    assert without_names(lambda: [threading.current_thread().name, None]) == ["mcf-nameless", None]
    assert without_names(lambda: None) is None
    with pytest.raises(ValueError, match="as it was raised"):
        without_names(fail)


@needs_glibc
def test_only_the_calls_own_thread_asks_nobody() -> None:
    ctypes.CDLL(None).__res_init()
    usual = attempts()
    assert usual > 0
    assert without_names(attempts) == 0
    assert attempts() == usual


@needs_glibc
def test_names_of_this_host_are_still_known() -> None:
    assert without_names(lambda: socket.gethostbyname("localhost")).startswith("127.")
    assert without_names(lambda: socket.getnameinfo(("127.0.0.1", 80), 0))[0] == "localhost"
    with pytest.raises(socket.gaierror):
        without_names(lambda: socket.getnameinfo(("192.0.2.1", 80), socket.NI_NAMEREQD))  # an address of no host
