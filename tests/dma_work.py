"""Work for four readers and a writer of memory, and what must come of it."""

import random
from dataclasses import dataclass

NUM_READERS = 4


@dataclass(frozen=True, kw_only=True)
class Work:
    """Requests (address, beats) of each reader, and of the writer with its words; the image they start from."""

    image: bytes
    fetches: tuple[tuple[tuple[int, int], ...], ...]
    puts: tuple[tuple[int, int], ...]
    words: tuple[int, ...]


AREA = 1 << 16  # bytes of memory that belong to one port; the writer's is the last


def random_work(seed: int, *, count: int = 8, longest: int = 70) -> Work:
    """Short and long requests anywhere in the areas of all readers; the writer in its own."""
    rng = random.Random(seed)
    lengths = (0, 1, 15, 16, 17, longest)
    fetches = tuple(
        tuple((rng.randrange((NUM_READERS * AREA >> 4) - longest) << 4, rng.choice(lengths)) for _ in range(count))
        for _ in range(NUM_READERS)
    )
    puts = tuple((NUM_READERS * AREA + AREA // count * i + 48, rng.choice(lengths)) for i in range(count))
    return _work(rng, fetches, puts)


def tiles_work(seed: int, *, tiles: int) -> Work:
    """Each reader loads a run of full tiles in one request, two and two in a bank; the writer stores a little."""
    rng = random.Random(seed)
    fetches = tuple(((AREA * i + 48 * i, 132 * tiles),) for i in range(NUM_READERS))
    return _work(rng, fetches, ((NUM_READERS * AREA, 64),))


def _work(
    rng: random.Random, fetches: tuple[tuple[tuple[int, int], ...], ...], puts: tuple[tuple[int, int], ...]
) -> Work:
    words = tuple(rng.getrandbits(128) for _, beats in puts for _ in range(beats))
    image = rng.randbytes(NUM_READERS * AREA) + bytes(AREA)
    return Work(image=image, fetches=fetches, puts=puts, words=words)
