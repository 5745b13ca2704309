"""`polyseme.compress.prune`."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from polyseme.compress.pruning.config import PruningConfig
from polyseme.compress.pruning.examples import PruningExamples, read_examples
from polyseme.compress.pruning.select import prune_model
from polyseme.compress.result import CompressionResult, CompressionRow, describe_devices, latency_rows, size_rows
from polyseme.errors import ConfigError
from polyseme.families import get_family
from polyseme.inference.base import LanguageModel
from polyseme.inference.load import load_neural
from polyseme.inference.neural_lm import NeuralLM
from polyseme.io.atomic import ensure_new_directory
from polyseme.io.hashes import hashed_directory
from polyseme.io.json import read_json_object
from polyseme.io.lock import locks_folder
from polyseme.nn.model import Model
from polyseme.weights.int8_storage import INT8_FILE

logger = logging.getLogger(__name__)


@locks_folder("prune")
def prune(
    model: str | Path | LanguageModel,
    *,
    out: str | Path,
    data: Any = None,
    task: str = "",
    random: bool = False,
    **options: Any,
) -> CompressionResult:
    """Remove layers, attention heads, feed-forward units or single weights of a model, and write what stays to `out`.

    Options are those of `PruningConfig`: one of `layers`, `heads`, `ffn` and `weights`, a share such as 0.4 or a count,
    and `strategy`, `seed`, `pad`, `max_examples`. `data` are labeled examples of a task model, texts of a language
    model or of one that computes vectors, or for the latter scored pairs with the `task` regression or a data set such
    as glue/sts-b. What the loss and the importance are measured on is also what the metric is: use another file for a
    final result. With `random`, a row has the metric after a random choice of the same size.

    >>> result = polyseme.compress.prune("run/model", layers=1, out="smaller")
    >>> result.row("parameters").ratio < 1
    True
    """
    path = Path(out)
    config = PruningConfig.from_json({name: value for name, value in options.items() if value is not None})
    config = config.resolve(data is not None)
    if data is None and (task or random):
        raise ConfigError(f"`{'task' if task else 'random'}` has no effect without `data`")
    ensure_new_directory(path)
    network = load_neural(model)
    examples = None if data is None else read_examples(network, data, task)
    pruned, choice = prune_model(network.model, config, examples)
    record = {"part": config.part, "amount": config.amount, "strategy": config.strategy, **choice}
    metadata = network.folder.metadata
    metadata = metadata | {"pruning": [*metadata.get("pruning", ()), record]}
    with hashed_directory(path) as folder:
        _with_model(network, pruned, metadata).save(folder, _storage_dtype(network.path))
        smaller = load_neural(folder, str(network.device))
        rows = [*size_rows(network, smaller), *latency_rows(network, smaller, examples.texts if examples else ())]
        if config.part == "weights":
            rows.append(CompressionRow.compare("nonzero weights", choice["total"], choice["total"] - choice["removed"]))
        if examples is not None:
            rows += _metric_rows(network, smaller, examples, config if random else None)
            record = record | {"metric": examples.metric, "examples": examples.num_examples}
        done = f"Removed {choice['removed']:,} of {choice['total']:,} {config.part} of {network.path.name}"
        notes = (f"{done} by {config.strategy}.", *_limits(path, smaller, config))
        pruned_result = CompressionResult(tuple(rows), path, record | {"device": describe_devices()}, notes=notes)
        pruned_result.save(folder)
    for limit in notes[1:]:
        logger.warning(limit)
    return pruned_result


def _metric_rows(
    network: NeuralLM, smaller: NeuralLM, examples: PruningExamples, random_config: PruningConfig | None
) -> list[CompressionRow]:
    """Compare the metric before and after, and with a random choice if its config is passed."""
    before = examples.evaluate(network)
    rows = [CompressionRow.compare(examples.metric, before, examples.evaluate(smaller))]
    if random_config is not None:
        pruned, _ = prune_model(network.model, random_config.replace(strategy="random"), None)
        score = examples.evaluate(_with_model(network, pruned, network.folder.metadata))
        rows.append(CompressionRow.compare(f"{examples.metric}, random {random_config.part}", before, score))
    return rows


def _with_model(network: NeuralLM, model: Model, metadata: dict[str, Any]) -> NeuralLM:
    """Return a network with another model, the same tokenizer and task."""
    folder = replace(network.folder, model=model, metadata=metadata)
    return NeuralLM(folder, str(network.device), network.max_batch_tokens, network.tasks)


def _storage_dtype(path: Path) -> str:
    """Return the type of the weights in a folder, in which they are written again."""
    if (path / INT8_FILE).exists():
        return "int8"
    return "bf16" if read_json_object(path / "config.json").get("dtype") == "bfloat16" else "float32"


def _limits(path: Path, smaller: NeuralLM, config: PruningConfig) -> list[str]:
    """Return what the folder is not: smaller, or one that `transformers` opens."""
    model_config, limits = smaller.model.config, []
    if config.part == "weights" or config.pad:
        what = "weights" if config.part == "weights" else "heads"
        limits.append(f"removed {what} are stored as zeros: the folder is as large and as slow as before")
    if not get_family(model_config.family).represents(model_config.trunk):
        reason = f"it derives the size of the heads of {model_config.family} from their number"
        limits.append(f"`transformers` cannot open {path} ({reason}): the option pad writes zeros instead")
    return limits
