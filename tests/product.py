"""Helpers for tests of the whole product: toys and their reference, cells of the test matrix, the checks of one run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mcf import policies
from mcf.cluster import Cluster
from mcf.dist.hf import LoadedModel, load_model
from mcf.engine.planner import AUTO, RUN_TOKENS, Plan, make_plan
from mcf.engine.result import certify
from mcf.engine.source import resolve
from mcf.mars.chunk import AUTO_TOKENS_PER_NODE, PAGE_TOKENS
from mcf.model import ModelShape
from mcf.policies import PlanRequest
from mcf.testing.toys import Reference, make_toy_model, reference_generate

LEAST_MARGIN = 1e-3  # of the reference's best two logits: where it is less, an equal id is luck
TINY_LOGITS = 1e-4  # float32, tiny models (architecture.md)
NUM_PROMPTS = 20  # tried for a margin that holds

PROMPTS = ("1", "2", "N-1", "N", "N+1", "B-1", "B", "B+1", "7B+3")
CHUNKS: tuple[int | str, ...] = (8, 16, 77, AUTO)
BUDGETS = ("least", "middle", "unlimited")


class Cell(NamedTuple):
    """One cell of the matrix. `prompt` is a formula of `PROMPTS`."""

    num_nodes: int
    policy: str
    prompt: str
    chunk: int | str
    budget: str

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt; B is the chunk size that a long prompt within a budget settles on."""
        B = self.chunk if isinstance(self.chunk, int) else AUTO_TOKENS_PER_NODE * self.num_nodes
        N = self.num_nodes
        few = {"1": 1, "2": 2, "N-1": N - 1, "N": N, "N+1": N + 1}
        return {**few, "B-1": B - 1, "B": B, "B+1": B + 1, "7B+3": 7 * B + 3}[self.prompt]


@contextmanager
def named(what: object) -> Iterator[None]:
    """Name the failing cell beside whatever fails inside."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in {what}")
        raise


class Case(NamedTuple):
    """A prompt and what one process says to it."""

    ids: list[int]
    reference: Reference


@dataclass
class Toy:
    """A toy model folder, its shape, and a reference for each prompt length."""

    folder: Path
    dtype: str = "float32"
    shape: ModelShape = field(init=False)
    _model: LoadedModel | None = field(init=False, default=None)
    _cases: dict[tuple[int, int], Case] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.shape = resolve(str(self.folder)).shape(self.dtype)

    @property
    def model(self) -> LoadedModel:
        """The model with our attention, loaded once."""
        self._model = self._model or load_model(self.folder, self.dtype, num_threads=1)
        return self._model

    def case(self, num_tokens: int, num_new: int) -> Case:
        """A prompt of that length for which the reference's choices are no near-ties; always the same one."""
        key = num_tokens, num_new
        if key not in self._cases:
            self._cases[key] = next(self._cases_with_margin(*key))
        return self._cases[key]

    def plan(self, cell: Cell, num_new: int) -> Plan:
        """The plan of a cell, with room for so many new tokens."""
        return make_plan(
            self.shape,
            prompt_tokens=cell.prompt_tokens,
            num_workers=cell.num_nodes,
            policy=cell.policy,
            chunk_tokens=cell.chunk,
            kv_memory_bytes=self.budget_bytes(cell, num_new),
            max_tokens=num_new,
        )

    def budget_bytes(self, cell: Cell, num_new: int) -> int | None:
        """Bytes per node of a cell's kind of budget; middle lies between the least and what is used without a limit."""
        if cell.budget == "unlimited":
            return None
        least = self._least_bytes(cell, num_new)
        if cell.budget == "least":
            return least
        return (least + max(self.plan(cell._replace(budget="unlimited"), num_new).report.peak_bytes)) // 2

    def _least_bytes(self, cell: Cell, num_new: int) -> int:
        """The least of the chunk size; of AUTO the least of its sizes, the smallest or the largest of them."""
        tried = [t * cell.num_nodes for t in (PAGE_TOKENS, RUN_TOKENS)]
        sizes = [cell.chunk] if isinstance(cell.chunk, int) else [min(size, cell.prompt_tokens) for size in tried]
        request = PlanRequest(
            shape=self.shape,
            cluster=Cluster.uniform("switch", cell.num_nodes),
            prompt_tokens=cell.prompt_tokens,
            chunk_tokens=sizes[0],
            max_new_tokens=num_new,
        )
        return min(policies.least_budget(cell.policy, replace(request, chunk_tokens=size)) for size in sizes)

    def _cases_with_margin(self, num_tokens: int, num_new: int) -> Iterator[Case]:
        for seed in range(NUM_PROMPTS):
            rng = np.random.default_rng((seed, num_tokens))
            ids = rng.integers(0, self.shape.vocab_size, num_tokens).tolist()
            reference = reference_generate(self.folder, ids, num_new, self.dtype)
            if reference.margins.min() >= LEAST_MARGIN:
                yield Case(ids, reference)
        raise AssertionError(f"{NUM_PROMPTS} prompts of {num_tokens} tokens, and every one has a near-tie")


def tiny_llama(folder: Path) -> Toy:
    """TinyLM: a Llama of 2 layers, 4 query heads, 2 KV heads, head size 16, with a window that holds every prompt."""
    return Toy(make_toy_model(folder, "llama", max_positions=16384, tokenizer=True))


# -- checks ------------------------------------------------------------------------------------------------------------


def check_answer(ids: Sequence[int], logits: np.ndarray, reference: Reference, tolerance: float = TINY_LOGITS) -> None:
    """Greedy ids equal the reference's, which has no near-tie there, and so do the logits."""
    num = len(ids)
    assert reference.margins[:num].min() >= LEAST_MARGIN, "the reference's own choice is a near-tie"
    assert list(ids) == reference.ids[:num]
    error = float(np.abs(logits - reference.logits[:num]).max())
    assert error <= tolerance, f"logits differ by {error:.1e}: expected at most {tolerance:.0e}"


def planned_bytes(plan: Plan, num_new: int) -> dict[str, int]:
    """Payload bytes by purpose that `verify` saw, for a prompt and so many new ids: the last one is not decoded."""
    report = plan.report
    return {name: report.traffic[name] + (num_new - 1) * report.decode_traffic[name] for name in report.traffic}


def check_certificate(plan: Plan, blocks: list[list[list[int]]]) -> None:
    """The nodes' own directories hold every prompt token once, in the shares declared, else equal to within a page."""
    meta = plan.schedule.meta
    certificate = certify(blocks, num_tokens=meta.prompt_tokens, head_cuts=meta.head_cuts, page_tokens=meta.page_tokens)
    assert certificate["complete"] is True
    assert certificate["balanced_within_a_page"] is True or meta.shares
    assert not meta.shares or tuple(certificate["tokens_per_worker"]) == meta.shares


def directory_rows(directories: list[list[dict[str, int]]]) -> list[list[list[int]]]:
    """Directories as the workers send them: [chunk, maker, group, state, tokens] per block."""
    return [[[b[name] for name in ("chunk", "maker", "group", "state", "tokens")] for b in d] for d in directories]


# -- pairwise selection -----------------------------------------------------------------------------------------------

Row = tuple[object, ...]
Pair = tuple[int, object, int, object]


def all_pairs(factors: Mapping[str, Sequence[object]]) -> list[dict[str, object]]:
    """Few rows in which every two values of two factors meet; greedy and deterministic.

    >>> rows = all_pairs({"a": (1, 2), "b": ("x", "y"), "c": (True, False)})
    >>> len(rows)
    4
    """
    names, values = list(factors), list(factors.values())
    left = {(i, a, j, b) for i, j in combinations(range(len(names)), 2) for a in values[i] for b in values[j]}
    candidates = list(product(*values))
    rows = []
    while left:
        best = max(candidates, key=lambda row: sum(pair in left for pair in _pairs(row)))
        left.difference_update(_pairs(best))
        rows.append(dict(zip(names, best, strict=True)))
    return rows


def _pairs(row: Row) -> Iterable[Pair]:
    return ((i, row[i], j, row[j]) for i, j in combinations(range(len(row)), 2))
