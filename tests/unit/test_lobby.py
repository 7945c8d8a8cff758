"""Who is let in by the head: workers that prove themselves. Everybody else is dropped, counted, and holds nobody up."""

import socket

import pytest

from mcf.dist import handshake, lobby
from mcf.dist.lobby import LIMIT_S, MOST_CALLERS, Lobby

SOON_S = 5.0  # a poll returns as soon as something has happened


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def door(clock):
    door = Lobby("127.0.0.1", range(1, 3), clock=clock)
    yield door
    door.close()


@pytest.fixture
def call(door):
    """A function that connects to the door."""
    callers: list[socket.socket] = []

    def connect() -> socket.socket:
        callers.append(socket.create_connection((door.address, door.port), timeout=SOON_S))
        assert door.poll(SOON_S) == []
        return callers[-1]

    yield connect
    for caller in callers:
        caller.close()


def hear(sock: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes and (more := sock.recv(num_bytes - len(data))):
        data += more
    return data


def knock(sock: socket.socket, token: bytes, rank: int) -> tuple[bytes, bytes]:
    challenge = hear(sock, handshake.CHALLENGE_BYTES)
    answer = handshake.answer(token, rank, challenge)
    sock.sendall(answer)
    return challenge, answer


def hung_up(sock: socket.socket) -> bool:
    try:
        while sock.recv(1024):
            pass
    except ConnectionResetError:
        pass
    return True


def test_a_worker_gets_in_and_both_sides_have_proved_themselves(door, call):
    sock = call()
    challenge, answer = knock(sock, door.token, 2)
    (admitted,) = door.poll(SOON_S)
    assert (admitted.rank, admitted.peer, door.missing) == (2, "127.0.0.1", {1})
    assert handshake.is_proof(door.token, challenge, answer, hear(sock, handshake.PROOF_BYTES))
    assert admitted.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    admitted.sock.close()
    assert door.dropped_in_words() == ""


@pytest.mark.parametrize("bytes_", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00", b"MCFx", b"MCFw" + bytes(68)])
def test_what_is_no_worker_is_dropped_at_once(door, call, bytes_):
    sock = call()
    sock.sendall(bytes_)
    assert door.poll(SOON_S) == []
    assert hung_up(sock)
    assert door.dropped_in_words() == (
        f"dropped 1 connection to the control port {door.port} that came from no worker of this run (127.0.0.1)"
    )
    assert door.missing == {1, 2}


@pytest.mark.parametrize(("rank", "is_right"), [(1, False), (0, True), (3, True), (2**32 - 1, True)])
def test_another_token_and_another_rank_are_dropped(door, call, rank, is_right):
    sock = call()
    knock(sock, door.token if is_right else handshake.new_token(), rank)
    assert door.poll(SOON_S) == []
    assert (hung_up(sock), door.num_dropped) == (True, 1)


def test_a_rank_gets_in_once(door, call):
    first, second = call(), call()
    knock(first, door.token, 1)
    (admitted,) = door.poll(SOON_S)
    knock(second, door.token, 1)
    assert door.poll(SOON_S) == []
    assert (hung_up(second), door.num_dropped) == (True, 1)
    admitted.sock.close()


def test_an_old_answer_does_not_open_the_door_again(door, call):
    first, second = call(), call()
    _, answer = knock(first, door.token, 1)
    (admitted,) = door.poll(SOON_S)
    door.missing.add(1)
    second.sendall(answer)
    assert door.poll(SOON_S) == []
    assert hung_up(second)
    admitted.sock.close()


def test_silence_ends_after_the_limit_and_a_drip_does_not_lengthen_it(door, call, clock):
    silent, dripping = call(), call()
    clock.now_s = LIMIT_S - 1
    dripping.sendall(b"M")
    door.poll(SOON_S)
    assert door.num_dropped == 0
    clock.now_s = LIMIT_S + 0.1
    door.poll(0.0)
    assert (hung_up(silent), hung_up(dripping), door.num_dropped) == (True, True, 2)


def test_a_crowd_costs_the_oldest_and_a_worker_still_gets_in(door, call):
    crowd = [call() for _ in range(MOST_CALLERS + 5)]
    assert door.num_dropped == 5
    assert all(hung_up(sock) for sock in crowd[:5])
    sock = call()
    knock(sock, door.token, 1)
    (admitted,) = door.poll(SOON_S)
    assert admitted.rank == 1
    admitted.sock.close()
    assert door.dropped_in_words().endswith("(127.0.0.1, 127.0.0.1, 127.0.0.1 and 3 more)")


def test_nothing_listens_after_closing(door, call):
    sock, port = call(), door.port
    door.close()
    door.close()
    assert hung_up(sock)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=SOON_S)


def test_bytes_before_the_proof_are_bounded():
    assert handshake.ANSWER_BYTES < 128
    assert lobby.MOST_CALLERS * handshake.ANSWER_BYTES < 1 << 20


def test_a_worker_is_not_taken_in_by_what_is_no_head():
    token, challenge = handshake.new_token(), handshake.new_challenge()
    assert handshake.answer(token, 1, b"HTTP/1.1 400 Bad Request".ljust(handshake.CHALLENGE_BYTES)) is None
    answer = handshake.answer(token, 1, challenge)
    assert not handshake.is_proof(token, challenge, answer, handshake.proof(handshake.new_token(), challenge, answer))
    assert handshake.rank_of(token, challenge, answer) == 1
    assert handshake.rank_of(token, handshake.new_challenge(), answer) is None
