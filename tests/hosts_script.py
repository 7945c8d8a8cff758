"""A user's script under torchrun: rank 0 answers requests, one JSON line each on stdin, until stdin ends.

A request has `ids`, `num_new`, `policy` and `chunk_tokens`; each prefill chunk is a line on stdout, as is the answer.
"""

import json
import sys

import mcf


def main(model: str) -> None:
    with mcf.load(model) as llm:
        for line in sys.stdin:
            asked = json.loads(line)
            llm.policy, llm.chunk_tokens = asked["policy"], asked["chunk_tokens"]
            result = llm.generate(
                asked["ids"],
                max_tokens=asked["num_new"],
                ignore_eos=True,
                on_progress=lambda stage, done, total: print(json.dumps({"done": done}), flush=True),
            )
            answer = {"ids": result.token_ids, "ttft_s": result.ttft_s, "bytes": result.bytes}
            print(json.dumps(answer), flush=True)
    try:
        mcf.load(model)
    except mcf.RunError as error:
        print(json.dumps({"second": str(error)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
