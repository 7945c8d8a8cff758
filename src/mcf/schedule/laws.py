"""The laws V1..V8, one sentence each: what every schedule that runs has kept. `verify` judges by them."""

LAWS: dict[str, str] = {
    "V1": "whoever sends or attends a block, or uses another node's queries, holds them: valid, or draining for work "
    "already in flight",
    "V2": "the owner's copy, once arrived, is never dropped, nor the last valid copy before that",
    "V3": "after the last prefill step only owners hold blocks, with the shares that the schedule declares (equal to "
    "within one page unless it says otherwise)",
    "V4": "no node exceeds its KV budget at any step: pages of owners and replicas, the decode reserve, and the slots "
    "of streams and receives",
    "V5": "what one stream receives per layer, in whole pages, fits the propagation buffer (`buffer_bytes`; 0 is no "
    "limit)",
    "V6": "every `after` points backwards in its own list, every send is received once by a receive that says the "
    "same, and finite slots never dead-lock",
    "V7": "each query token attends each token that it may see exactly once, for every KV head, over all nodes",
    "V8": "each hop of a route is a link of the topology, and a route leads from its sender to its receivers",
}
SPEC = "spec"  # the law that `LawError` names for a row that breaks the rule table of spec.py


def above(law: str, grid: str) -> str:
    """Put the law in words above a grid: what a person reads below the one line of a `LawError`."""
    return f"{law}: {LAWS[law]}\n{grid}"
