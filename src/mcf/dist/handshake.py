"""How a worker on another host proves that it belongs to this run, before its first frame. Bytes alone, no sockets.

1. The head, on accepting: `MCFh | nonce (32)`.
2. The worker: `MCFw | rank (u32) | nonce (32) | HMAC-SHA256(token, "worker" | rank | both nonces)`.
3. The head: `HMAC-SHA256(token, "head" | rank | both nonces)`; frames follow, in both directions.

The token, 32 random bytes for each run, lies in the launcher's store: whoever can read that store can join. So this
keeps unrelated programs out, not an attacker in the same network (docs/hosts.md).
"""

import hmac
import secrets
import struct

HEAD_MAGIC, WORKER_MAGIC = b"MCFh", b"MCFw"
NONCE_BYTES = 32
_ANSWER = struct.Struct(f"<4sI{NONCE_BYTES}s32s")
CHALLENGE_BYTES = len(HEAD_MAGIC) + NONCE_BYTES
ANSWER_BYTES = _ANSWER.size
PROOF_BYTES = 32


def new_token() -> bytes:
    """Return a fresh token of 32 bytes."""
    return secrets.token_bytes(32)


def new_challenge() -> bytes:
    """Return what the head says first."""
    return HEAD_MAGIC + secrets.token_bytes(NONCE_BYTES)


def answer(token: bytes, rank: int, challenge: bytes) -> bytes | None:
    """Return the worker's answer to a challenge; None if this is no challenge of ours."""
    if len(challenge) != CHALLENGE_BYTES or not challenge.startswith(HEAD_MAGIC):
        return None
    nonce = secrets.token_bytes(NONCE_BYTES)
    return _ANSWER.pack(WORKER_MAGIC, rank, nonce, _mac(token, b"worker", rank, challenge, nonce))


def rank_of(token: bytes, challenge: bytes, data: bytes) -> int | None:
    """Return the rank whose answer this is; None if it proves nothing."""
    if len(data) != ANSWER_BYTES:
        return None
    magic, rank, nonce, mac = _ANSWER.unpack(data)
    is_right = hmac.compare_digest(mac, _mac(token, b"worker", rank, challenge, nonce))
    return rank if is_right and magic == WORKER_MAGIC else None


def may_become_an_answer(data: bytes) -> bool:
    """Return whether the first bytes of a caller are those of a worker so far."""
    return data[: len(WORKER_MAGIC)] == WORKER_MAGIC[: len(data)]


def proof(token: bytes, challenge: bytes, data: bytes) -> bytes:
    """Return the head's proof to the worker that has sent this answer."""
    _, rank, nonce, _ = _ANSWER.unpack(data)
    return _mac(token, b"head", rank, challenge, nonce)


def is_proof(token: bytes, challenge: bytes, data: bytes, given: bytes) -> bool:
    """Return whether the head has proved that it knows the token too."""
    return hmac.compare_digest(given, proof(token, challenge, data))


def _mac(token: bytes, who: bytes, rank: int, challenge: bytes, nonce: bytes) -> bytes:
    return hmac.digest(token, b"%s|%d|%s%s" % (who, rank, challenge, nonce), "sha256")
