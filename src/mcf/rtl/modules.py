"""The modules of the node: what is built, counted and reported. Nothing of the hardware is imported before it is asked
for.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from mcf.errors import UnknownNameError

NODE = "node"  # a whole one: both halves and the links
NETWORK = "network"  # the network half with its links
# name -> package.module:Class; a class without arguments has the node's sizes. In order of the flow.
MODULES: Mapping[str, str] = {
    "router": "mcf.rtl.hdl.router:Router",
    "packetizer": "mcf.rtl.hdl.packetizer:Packetizer",
    "a2a": "mcf.rtl.hdl.a2a:AllToAll",
    "dispatch": "mcf.rtl.hdl.dispatch:Dispatch",
    "control": "mcf.rtl.hdl.control:Control",
    "csr": "mcf.rtl.hdl.csr:Csr",
    "desc_ring": "mcf.rtl.hdl.desc_ring:DescRing",
    "events": "mcf.rtl.hdl.events:Events",
    "barrier": "mcf.rtl.hdl.barrier:Barrier",
    "completions": "mcf.rtl.hdl.completions:Completions",
    "perf": "mcf.rtl.hdl.perf:Perf",
    "reduce": "mcf.rtl.hdl.reduce:Reduce",
    "kv_dir": "mcf.rtl.hdl.kv_dir:KvDirectory",
    "credit_link": "mcf.rtl.hdl.credit_link:CreditLink",
    NETWORK: "mcf.rtl.hdl.node:NetworkHalf",
    "compute": "mcf.rtl.hdl.compute:Compute",
    "gemv": "mcf.rtl.hdl.gemv:Gemv",
    "scales": "mcf.rtl.hdl.scales:Scales",
    "scale_acc": "mcf.rtl.hdl.scale_acc:ScaleAcc",
    "tiles": "mcf.rtl.hdl.tiles:TileBuffer",
    "attention": "mcf.rtl.hdl.attention:Attention",
    "attn_softmax": "mcf.rtl.hdl.attn_softmax:AttnSoftmax",
    "attn_acc": "mcf.rtl.hdl.attn_acc:AttnAcc",
    "state_pack": "mcf.rtl.hdl.state_pack:StatePack",
    "dma_read": "mcf.rtl.hdl.dma_read:DmaPingPong",
    "dma_write": "mcf.rtl.hdl.dma_write:DmaWrite",
    NODE: "mcf.rtl.hdl.node:WholeNode",
}


def build_module(name: str) -> Any:
    """Return a new component of the node's size. Raises UnknownNameError; the extra `rtl` must be there."""
    if name not in MODULES:
        raise UnknownNameError("module", name, MODULES)
    module, _, cls = MODULES[name].partition(":")
    return getattr(import_module(module), cls)()
