"""Transfer of an arm's model to a task: fine-tuning, a network over frozen features, or ULMFiT's stages.

Each has one optimizer, learning rate and number of steps in all arms (decisions 042 and 043). The dev examples are used
for the results alone.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyseme.errors import ConfigError
from polyseme.finetuning.api import FeatureOptions, pop_options
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import RunOptions, TaskData
from polyseme.finetuning.finetune import finetune
from polyseme.finetuning.frozen import FEATURE_DEFAULTS, train_on_features
from polyseme.finetuning.grid import override
from polyseme.finetuning.results import SeedResult
from polyseme.ngram.train import NgramRecipe
from polyseme.nn.trunks.shallow import StaticEmbeddingTrunkConfig
from polyseme.pipelines.ulmfit import UlmfitConfig, finetune_lm, load_pretrained
from polyseme.studies.arms import resolve_recipe
from polyseme.studies.base import Arm, Study
from polyseme.studies.metrics import METRICS
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.recipe import Recipe
from polyseme.weights.folder import read_model_config

FINETUNE_OPTIMIZER = OptimizerConfig(name="muon", lr=5e-4)
MIN_STEPS = 1500  # small sets need more epochs (Mosbach et al. 2021, §6)
BATCH_SIZE, EPOCHS = 32, 3.0


@dataclass(frozen=True, eq=False)
class TaskTransfer:
    """How a model is transferred to a task: all but the seed."""

    model: Path
    data: TaskData
    config: FinetuneConfig
    features: FeatureOptions | None = None
    from_scratch: bool = False

    def run(self, seed: int, work: Path) -> SeedResult:
        """Train once, and evaluate on the dev examples."""
        results: list[SeedResult] = []
        options = RunOptions([seed], self.from_scratch, on_seed=results.append)
        if self.features is None:
            finetune(self.model, self.data, None, self.config, options)
        else:
            train_on_features(self.features.inputs(work / "features"), self.data, None, self.config, options)
        return results[0]


def check_transfer(study: Study, finetune_options: Mapping[str, Any]) -> None:
    """Raise `ConfigError` unless the options of every arm, and those for all of them, are settings of its training.

    Also if a question compares an arm in what is never measured of it: it would stay open, and count as a test.
    """
    for question in study.questions:
        for name in (question.arm, question.reference):
            if reason := _unmeasured_reason(study, study.find_arm(name), question.metric):
                raise ConfigError(f"a question compares the arm {name} by {question.metric}: {reason}")
    tasks = [METRICS[name].task() for name in study.metrics if METRICS[name].kind == "task"]
    data = [TaskData(task, [], []) for task in tasks]
    arms = [arm for arm in study.arms if arm.transfer != "none"] if tasks else []
    if finetune_options and not arms:
        raise ConfigError(f"`finetune` has no effect: no arm of the study {study.name} is trained on a task")
    for arm in arms:
        options = dict(arm.transfer_options)
        features = pop_options(FeatureOptions, options) if arm.transfer == "features" else FeatureOptions()
        options.pop("from_scratch", None)
        if "target_epochs" in options and _is_ulmfit(study, arm):
            options.pop("target_epochs", None)
        try:
            config, settings = override(FEATURE_DEFAULTS, data, "network", features.network_fields())
            for path, value in {**options, **finetune_options}.items():
                config, settings = override(config, settings, path, value)
            config.validate()
        except ConfigError as error:
            raise ConfigError(f"the arm {arm.name}: {error}") from None


def _unmeasured_reason(study: Study, arm: Arm, metric: str) -> str:
    """Return why an arm has no value of a metric, whatever its model; empty if it has one."""
    if METRICS[metric].kind != "task":
        return f"it uses the model of {arm.from_arm}, so only tasks are measured" if arm.from_arm else ""
    if arm.transfer == "none":
        return "its `transfer` is none, so no task is measured"
    is_counted = isinstance(resolve_recipe(study.find_arm(arm.from_arm or arm.name), {}), NgramRecipe)
    return "it is an n-gram model, which learns no task" if is_counted else ""


def _is_ulmfit(study: Study, arm: Arm) -> bool:
    """Return whether an arm is fine-tuned in ULMFiT's stages."""
    recipe = resolve_recipe(study.find_arm(arm.from_arm or arm.name), {})
    return arm.transfer == "finetune" and isinstance(recipe, Recipe) and recipe.family == "ulmfit"


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
        config = FEATURE_DEFAULTS.replace(epochs=EPOCHS, min_steps=MIN_STEPS, batch_size=BATCH_SIZE)
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
    options |= finetune_options
    if "epochs" in options:
        config = config.replace(min_steps=0)
    for path, value in options.items():
        config, (data,) = override(config, [data], path, value)
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
