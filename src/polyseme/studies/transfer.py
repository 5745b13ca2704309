"""Transfer of an arm's model to a task: fine-tuning, a network over frozen features, or ULMFiT's stages.

Fine-tuning has the same optimizer, learning rate and number of steps in all arms (decision 042). A network over
features tries several learning rates on a part of the training examples, once for each task, with the model of the
first seed. The dev examples are used for the results alone.
"""

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyseme.finetuning.api import FeatureOptions, pop_options
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.defaults import choose_settings
from polyseme.finetuning.experiment import RunOptions, TaskData
from polyseme.finetuning.finetune import finetune
from polyseme.finetuning.frozen import FEATURE_DEFAULTS, train_on_features
from polyseme.finetuning.grid import override
from polyseme.finetuning.results import SeedResult
from polyseme.nn.trunks.shallow import StaticEmbeddingTrunkConfig
from polyseme.pipelines.ulmfit import UlmfitConfig, finetune_lm, load_pretrained
from polyseme.studies.base import Arm
from polyseme.studies.metrics import drop_new_labels, sample_evenly, split_evenly
from polyseme.train.optimizer import OptimizerConfig
from polyseme.weights.folder import read_model_config

FINETUNE_OPTIMIZER = OptimizerConfig(name="muon", lr=5e-4)
MIN_STEPS = 1500  # of fine-tuning: small sets need more epochs (Mosbach et al. 2021, §6)
FEATURE_LR_FACTORS = (0.5, 1.0, 2.0, 4.0)  # of the default learning rate
MAX_SEARCH_EXAMPLES = 2000  # of the training set, three quarters of which train
BATCH_SIZE = 32
MAX_FEATURE_EPOCHS = 5.0


@dataclass(frozen=True, eq=False)
class TaskTransfer:
    """How a model is transferred to a task: all but the learning rate and the seed."""

    model: Path
    data: TaskData
    config: FinetuneConfig
    features: FeatureOptions | None = None
    from_scratch: bool = False

    @property
    def num_search_dev(self) -> int:
        """The number of examples that the learning rate is chosen on."""
        return max(min(len(self.data.train), MAX_SEARCH_EXAMPLES) // 4, 1)

    def run(self, data: TaskData, lr: float, seed: int, work: Path) -> SeedResult:
        """Train once on the examples of `data`, and evaluate on its dev examples."""
        results: list[SeedResult] = []
        config = self.config.replace(optimizer=self.config.optimizer.replace(lr=lr))
        options = RunOptions([seed], self.from_scratch, on_seed=results.append)
        if self.features is None:
            finetune(self.model, data, None, config, options)
        else:
            train_on_features(self.features.inputs(work / "features"), data, None, config, options)
        return results[0]

    def choose_lr(self, work: Path) -> dict[str, Any]:
        """Return the learning rate, with the scores of those that were tried.

        They are tried on three quarters of a part of the training set, and scored on the rest.
        """
        if self.features is None:
            return {"lr": self.config.optimizer.lr, "rates": []}
        examples = sample_evenly(self.data.train, MAX_SEARCH_EXAMPLES)
        train, dev = split_evenly(examples, self.num_search_dev)
        data, scores = drop_new_labels(replace(self.data, train=train, dev=dev)), {}
        for factor in FEATURE_LR_FACTORS:
            lr = self.config.optimizer.lr * factor
            value = self.run(data, lr, 0, work).scores[data.name][data.primary_metric]
            scores[lr] = value if math.isfinite(value) else -1.0
        best = max(scores, key=lambda lr: (scores[lr], -abs(math.log(lr / self.config.optimizer.lr))))
        rates = [{"lr": lr, "score": score} for lr, score in scores.items()]
        return {"lr": best, "rates": rates, "train_examples": len(data.train), "dev_examples": len(data.dev)}


def open_transfer(
    arm: Arm, model: Path, data: TaskData, finetune_options: Mapping[str, Any], max_len: int, work: Path
) -> TaskTransfer | None:
    """Return how the arm is transferred to a task; None if it is not."""
    if arm.transfer == "none":
        return None
    options = dict(arm.transfer_options)
    model_config = read_model_config(model)[0]
    is_table = isinstance(model_config.trunk, StaticEmbeddingTrunkConfig)
    features: FeatureOptions | None = None
    if arm.transfer == "features" or is_table:
        chosen = pop_options(FeatureOptions, options)
        inputs: dict[str, Any] = {"word_vectors": model} if is_table else {"features": [model]}
        features = chosen if chosen.features is not None else replace(chosen, **inputs)
        config = FEATURE_DEFAULTS.replace(epochs=MAX_FEATURE_EPOCHS, batch_size=BATCH_SIZE)
        data = replace(data, task=data.task.for_features())
        config, (data,) = override(config, [data], "network", features.network_fields())
    else:
        max_len = min(max_len, model_config.trunk.embeddings.max_len)
        config = FinetuneConfig(**data.task.finetune_settings).replace(
            batch_size=BATCH_SIZE, max_len=max_len, truncate=True, min_steps=MIN_STEPS, optimizer=FINETUNE_OPTIMIZER
        )
    from_scratch = bool(options.pop("from_scratch", False))
    if model_config.family == "ulmfit" and features is None:
        model, config = _start_ulmfit(model, data, options, work, from_scratch)
    for path, value in {**options, **finetune_options}.items():
        config, (data,) = override(config, [data], path, value)
    if features is None:
        config, _ = choose_settings(config, model_config.trunk, {})
    return TaskTransfer(model, data, config.validate(), features, from_scratch)


def _start_ulmfit(
    model: Path, data: TaskData, options: dict[str, Any], work: Path, from_scratch: bool
) -> tuple[Path, FinetuneConfig]:
    """Run ULMFiT's second stage on the texts of a task; return its model and the settings of the third stage."""
    config = UlmfitConfig(preset="paper", target_epochs=float(options.pop("target_epochs", 4.0)))
    if config.target_epochs and not from_scratch:
        texts = [text for example in data.train for text in example_texts(example)]
        shutil.rmtree(work / "ulmfit", ignore_errors=True)
        model = finetune_lm(config, work / "ulmfit", load_pretrained(config, [model]), texts)["forward"]
    return model, config.classifier_settings(len(data.train)).replace(truncate=True)


def example_texts(example: Any) -> list[str]:
    """Return the texts of an example of any task."""
    names = ("text", "pair", "context", "question")
    texts = [value for name in names if isinstance(value := getattr(example, name, None), str) and value]
    words = getattr(example, "words", None)
    return [*texts, " ".join(words)] if words else texts
