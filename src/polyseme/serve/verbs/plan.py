"""How a request is computed: inputs for the model's worker, and a response from the results."""

import sys
from collections.abc import Callable, Hashable, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from polyseme.errors import DataError
from polyseme.inference.feature_model import FeatureModel
from polyseme.inference.neural_lm import NeuralLM
from polyseme.inference.prediction import predict
from polyseme.serve.api import responses
from polyseme.serve.api.errors import RequestError
from polyseme.serve.batching.worker import join_lists
from polyseme.serve.registry import ServedModel

Results = Sequence[Any]


@dataclass(frozen=True, eq=False)
class Plan:
    """How a request is computed: by `run`, on inputs that may be combined with those of other plans of the same key."""

    key: Hashable
    inputs: Sized
    num_tokens: int
    run: Callable[[Any], Results]
    respond: Callable[[Results], Any]  # a dataclass, or JSON as bytes
    is_parallel: bool = False  # whether `run` may be called by several threads at once
    join: Callable[[Sequence[Any]], Any] = join_lists  # of the inputs of several plans


def plan_examples(
    served: ServedModel,
    examples: Sequence[Any],
    num_tokens: int,
    truncate: bool,
    respond: Callable[[Results], Any],
) -> Plan:
    """Predict examples of the model's task."""
    model, task = served.model, served.task
    assert task is not None

    def run(inputs: Results) -> Results:
        rows = task.read(inputs, needs_labels=False)
        if isinstance(model, FeatureModel):
            return model.predict_examples(rows)
        assert isinstance(model, NeuralLM)
        return predict(model.folder, rows, task, truncate=truncate)

    task.read(examples, needs_labels=False)  # malformed examples are rejected before they wait
    return Plan(("predict", truncate), examples, num_tokens, run, respond)


def count_usage(served: ServedModel, texts: Sequence[str]) -> responses.Usage:
    """Count the tokens of texts."""
    return responses.Usage(sum(served.count_tokens(texts)))


def check_lengths(served: ServedModel, texts: Sequence[str]) -> None:
    """Raise if a text is longer than the model reads."""
    count_checked(served, texts)


def count_checked(served: ServedModel, texts: Sequence[str], truncate: bool | None = None) -> list[int]:
    """Return the number of tokens of each text; raise if one has none, or more than the model reads.

    `truncate` is None if a text cannot be cut.
    """
    limit = served.max_tokens or sys.maxsize
    counts = served.count_tokens(texts)
    for number, (text, count) in enumerate(zip(texts, counts), 1):
        where = f"text {number} of {len(texts)}" if len(texts) > 1 else "the text"
        if not count:
            raise DataError(f"{where} has no tokens: {text[:40]!r}")
        if count > limit and not truncate:
            advice = "shorten it" if truncate is None else "shorten it, or set truncate"
            raise RequestError("too_long", f"{where} has {count:,} tokens, and the model reads {limit:,}: {advice}")
    return [min(count, limit) for count in counts]
