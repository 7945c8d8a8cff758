"""The control channel between the head and one worker: typed frames over a socket pair, or over TCP between hosts.

A frame is `magic (4 bytes) | json length (u32) | payload length (u64) | json | payload`, little endian. The json is one
object whose `"type"` names a row of `MESSAGES`; the row says which fields it has and how long its payload may be.
Nothing is unpickled. Lengths are checked before anything is kept for them. This file needs the standard library alone,
so that a worker can beat before it imports anything heavy.
"""

import json
import select
import socket
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mcf.errors import TransportError

PROTOCOL = 1
MAGIC = b"MCFc"
MAX_JSON_BYTES = 1 << 20
MAX_PAYLOAD_BYTES = 1 << 30
_HEADER = struct.Struct("<4sIQ")
_READ_BYTES = 1 << 20


class ChannelClosedError(TransportError):
    """The other end of a channel has gone."""


class ChannelStalledError(TransportError):
    """The other end of a channel does not read."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """One row of the message table: the fields a type must and may have, and its longest payload."""

    required: Mapping[str, type] = field(default_factory=dict)
    optional: Mapping[str, type] = field(default_factory=dict)
    max_payload_bytes: int = 0


MESSAGES: dict[str, Message] = {
    # worker -> head
    "hello": Message(
        required={"rank": int, "pid": int, "protocol": int, "versions": dict}, optional={"host": str, "dtype": str}
    ),
    "model": Message(required={"fingerprint": str}),
    "joined": Message(),
    "examined": Message(required={"facts": dict}),
    "clocked": Message(required={"wall_s": float, "monotonic_s": float}),
    "listening": Message(required={"port": int, "why": str}),
    "reached": Message(required={"results": list}),
    "unlistened": Message(),
    "measured_compute": Message(required={"rates": dict}),
    "measured_link": Message(required={"links": list, "port_bytes_s": float}),
    "pong": Message(required={"token": int, "num_threads": int}),
    "echoed": Message(required={"counters": list}),
    "measured": Message(required={"numbers": dict}),
    "loaded": Message(required={"num_layers": int, "vocab_size": int, "weight_bytes": int}),
    "planned": Message(required={"pool_bytes": int}),
    "progress": Message(required={"chunk": int, "held_tokens": int}),
    "prefilled": Message(required={"t_start": float, "t_end": float}, max_payload_bytes=MAX_PAYLOAD_BYTES),
    "converged": Message(required={"blocks": list, "peak_bytes": int, "in_use_bytes": int}),
    "logits": Message(max_payload_bytes=MAX_PAYLOAD_BYTES),
    "held": Message(required={"chunk": int}),
    "dropped": Message(),
    "inspected": Message(
        required={"pool_bytes": int, "rss_bytes": int, "num_fds": int, "num_threads": int},
    ),
    "finished": Message(required={"counters": list, "peak_bytes": int}, max_payload_bytes=MAX_PAYLOAD_BYTES),
    "error": Message(required={"kind": str, "message": str, "user": bool}, optional={"peer": int, "trace": str}),
    # head -> worker
    "join": Message(required={"port": int, "timeout_s": float}, optional={"prefix": str}),
    "examine": Message(required={"peers": list, "cache": str, "folder": str}),
    "clock": Message(),
    "listen": Message(required={"address": str, "token": str}),
    "reach": Message(required={"targets": list, "token": str}),
    "unlisten": Message(),
    "measure_compute": Message(required={"sizes": dict}),
    "measure_link": Message(required={"probe_bytes": int, "most_bytes": int, "seconds": float}),
    "ping": Message(required={"token": int}),
    "echo_state": Message(required={"num_floats": int}),
    "measure": Message(required={"what": str, "dtype": str, "num_bytes": int}),
    "load": Message(required={"folder": str, "dtype": str, "num_threads": int}),
    "plan": Message(
        required={"sha256": str, "page_bytes": int, "slot_bytes": int},
        optional={"poison": bool},
        max_payload_bytes=MAX_PAYLOAD_BYTES,
    ),
    "prefill": Message(max_payload_bytes=MAX_PAYLOAD_BYTES),
    "converge": Message(),
    "decode": Message(required={"token": int, "index": int, "want_logits": bool}),
    "finish": Message(),
    "hold": Message(),
    "stop_after": Message(required={"chunk": int}),
    "drop": Message(),
    "inspect": Message(),
    "shutdown": Message(),
    "abort": Message(required={"why": str}),
    # both ways
    "beat": Message(),
}


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One message: its type, its json fields and its raw payload."""

    type: str
    fields: Mapping[str, Any]
    payload: bytes = b""

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


def _fits(value: object, kind: type) -> bool:
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind


def check_frame(frame: Frame) -> None:
    """Raise TransportError unless the frame fits its row of `MESSAGES`."""
    row = MESSAGES.get(frame.type)
    if row is None:
        raise TransportError(f"control frame of unknown type {frame.type!r}; known are {', '.join(sorted(MESSAGES))}")
    allowed = {**row.required, **row.optional}
    missing = row.required.keys() - frame.fields.keys()
    if missing or frame.fields.keys() - allowed.keys():
        raise TransportError(
            f"control frame {frame.type!r} has fields {sorted(frame.fields)}; expected {sorted(allowed)}"
        )
    for name, value in frame.fields.items():
        if not _fits(value, allowed[name]):
            raise TransportError(
                f"control frame {frame.type!r}: field {name!r} is {type(value).__name__}, "
                f"expected {allowed[name].__name__}"
            )
    _check_payload_length(frame.type, len(frame.payload))


def _check_payload_length(kind: str, num_bytes: int) -> None:
    limit_bytes = MESSAGES[kind].max_payload_bytes
    if num_bytes > limit_bytes:
        raise TransportError(f"control frame {kind!r} has {num_bytes} payload bytes; at most {limit_bytes} expected")


def _check_header(magic: bytes, json_bytes: int, payload_bytes: int) -> None:
    if magic != MAGIC:
        raise TransportError(f"control frame starts with {magic!r}; expected {MAGIC!r}")
    if json_bytes > MAX_JSON_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
        raise TransportError(
            f"control frame announces {json_bytes} json and {payload_bytes} payload bytes; "
            f"at most {MAX_JSON_BYTES} and {MAX_PAYLOAD_BYTES} expected"
        )


def encode_frame(frame: Frame) -> bytes:
    """Return everything that goes before the payload: header and json. Raises TransportError as `check_frame`."""
    check_frame(frame)
    text = json.dumps({"type": frame.type, **frame.fields}, separators=(",", ":")).encode()
    _check_header(MAGIC, len(text), len(frame.payload))
    return _HEADER.pack(MAGIC, len(text), len(frame.payload)) + text


def _decode_json(text: bytes) -> Frame:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise TransportError(f"control frame is not json: {exc}") from exc
    if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
        raise TransportError("control frame is not a json object with a 'type'")
    return Frame(type=fields.pop("type"), fields=fields)


class FrameReader:
    """Turns bytes, however they are cut, into frames. Does no input or output itself."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: Frame | None = None
        self._payload_bytes = 0

    def feed(self, data: bytes) -> None:
        """Add bytes that have arrived."""
        self._buffer += data

    def next(self) -> Frame | None:
        """Return the next whole frame, or None if it is not all here. Raises TransportError on garbage."""
        head = self._head or self._read_head()
        if head is None or len(self._buffer) < self._payload_bytes:
            return None
        self._head = None
        return Frame(type=head.type, fields=head.fields, payload=self._take(self._payload_bytes))

    def _read_head(self) -> Frame | None:
        if len(self._buffer) < _HEADER.size:
            return None
        magic, json_bytes, payload_bytes = _HEADER.unpack_from(self._buffer)
        _check_header(magic, json_bytes, payload_bytes)
        if len(self._buffer) < _HEADER.size + json_bytes:
            return None
        self._take(_HEADER.size)
        self._head = _decode_json(self._take(json_bytes))
        self._payload_bytes = payload_bytes
        check_frame(self._head)
        _check_payload_length(self._head.type, payload_bytes)
        return self._head

    def _take(self, num_bytes: int) -> bytes:
        with memoryview(self._buffer) as view:
            data = bytes(view[:num_bytes])
        del self._buffer[:num_bytes]
        return data


class Channel:
    """One end of a control channel. Any thread may send; one thread receives.

    `send_timeout_s` bounds how long a send waits for a peer that reads nothing; None waits for ever.
    `at_end` says that the peer has closed, `is_cut` that a send ended halfway: nothing more can be sent. `heard_s` is
    when bytes came last (`time.monotonic`).
    """

    def __init__(self, sock: socket.socket, *, peer: str, send_timeout_s: float | None = None) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._peer = peer
        self._send_timeout_s = send_timeout_s
        self._send_lock = threading.Lock()
        self._reader = FrameReader()
        self.at_end = False
        self.is_cut = False
        self.heard_s = time.monotonic()

    def fileno(self) -> int:
        """Return the descriptor, for selectors."""
        return self._sock.fileno()

    def send(self, type: str, payload: bytes = b"", /, **fields: Any) -> None:
        """Send one frame. Raises ChannelClosedError, ChannelStalledError, or TransportError for a bad frame."""
        head = encode_frame(Frame(type=type, fields=fields, payload=payload))
        with self._send_lock:
            self.is_cut = True  # an interrupt between here and the end leaves half a frame behind
            self._send_all(head)
            self._send_all(payload)
            self.is_cut = False

    def send_now(self, type: str, /, **fields: Any) -> bool:
        """Send one small frame if that needs no waiting; return whether it was sent. A peer's end is no error."""
        head = encode_frame(Frame(type=type, fields=fields))
        if not self._send_lock.acquire(blocking=False):
            return False
        try:
            if self.is_cut or not self._wait(select.POLLOUT, time.monotonic()):
                return False
            self.is_cut = True
            self._send_all(head)
            self.is_cut = False
        except (OSError, ValueError, TransportError):  # closed by the peer, or by another thread
            return False
        finally:
            self._send_lock.release()
        return True

    def recv(self, timeout_s: float | None = None) -> Frame | None:
        """Wait for one frame; None after `timeout_s`. Raises ChannelClosedError, or TransportError on garbage."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while (frame := self._reader.next()) is None:
            if self.at_end:
                raise ChannelClosedError(f"{self._peer} closed the control channel")
            if not self._wait(select.POLLIN, deadline_s):
                return None
            self._fill()
        return frame

    def read_ready(self) -> list[Frame]:
        """Return the frames that are here now, without waiting; sets `at_end` when the peer has closed."""
        self._fill()
        frames = []
        while (frame := self._reader.next()) is not None:
            frames.append(frame)
        return frames

    def close(self) -> None:
        """Close this end."""
        self._sock.close()

    def _fill(self) -> None:
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.at_end = not data
        self.heard_s = time.monotonic()
        self._reader.feed(data)

    def _send_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self._sock.send(view) :]
            except BlockingIOError:
                deadline_s = None if self._send_timeout_s is None else time.monotonic() + self._send_timeout_s
                if not self._wait(select.POLLOUT, deadline_s):
                    raise ChannelStalledError(f"{self._peer} does not read its control channel") from None
            except OSError as exc:
                raise ChannelClosedError(f"{self._peer} closed the control channel ({exc})") from exc

    def _wait(self, event: int, deadline_s: float | None) -> bool:
        poller = select.poll()
        poller.register(self._sock, event)
        left_ms = None if deadline_s is None else max(0.0, deadline_s - time.monotonic()) * 1e3
        return bool(poller.poll(left_ms))
