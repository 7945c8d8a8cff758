import socket
import struct
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcf.dist import control
from mcf.dist.arrays import array_bytes, array_fields, frame_array
from mcf.dist.control import Channel, ChannelClosedError, ChannelStalledError, Frame, FrameReader, Message, encode_frame
from mcf.errors import TransportError


@pytest.fixture
def blob(monkeypatch):
    row = Message(required={"n": int}, optional={"s": float}, max_payload_bytes=1 << 24)
    monkeypatch.setitem(control.MESSAGES, "blob", row)


@pytest.fixture
def pair():
    ends = [Channel(sock, peer="the peer", send_timeout_s=0.0) for sock in socket.socketpair()]
    yield ends
    for end in ends:
        end.close()


def raw(text: bytes, payload: bytes = b"", magic: bytes = control.MAGIC, payload_bytes: int | None = None) -> bytes:
    length = len(payload) if payload_bytes is None else payload_bytes
    return struct.pack("<4sIQ", magic, len(text), length) + text + payload


def read(data: bytes) -> Frame | None:
    reader = FrameReader()
    reader.feed(data)
    return reader.next()


@given(st.lists(st.tuples(st.integers(-(2**70), 2**70), st.binary(max_size=40)), max_size=5), st.data())
def test_frames_come_out_as_they_went_in_however_the_bytes_are_cut(items, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(control.MESSAGES, "blob", Message(required={"n": int}, max_payload_bytes=64))
        frames = [Frame(type="blob", fields={"n": n}, payload=payload) for n, payload in items]
        stream = b"".join(encode_frame(frame) + frame.payload for frame in frames)
        reader, found = FrameReader(), []
        while stream:
            cut = data.draw(st.integers(1, len(stream)))
            reader.feed(stream[:cut])
            stream = stream[cut:]
            while (frame := reader.next()) is not None:
                found.append(frame)
    assert found == frames


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "starts with b'GET '"),
        (raw(b"{}"), "'type'"),
        (raw(b"[]"), "'type'"),
        (raw(b"nonsense"), "not json"),
        (raw(b"\xff\xfe"), "not json"),
        (raw(b"[" * 100_000), "not json"),
        (raw(b'{"type":"pickle"}'), "unknown type 'pickle'"),
        (raw(b'{"type":"beat","x":1}'), r"fields \['x'\]"),
        (raw(b'{"type":"ping"}'), r"expected \['token'\]"),
        (raw(b'{"type":"ping","token":"1"}'), "is str, expected int"),
        (raw(b'{"type":"ping","token":true}'), "is bool, expected int"),
        (raw(b'{"type":"beat"}', b"x"), "1 payload bytes; at most 0"),
        (raw(b'{"type":"beat"}', payload_bytes=1 << 40), "1099511627776 payload bytes"),
        (struct.pack("<4sIQ", control.MAGIC, 1 << 31, 0), "2147483648 json"),
    ],
)
def test_garbage_is_refused_in_words(data, says):
    with pytest.raises(TransportError, match=says):
        read(data)


def test_a_frame_that_is_too_long_is_refused_before_its_payload_comes():
    with pytest.raises(TransportError, match="at most 0 expected"):
        read(raw(b'{"type":"beat"}', payload_bytes=5))


@given(st.binary(max_size=200))
def test_no_bytes_do_worse_than_a_transport_error(data):
    try:
        frame = read(data)
    except TransportError:
        return
    assert frame is None or frame.type in control.MESSAGES


def test_bad_frames_are_not_sent(pair):
    for send in (lambda c: c.send("nonsense"), lambda c: c.send("ping"), lambda c: c.send("beat", b"x")):
        with pytest.raises(TransportError):
            send(pair[0])
    assert pair[1].recv(0.0) is None
    assert not pair[0].is_cut


@pytest.mark.usefixtures("blob")
def test_long_payloads_pass_while_both_sides_send():
    ends = [Channel(sock, peer="the peer") for sock in socket.socketpair()]
    payload = bytes(range(256)) * 40_000
    threads = [threading.Thread(target=end.send, args=("blob", payload), kwargs={"n": n}) for n, end in enumerate(ends)]
    for thread in threads:
        thread.start()
    got = [end.recv() for end in ends]
    for thread, end in zip(threads, ends, strict=True):
        thread.join()
        end.close()
    assert [(frame["n"], frame.payload == payload) for frame in got] == [(1, True), (0, True)]


@pytest.mark.usefixtures("blob")
def test_sends_of_several_threads_do_not_mix():
    left, right = (Channel(sock, peer="the peer") for sock in socket.socketpair())
    sends = [threading.Thread(target=left.send, args=("blob", bytes([n]) * 300_000), kwargs={"n": n}) for n in range(4)]
    for thread in sends:
        thread.start()
    got = {frame["n"]: set(frame.payload) for frame in (right.recv() for _ in sends)}
    for thread in sends:
        thread.join()
    left.close()
    right.close()
    assert got == {n: {n} for n in range(4)}


def test_frames_before_the_end_are_still_read(pair):
    pair[0].send("ping", token=1)
    pair[0].close()
    assert pair[1].recv(1.0) == Frame(type="ping", fields={"token": 1})
    with pytest.raises(ChannelClosedError, match="the peer closed"):
        pair[1].recv(1.0)
    with pytest.raises(ChannelClosedError, match="the peer closed"):
        pair[1].send("beat")


@pytest.mark.usefixtures("blob")
def test_a_peer_that_does_not_read_is_noticed_and_the_channel_is_known_to_be_cut(pair):
    with pytest.raises(ChannelStalledError, match="the peer does not read"):
        pair[0].send("blob", bytes(1 << 23), n=0)
    assert pair[0].is_cut


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_arrays_survive(dtype, shape):
    array = (np.arange(int(np.prod(shape))).reshape(shape) % 2).astype(dtype)
    frame = Frame(type="blob", fields=array_fields(array), payload=array_bytes(array))
    back = frame_array(frame)
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert np.array_equal(back, array)


def test_transposed_arrays_arrive_in_c_order():
    array = np.arange(6.0).reshape(2, 3).T
    back = frame_array(Frame(type="blob", fields=array_fields(array), payload=array_bytes(array)))
    assert np.array_equal(back, array)


@pytest.mark.parametrize(
    ("dtype", "shape", "payload"),
    [
        ("float32", [3], bytes(8)),
        ("float32", [-1], bytes(8)),
        ("object", [1], bytes(8)),
        ("float32", [2.0], bytes(8)),
        ("float32", ["2"], bytes(8)),
        ("float32", [1 << 40, 1 << 40], bytes(8)),
    ],
)
def test_arrays_that_do_not_fit_are_refused(dtype, shape, payload):
    with pytest.raises(TransportError):
        frame_array(Frame(type="blob", fields={"dtype": dtype, "shape": shape}, payload=payload))


def test_object_arrays_are_not_sent():
    with pytest.raises(TransportError, match="array of object"):
        array_fields(np.array([object()]))
