"""One generated token in model time, part by part; beside it what is assumed of a node's processor."""

from mcf.cluster import Cluster
from mcf.model import ModelShape
from mcf.rtl.processor import Processor, layer_work, token_work
from mcf.rtl.rates import COMMANDS_PER_LAYER
from mcf.schedule import Schedule
from mcf.sim import Profile, token_parts


def token_numbers(sched: Schedule, profile: Profile, shape: ModelShape, cluster: Cluster) -> dict[str, float | str]:
    """Parts of a token and their sum, in seconds (`docs/json.md`).

    On a profile with an assumed clock also `processor_s`, by arithmetic over counted operations, which is in no sum;
    and `assumed`, the assumption in words.
    """
    parts = token_parts(sched, profile, shape=shape, cluster=cluster)
    out: dict[str, float | str] = dict(vars(parts)) | {"token_s": parts.token_s}
    if profile.clock_hz is not None:
        processor = Processor()
        work = [*token_work(shape), *[*layer_work(shape, num_commands=COMMANDS_PER_LAYER)] * shape.num_layers]
        out |= {"processor_s": sum(map(processor.seconds, work)), "assumed": processor.says()}
    return out
