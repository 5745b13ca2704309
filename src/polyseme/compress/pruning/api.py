"""`polyseme.compress.prune`."""

import logging
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from polyseme.compress.examples import read_examples
from polyseme.compress.pruning.comparison import (
    ComparisonOptions,
    Outcome,
    prune_and_train,
    prune_once,
)
from polyseme.compress.pruning.config import PruningConfig
from polyseme.compress.pruning.lm_retraining import LanguageModelRetraining
from polyseme.compress.pruning.task_retraining import TaskRetraining
from polyseme.compress.result import CompressionResult, CompressionRow, describe_devices, latency_rows, size_rows
from polyseme.errors import ConfigError
from polyseme.families import get_family
from polyseme.finetuning.api import pop_options
from polyseme.finetuning.config import FinetuneConfig
from polyseme.inference.base import LanguageModel
from polyseme.inference.load import load_neural
from polyseme.inference.neural_lm import NeuralLM
from polyseme.io.atomic import ensure_new_directory
from polyseme.io.hashes import hashed_directory
from polyseme.io.json import read_json_object
from polyseme.io.lock import locks_folder
from polyseme.weights.int8_storage import INT8_FILE

logger = logging.getLogger(__name__)
PARTS = {"ffn": "feed-forward units"}


@locks_folder("prune")
def prune(
    model: str | Path | LanguageModel,
    *,
    out: str | Path,
    data: Any = None,
    dev: Any = None,
    task: str = "",
    corpus: Any = None,
    **options: Any,
) -> CompressionResult:
    """Remove layers, attention heads, feed-forward units or single weights of a model, and write what stays to `out`.

    Options are those of `PruningConfig`: one of `layers`, `heads`, `ffn` and `weights`, a share such as 0.4 or a count,
    and `strategy`, `schedule`, `seed`, `pad` and more; and those of `ComparisonOptions`: `random`, `from_scratch`,
    `seeds`, `curve`. `data` are labeled examples of a task model, texts of a language model or of one that computes
    vectors, or for the latter scored pairs with the `task` regression or a data set such as glue/sts-b. What the loss
    and the importance are measured on is also what the metric is: use another file for a final result.

    With `dev`, `data` are training examples: a part is chosen on them, what stays is fine-tuned on them, and the metric
    is that of the `dev` examples; the model before is fine-tuned in the same way. Other options are those of
    `polyseme.finetune`, such as `epochs` and `lr`. The folder of a data set, named by `task`, has all examples.

    With a `corpus`, which was prepared with its tokenizer, a language model is trained further, for a tenth of its
    steps of pre-training or a `budget` such as 500steps; other options are those of `polyseme.pretrain`. The metric is
    the loss on held-out text of the corpus, and `data` are texts on which parts are chosen.

    >>> result = polyseme.compress.prune("run/model", layers=1, out="smaller")
    >>> result.row("parameters").ratio < 1
    True
    """
    path, options = Path(out), {name: value for name, value in options.items() if value is not None}
    comparison = pop_options(ComparisonOptions, options)
    names = {field.name for field in fields(PruningConfig)}
    training_options = {name: options.pop(name) for name in list(options) if name not in names}
    config = PruningConfig.from_json(options).resolve(data is not None)
    has_examples = dev is not None or corpus is not None
    is_trained = has_examples or config.needs_training or comparison.from_scratch or comparison.seeds != 1
    if is_trained:
        _check_training(config, comparison, data, dev, corpus)
        _check_length(corpus is not None, training_options)
    else:
        _check_options(config, comparison, data, task, training_options)
    ensure_new_directory(path)
    network = load_neural(model)
    if corpus is not None:
        corpus_path = Path(getattr(corpus, "path", corpus))
        examples = None if data is None else read_examples(network, data, task)
        lm = LanguageModelRetraining.read(network, corpus_path, comparison.seeds, training_options, examples)
        outcome = prune_and_train(config, lm, comparison)
    elif is_trained:
        files = {"data": data, "dev": dev}
        fine_tuning = TaskRetraining.read(network, files, task, comparison.seeds, training_options)
        outcome = prune_and_train(config, fine_tuning, comparison)
    else:
        examples = None if data is None else read_examples(network, data, task)
        outcome = prune_once(network, config, examples, comparison)
    return _write(network, outcome, config, path)


def _check_training(config: PruningConfig, comparison: ComparisonOptions, data: Any, dev: Any, corpus: Any) -> None:
    """Raise if what a training needs is missing, or if there is too much of it."""
    if corpus is not None and dev is not None:
        raise ConfigError("`dev` examples are for `data`, and a `corpus` has its own held-out text: pass one of them")
    if corpus is None and data is None:
        reason = "training examples are missing"
        if config.needs_training:
            name = "strategy" if config.strategy == "gates" else "schedule"
            reason = f"the `{name}` {getattr(config, name)} trains the model"
        elif comparison.from_scratch or comparison.seeds != 1:
            reason = f"`{'from_scratch' if comparison.from_scratch else 'seeds'}` has no effect without training"
        raise ConfigError(f"{reason}: pass `data` for training and `dev`, or for a language model a `corpus`")


def _check_length(has_corpus: bool, training_options: dict[str, Any]) -> None:
    """Raise for the option that says how long the other kind of training is."""
    if has_corpus and "epochs" in training_options:
        raise ConfigError("`epochs` is for a training on `data`: with a `corpus`, set `budget`")
    if not has_corpus and "budget" in training_options:
        raise ConfigError("`budget` is for a training on a `corpus`: with `dev`, set `epochs`")


def _check_options(
    config: PruningConfig, comparison: ComparisonOptions, data: Any, task: str, unused: dict[str, Any]
) -> None:
    """Raise for options that have no effect without data, or without training."""
    if data is None and (task or comparison.random):
        raise ConfigError(f"`{'task' if task else 'random'}` has no effect without `data`")
    for name in unused:
        if name != "budget" and not FinetuneConfig().find_paths(name):
            PruningConfig.from_json({config.part: config.amount, name: unused[name]})  # raises, with a suggestion
        raise ConfigError(f"`{name}` has no effect without training: pass `dev` examples, or a `corpus`")


def _write(network: NeuralLM, outcome: Outcome, config: PruningConfig, path: Path) -> CompressionResult:
    """Write the folder of a pruned model, and compare its size and speed with those of the original."""
    removed, total = outcome.record["removed"], outcome.record["total"]
    record = {"part": config.part, "amount": config.amount, "strategy": config.strategy, "schedule": config.schedule}
    record |= outcome.record
    metadata = outcome.network.folder.metadata
    metadata = metadata | {"pruning": [*metadata.get("pruning", ()), record]}
    outcome.network.folder = replace(outcome.network.folder, metadata=metadata)
    with hashed_directory(path) as folder:
        outcome.network.save(folder, _storage_dtype(network.path))
        smaller = load_neural(folder, str(network.device))
        rows = [*size_rows(network, smaller), *latency_rows(network, smaller, outcome.texts)]
        if config.part == "weights":
            rows.append(CompressionRow.compare("nonzero weights", total, total - removed))
        rows += outcome.rows
        done = f"Removed {removed:,} of {total:,} {PARTS.get(config.part, config.part)} of {network.path}"
        schedule = f", {config.schedule}" if config.part == "weights" else ""
        trained = f", and trained for {record['steps']:,} steps" if "steps" in record else ""
        limits = _limits(path, smaller, config)
        pruned_result = CompressionResult(
            tuple(rows),
            path,
            record | {"device": describe_devices()},
            curve=outcome.curve.points,
            notes=(f"{done} by {config.strategy}{schedule}{trained}.", *outcome.curve.notes, *limits),
            curve_unit=outcome.curve.unit,
            curve_metric=outcome.metric,
        )
        pruned_result.save(folder)
    for limit in limits:
        logger.warning(limit)
    return pruned_result


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
