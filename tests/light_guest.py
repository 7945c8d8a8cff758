"""A worker of another host without torch, as a process: `light_guest.py HEAD RANK [MODEL [DTYPE]]`.

HEAD is what a head posts in the launcher's store. The threads, the proof and the loop are the real ones; after joining
it answers pings, and hangs in `echo_state`. MODEL `broken` is one that this host cannot read. Anything else it says is
on stderr, and its end is an exit code: that of the error that `serve` raised.
"""

import os
import sys
from pathlib import Path

from light_worker import LightSession
from mcf.dist import faults, guest
from mcf.dist.torchrun import Place
from mcf.dist.way import Way
from mcf.errors import McfError, ModelError


class Store:
    """A store in which the head has posted already."""

    def __init__(self, head: str) -> None:
        self.posts = {"head": head}

    def read(self, key: str) -> str | None:
        return self.posts.get(key)

    def post(self, key: str, text: str) -> None:
        self.posts[key] = text


class LightGuest(guest.Guest):
    def _join(self, frame, own, brake):
        return LightSession()


def main(head: str, rank: str, model: str = "f1", dtype: str = "float32") -> None:
    def find() -> guest.Own:
        if model == "broken":
            raise ModelError("this host's model is broken")
        return guest.Own(folder=Path(), fingerprint=model)

    place = Place(rank=int(rank), world_size=3, local_world_size=1, master_addr="127.0.0.1", master_port=1)
    one = LightGuest(
        place=place,
        interface=Way(name="lo", address="127.0.0.1"),
        dtype=dtype,
        num_threads=1,
        find_model=find,
    )
    faults.arm(int(rank), os.environ.get(faults.VARIABLE, ""))
    try:
        one.serve(Store(head))
    except McfError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(*sys.argv[1:])
