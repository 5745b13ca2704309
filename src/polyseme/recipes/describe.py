"""What a recipe costs: parameters, memory, tokens and operations, computed without allocating the model."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from polyseme.errors import ConfigError
from polyseme.families import get_family
from polyseme.ngram.train import NgramRecipe
from polyseme.nn.model import ModelConfig, build_meta
from polyseme.recipes import get_recipe
from polyseme.report.notebook import NotebookResult
from polyseme.train.loop import count_parameters, count_pass_flops
from polyseme.train.memory import DeviceMemory, TrainingMemory, estimate_memory, format_gib
from polyseme.train.recipe import Recipe


@dataclass(frozen=True)
class RecipeDescription(NotebookResult):
    """The cost of a recipe with the published vocabulary, on the device that this machine trains on.

    `memory` is that of one device; all but its activations is exact. `flops` counts 6 operations for each matrix weight
    that a token, or a prediction, is multiplied with, and those of attention, in sequences of the full length.
    `num_steps`, `num_tokens` and `flops` are None if the budget is a time, and `flops` also for word vectors.
    """

    name: str
    family: str
    size: str
    vocab_size: int
    num_parameters: int  # without heads, as they are published
    num_trained_parameters: int  # with the heads of pre-training
    published_parameters: str
    max_len: int
    short_max_len: int  # of the first steps, 0 if all are alike
    batch_tokens: int
    micro_batch_tokens: int
    num_steps: int | None
    num_tokens: int | None
    flops_per_token: int | None
    flops: int | None
    memory: TrainingMemory
    device: str
    device_memory: int
    fits: bool

    def to_json(self) -> dict[str, Any]:
        """Return all fields as values of JSON."""
        return {**asdict(self), "memory": {**asdict(self.memory), "total": self.memory.total}}

    def to_rows(self) -> list[tuple[str, str]]:
        """Return titles and values for people."""
        published = f" (published: {self.published_parameters})" if self.published_parameters else ""
        memory, time_budget = self.memory, "depends on the speed: the budget is a time"
        batch = f"{self.batch_tokens:,} tokens per step, {self.micro_batch_tokens:,} at once"
        short = f", after {self.short_max_len:,} in the first steps" if self.short_max_len else ""
        flops = "not estimated: few rows are updated per word" if self.flops_per_token is None else time_budget
        if self.flops is not None:
            flops = f"{self.flops:.3g}, {self.flops_per_token:.3g} per token: 6 per matrix weight, and attention"
        elif self.flops_per_token is not None:
            flops = f"{self.flops_per_token:.3g} per token: 6 per matrix weight, and attention"
        return [
            ("family", f"{self.family} {self.size}".strip()),
            ("parameters", f"{self.num_parameters:,} without heads{published}"),
            ("", f"{self.num_trained_parameters:,} trained, with a vocabulary of {self.vocab_size:,}"),
            ("batch", f"{batch}, in sequences of up to {self.max_len:,}{short}"),
            ("steps", time_budget if self.num_steps is None else f"{self.num_steps:,}"),
            ("tokens", time_budget if self.num_tokens is None else f"{self.num_tokens:,}"),
            ("operations", flops),
            ("memory", f"{format_gib(memory.total)} on each device:"),
            ("  weights", format_gib(memory.weights)),
            ("  gradients", format_gib(memory.gradients)),
            ("  optimizer", format_gib(memory.optimizer_state)),
            ("  activations", f"about {format_gib(memory.activations)}, estimated"),
            ("fits here", f"{'yes' if self.fits else 'no'}: {self.device} has {format_gib(self.device_memory)}"),
        ]


def describe_recipe(recipe: str | Recipe, device: DeviceMemory | None = None) -> RecipeDescription:
    """Return what a recipe costs, by name, from a `recipe.json`, or as a `Recipe`."""
    resolved = recipe if isinstance(recipe, Recipe) else get_recipe(str(recipe))
    if isinstance(resolved, NgramRecipe):
        raise ConfigError(f"the recipe {resolved.name!r} counts n-grams: there is nothing to train")
    family, device = get_family(resolved.family), device or DeviceMemory.detect()
    vocab_size = int(resolved.model.get("vocab_size") or _published_vocab_size(resolved))
    config = resolved.model_config(vocab_size)
    num_steps, num_tokens = _count_length(resolved)
    flops_per_token = None if resolved.objective.is_sparse else _count_flops_per_token(resolved, config)
    model = build_meta(config)
    memory = estimate_memory(resolved, model, device.is_gpu)
    published = family.num_params.get(resolved.size)
    return RecipeDescription(
        name=resolved.name,
        family=resolved.family,
        size=resolved.size,
        vocab_size=vocab_size,
        num_parameters=count_parameters(model.trunk),
        num_trained_parameters=count_parameters(model),
        published_parameters=f"{published:,}" if published else family.paper_params.get(resolved.size, ""),
        max_len=resolved.max_len,
        short_max_len=resolved.short_sequences.max_len,
        batch_tokens=resolved.batch_tokens,
        micro_batch_tokens=resolved.micro_batch_tokens,
        num_steps=num_steps,
        num_tokens=num_tokens,
        flops_per_token=flops_per_token,
        flops=None if flops_per_token is None or num_tokens is None else flops_per_token * num_tokens,
        memory=memory,
        device=device.name,
        device_memory=device.num_bytes,
        fits=memory.total <= device.num_bytes,
    )


def _published_vocab_size(recipe: Recipe) -> int:
    return get_family(recipe.family).model_config(recipe.size or None, with_heads=False).trunk.embeddings.vocab_size


def _count_length(recipe: Recipe) -> tuple[int | None, int | None]:
    """Return the steps and tokens of a run with full batches; None if its budget is a time."""
    first_tokens, fraction = recipe.first_recipe.batch_tokens, _short_fraction(recipe)
    tokens_per_step = fraction * first_tokens + (1 - fraction) * recipe.batch_tokens
    # the batch grows from one micro-batch by so many tokens over these steps
    growth, warmup = first_tokens - recipe.micro_batch_tokens, recipe.batch_warmup_steps
    if num_steps := recipe.budget.steps:
        num_grown = min(num_steps, warmup)
        saved_tokens = growth * num_grown * (1 - num_grown / (2 * max(warmup, 1)))
        return num_steps, round(num_steps * tokens_per_step - saved_tokens)
    if num_tokens := recipe.budget.tokens:
        num_steps = math.ceil((num_tokens + warmup * growth / 2) / tokens_per_step)
        if num_steps < warmup and growth:  # the run ends in the warm-up
            first, slope = recipe.micro_batch_tokens, growth / (2 * warmup)  # first · n + slope · n² tokens in n steps
            num_steps = math.ceil((math.sqrt(first**2 + 4 * slope * num_tokens) - first) / (2 * slope))
        return num_steps, num_tokens
    return None, None


def _count_flops_per_token(recipe: Recipe, config: ModelConfig) -> int:
    """Return the mean operations of a forward and backward pass for each token of full-length sequences."""
    first, fraction = recipe.first_recipe, _short_fraction(recipe)
    weights = fraction * first.batch_tokens, (1 - fraction) * recipe.batch_tokens
    flops = [_count_sequence_flops(each, config) for each in (first, recipe)]
    return round(sum(weight * count for weight, count in zip(weights, flops)) / sum(weights))


def _count_sequence_flops(recipe: Recipe, config: ModelConfig) -> float:
    """Return the operations for each token of a sequence; those of an encoder-decoder are of its longer side."""
    objective = recipe.objective
    target_len, source_len = objective.full_lengths(recipe.max_len)
    num_predicted = round(target_len * objective.predicted_fraction)
    num_targets = {term: 1 if term == "pair" else num_predicted for term in objective.terms}
    flops = count_pass_flops(config, [target_len], [source_len] if source_len else [], num_targets)
    return flops / max(target_len, source_len)


def _short_fraction(recipe: Recipe) -> float:
    return recipe.short_sequences.fraction if recipe.short_sequences.max_len else 0.0
