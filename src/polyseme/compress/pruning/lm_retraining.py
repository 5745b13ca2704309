"""Further pre-training of a language model, of which parts are removed, on a corpus."""

import copy
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from polyseme.compress.examples import QualityExamples
from polyseme.compress.pruning.retraining import Retraining, StepHook
from polyseme.compress.student import derive_recipe
from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError, DataError, ModelError
from polyseme.families import FAMILIES
from polyseme.finetuning.experiment import list_seeds
from polyseme.inference.neural_lm import NeuralLM
from polyseme.nn.model import Model
from polyseme.objectives.packing import SpecialIds
from polyseme.recipes.launch import resolve_arguments
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.loop import TrainState, setup_device
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
from polyseme.train.pretrain import InitialModel, evaluate, pretrain
from polyseme.train.recipe import BudgetConfig, Recipe

STEP_SHARE = 10  # one of so many steps of pre-training are repeated, unless a budget is set
MIN_STEPS = 100


class LanguageModelRetraining(Retraining):
    """Further pre-training on a corpus; the metric is the loss on its held-out text."""

    is_lower_better = True

    def __init__(
        self, network: NeuralLM, recipe: Recipe, corpus: Path, seeds: Sequence[int], examples: QualityExamples | None
    ):
        self.network, self.recipe, self.corpus, self.seeds, self.examples = network, recipe, corpus, seeds, examples
        self.total_steps, self.texts = recipe.budget.steps, examples.texts if examples else ()
        self.metric = f"valid {recipe.objective.terms[0]}"
        special_ids = SpecialIds.from_tokenizer(network.tokenizer, network.folder.target_tokenizer)
        _, valid_corpus = Corpus.open(corpus).split(recipe.valid_fraction)
        try:
            if valid_corpus is None:
                raise DataError("no document is held out")
            self.valid = recipe.objective.bind(valid_corpus, special_ids, recipe.max_len, recipe.seed)
        except DataError as error:
            advice = f"prepare more text, or raise `valid_fraction` ({recipe.valid_fraction:g})"
            raise DataError(f"{corpus} has too little held-out text for the metric ({error}): {advice}") from None

    @classmethod
    def read(
        cls,
        network: NeuralLM,
        corpus: Path,
        seeds: int | Sequence[int],
        options: Mapping[str, Any],
        examples: QualityExamples | None,
    ) -> "LanguageModelRetraining":
        """Choose the recipe: that of the folder for a tenth of its steps, or one derived from the model."""
        cls_position = FAMILIES[network.model.config.family].cls_position
        tokenizer = Tokenizer.load(Corpus.open(corpus).path / "tokenizer").with_cls_position(cls_position)
        if tokenizer.hash != network.tokenizer.hash:
            hint = f"prepare it with the tokenizer of {network.path}"
            raise DataError(f"{corpus} has another vocabulary than {network.path}: {hint}")
        metadata = network.folder.metadata
        if "recipe" in metadata:
            recipe = Recipe.from_json(metadata["recipe"])
            num_steps = metadata.get("results", {}).get("steps") or recipe.budget.steps
            steps = max(num_steps // STEP_SHARE, MIN_STEPS)
            recipe = recipe.replace(budget=BudgetConfig(steps=steps), batch_warmup_steps=0, num_averaged=0)
        else:
            recipe = derive_recipe(network.path, Corpus.open(corpus).num_tokens)
        overridden = resolve_arguments(recipe, corpus, Path(), options).recipe
        assert isinstance(overridden, Recipe), "only n-grams have a recipe of another type"
        recipe = overridden
        if recipe.budget.tokens:
            steps = max(recipe.budget.tokens // recipe.batch_tokens, 1)
            recipe = recipe.replace(budget=BudgetConfig(steps=steps))
        if recipe.budget.is_wall_clock:
            raise ConfigError(
                f"`budget` is {recipe.budget}: pruning is planned in steps, so pass 500steps or 1e7tokens"
            )
        if missing := [name for name in recipe.objective.terms if name not in network.model.heads]:
            objective = type(recipe.objective).__name__
            raise ModelError(f"{network.path} has no head {missing[0]!r}, which the objective {objective} trains")
        return cls(network, recipe, corpus, list_seeds(seeds), examples)

    def describe(self) -> dict[str, Any]:
        return {"corpus": str(self.corpus), "steps": self.total_steps, "lr": self.recipe.optimizer.lr}

    def build(self, seed: int) -> Model:
        return copy.deepcopy(self.network.model).to(setup_device())

    def score(self, model: Model) -> float:
        optimizer = OptimizerConfig().build(model, model.trunk.layer_groups())
        state = TrainState(model, optimizer, OptimizerConfig(), ScheduleConfig(), 0, setup_device())
        loss = evaluate(state, self.valid, self.recipe)[self.recipe.objective.terms[0]]
        model.eval()
        return loss

    def run(
        self, model: Model, seed: int, after_step: StepHook | None, start: Any = None, snapshot_step: int | None = None
    ) -> dict[str, Tensor] | None:
        """Train a model for all steps; a snapshot has its weights, but not the state of the optimizer."""
        if start is not None:
            model.load_state_dict(start)
            if after_step is not None:
                after_step(model, 0)
        snapshot = copy.deepcopy(model.state_dict()) if snapshot_step == 0 else None

        def hook(trained: Model, step: int) -> None:
            nonlocal snapshot
            if after_step is not None:
                after_step(trained, step)
            if step == snapshot_step:
                snapshot = copy.deepcopy(trained.state_dict())

        with tempfile.TemporaryDirectory(prefix="polyseme-prune-") as scratch:
            recipe = self.recipe.replace(seed=seed)
            pretrain(recipe, self.corpus, Path(scratch) / "run", initial_model=InitialModel(model, {}, hook))
        return snapshot

    def network_of(self, model: Model) -> NeuralLM:
        return NeuralLM(replace(self.network.folder, model=model))
