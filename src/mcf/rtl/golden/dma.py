"""What the readers and writers of memory ask for and move, without time."""

from collections.abc import Iterable, Iterator, Sequence

BEAT_BYTES = 16
BURST_BEATS = 16


def bursts(address: int, beats: int) -> Iterator[tuple[int, int]]:
    """Cut a request into bursts (address, beats), each up to the next multiple of a full burst."""
    while beats > 0:
        count = min(beats, BURST_BEATS - address // BEAT_BYTES % BURST_BEATS)
        yield address, count
        address, beats = address + count * BEAT_BYTES, beats - count


def read(image: bytes | bytearray, requests: Iterable[tuple[int, int]]) -> list[int]:
    """Return the beats of requests (address, beats), one after the other, as numbers of 128 bits."""
    runs = (image[address : address + BEAT_BYTES * beats] for address, beats in requests)
    return [beat for run in runs for beat in beats_of(run)]


def beats_of(data: bytes | bytearray) -> list[int]:
    """Cut bytes into beats, as numbers of 128 bits."""
    return [int.from_bytes(data[at : at + BEAT_BYTES], "little") for at in range(0, len(data), BEAT_BYTES)]


def write(image: bytearray, requests: Iterable[tuple[int, int]], beats: Sequence[int]) -> None:
    """Store beats where requests say, in order."""
    rest = iter(beats)
    for address, count in requests:
        for place in range(address, address + BEAT_BYTES * count, BEAT_BYTES):
            image[place : place + BEAT_BYTES] = next(rest).to_bytes(BEAT_BYTES, "little")
