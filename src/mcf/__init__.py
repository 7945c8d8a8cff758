"""MCF: context-parallel LLM inference with scheduled KV placement."""
