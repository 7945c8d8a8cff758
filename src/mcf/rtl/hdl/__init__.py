"""The modules of the node, each an Amaranth component with streams of beats as ports."""
