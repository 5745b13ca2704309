"""Students: their recipe, derived from the teacher, and their initial weights, taken from it (Sanh et al. 2019, §3)."""

import inspect
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch

from polyseme.errors import ConfigError, ModelError, suggest
from polyseme.families import FAMILIES
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig
from polyseme.nn.trunks.transformer import TransformerConfig
from polyseme.objectives.base import Objective
from polyseme.objectives.causal_lm import CausalLM
from polyseme.objectives.distillation import Distillation
from polyseme.objectives.masked_lm import MaskedLM
from polyseme.objectives.permutation_lm import PermutationLM
from polyseme.objectives.sentence_pairs import MaskedLMWithSentencePairs
from polyseme.objectives.span_corruption import SpanCorruption
from polyseme.recipes import RECIPES, get_training_recipe
from polyseme.recipes.encoders import distilbert_base
from polyseme.train.loop import count_parameters
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.weights.folder import read_model_config

logger = logging.getLogger(__name__)
STUDENT_FAMILIES = {"bert": "distilbert"}  # other students are of the teacher's family
DIRECTIONS: dict[str, Literal["forward", "backward"]] = {"next": "forward", "previous": "backward"}  # of heads
LAYER_ARGUMENTS = ("num_layers", "num_decoder_layers")
NUM_EPOCHS = 3  # of the corpus, as in DistilBERT, for a teacher that was trained elsewhere
MIN_STEPS = 1000  # that the batches of such a run are made small enough for
MIN_BATCH_SEQUENCES, MAX_BATCH_TOKENS, MAX_MICRO_BATCH_TOKENS = 32, 4096 * 512, 32768


def choose_recipe(teacher_path: Path, student: str, num_corpus_tokens: int) -> Recipe:
    """Return the recipe of a student: a named recipe or `recipe.json`, or one derived from the teacher.

    `student` is the recipe, or a size of the student's family; empty for half of the teacher's layers.
    """
    config, _ = read_model_config(teacher_path)
    if not student or student in FAMILIES[student_family(config)].sizes:
        return derive_recipe(teacher_path, num_corpus_tokens, student)
    return _named_recipe(config, student)


def _named_recipe(teacher: ModelConfig, student: str) -> Recipe:
    """Return a named recipe or that of a `recipe.json`."""
    if student in RECIPES or student.endswith(".json"):
        return get_training_recipe(student)
    family = student_family(teacher)
    sizes = FAMILIES[family].sizes
    folder = ", or of a task the folder of a model"
    problem = f"`student` is {student!r}: expected a size of {family} ({', '.join(sizes)}), a recipe{folder}"
    raise ConfigError(f"{problem}; {suggest(student, [*sizes, *RECIPES])}")


def student_model_config(teacher: ModelConfig, student: str | Recipe) -> ModelConfig:
    """Return the model of a student of a size of its family, or of a recipe, with the vocabulary of the teacher.

    It reads as many tokens as the teacher, and has no heads.
    """
    family, vocab_size = student_family(teacher), teacher.trunk.embeddings.vocab_size
    size, arguments = str(student), dict[str, Any]()
    if isinstance(student, Recipe) or student not in FAMILIES[family].sizes:
        recipe = student if isinstance(student, Recipe) else _named_recipe(teacher, student)
        recipe.check().model_config(vocab_size)  # raises if it is wrong
        family, size, arguments = recipe.family, recipe.size, dict(recipe.model)
    if FAMILIES[family].is_text_to_text != FAMILIES[teacher.family].is_text_to_text:
        raise ConfigError(f"`student` is of the family {family}: it does not answer in the form of {teacher.family}")
    arguments |= {"vocab_size": vocab_size, **_length_argument(family, teacher)}
    return FAMILIES[family].model_config(size or None, with_heads=False, **arguments)


def student_family(teacher: ModelConfig) -> str:
    """Return the family of the student of a teacher."""
    return STUDENT_FAMILIES.get(teacher.family, teacher.family)


def derive_recipe(teacher_path: Path, num_corpus_tokens: int, size: str = "") -> Recipe:
    """Return the recipe of a student with half of the teacher's layers, or of a size of its family.

    Length, batches, learning rate and masking are those that the teacher was pre-trained with, for half as many steps.
    If its folder does not have them, they are those of DistilBERT, for three epochs of the corpus, in batches small
    enough for a thousand steps.
    """
    config, metadata = read_model_config(teacher_path)
    settings = _teacher_settings(metadata) or _published_settings(config, num_corpus_tokens)
    return build_student_recipe(config, settings, size)


def build_student_recipe(teacher: ModelConfig, settings: Recipe, size: str = "") -> Recipe:
    """Return `settings` with a student of this teacher, of half its layers and otherwise its sizes, or of a `size`."""
    family, max_len = student_family(teacher), min(settings.max_len, teacher.trunk.embeddings.max_len)
    model = {} if size else halve_layers(trunk_arguments(teacher, family))
    layers = f"the size {size} of {family}" if size else _describe_layers(model)
    return settings.replace(
        name=f"{family}-student",
        family=family,
        size=size,
        model=model if not size else _length_argument(family, teacher),
        objective=base_objective(settings.objective),
        max_len=max_len,
        batch_warmup_steps=0,
        derivation=(f"the student has {layers}", *settings.derivation),
    )


def halve_layers(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a trunk with half of the layers, rounded up."""
    return {name: (value + 1) // 2 if name in LAYER_ARGUMENTS else value for name, value in arguments.items()}


def trunk_arguments(config: ModelConfig, family_name: str) -> dict[str, Any]:
    """Return the arguments of a family's `trunk_config` that give it the sizes and settings of another model.

    The vocabulary is left out, and so is what equals the default, except for the number of layers.
    """
    table = FAMILIES[config.family]
    arguments = table.hf_config.arguments(table.to_hf_config(config))
    parameters = inspect.signature(FAMILIES[family_name].trunk_config).parameters
    return {
        name: value
        for name, value in arguments.items()
        if name in parameters
        and "vocab_size" not in name
        and isinstance(value, int | float | str | bool)
        and (name == "num_layers" or value != parameters[name].default)
    }


def base_objective(objective: Objective) -> Objective:
    """Return what a student learns beside the predictions of its teacher, given the objective of the teacher.

    There are no sentence pairs, and masks are always new (Sanh et al. 2019, §3).
    """
    if isinstance(objective, Distillation):
        objective = objective.base
    if isinstance(objective, MaskedLMWithSentencePairs):
        masking = objective.mask_prob, objective.mask_unit, objective.random_token_prob, objective.keep_token_prob
        return MaskedLM(*masking)
    return objective


def _teacher_settings(metadata: dict[str, Any]) -> Recipe | None:
    """Return the recipe that a teacher was pre-trained with, for half of its steps; None if its folder has none."""
    if "recipe" not in metadata:
        return None
    recipe = Recipe.from_json(metadata["recipe"])
    num_steps = metadata.get("results", {}).get("steps") or recipe.budget.steps
    if not num_steps:
        return None
    steps, schedule = (num_steps + 1) // 2, recipe.schedule
    if schedule.warmup >= 1:
        schedule = schedule.replace(warmup=max(schedule.warmup / 2, 1.0))
    reason = f"{steps:,} steps, half of the teacher's, with its batches, learning rate and masking"
    return recipe.replace(budget=BudgetConfig(steps=steps), schedule=schedule, derivation=(reason,))


def _published_settings(teacher: ModelConfig, num_corpus_tokens: int) -> Recipe:
    """Return DistilBERT's settings for a corpus and a teacher that was trained elsewhere."""
    trunk, recipe = teacher.trunk, distilbert_base()
    max_len = min(recipe.max_len, trunk.embeddings.max_len)
    tokens = NUM_EPOCHS * num_corpus_tokens
    largest = max(min(tokens // MIN_STEPS, MAX_BATCH_TOKENS), MIN_BATCH_SEQUENCES * max_len)
    num_sequences = 1 << (largest // max_len).bit_length() - 1  # a power of two, so that micro-batches divide it
    micro_sequences = min(1 << max(MAX_MICRO_BATCH_TOKENS // max_len, 1).bit_length() - 1, num_sequences)
    objective = base_objective(recipe.objective)
    if trunk.has_source:
        objective = SpanCorruption()
    elif trunk.has_query_stream:
        objective = PermutationLM()
    elif directions := tuple(name for name in ("next", "previous") if name in teacher.heads):
        objective = CausalLM(direction="both" if len(directions) > 1 else DIRECTIONS[directions[0]])
    reason = f"{NUM_EPOCHS} epochs of the corpus with the learning rate of DistilBERT, as in its paper"
    return recipe.replace(
        objective=objective,
        max_len=max_len,
        batch_tokens=num_sequences * max_len,
        micro_batch_tokens=micro_sequences * max_len,
        budget=BudgetConfig(tokens=tokens),
        compile=torch.cuda.is_available() and trunk.supports_static_shape,
        derivation=(reason,),
    )


def _describe_layers(model: dict[str, Any]) -> str:
    names = {"num_layers": "layer", "num_decoder_layers": "decoder layer"}
    counts = [f"{model[arg]} {name}{'s' * (model[arg] > 1)}" for arg, name in names.items() if model.get(arg)]
    return f"{' and '.join(counts)}, half of the teacher's" if counts else "the sizes of the teacher"


def _length_argument(family: str, teacher: ModelConfig) -> dict[str, Any]:
    """Return the length of the teacher as an argument of a family's trunk, unless it is the default."""
    default = inspect.signature(FAMILIES[family].trunk_config).parameters["max_len"].default
    max_len = teacher.trunk.embeddings.max_len
    return {} if max_len == default else {"max_len": max_len}


def teacher_layer_map(num_layers: int, num_teacher_layers: int) -> list[int]:
    """Return the teacher's layer that each layer of the student is initialized from.

    They are evenly spaced and include the first and the last: 0, 2, 4, 7, 9 and 11 for 6 of 12 layers, as in
    DistilBERT's released code.
    """
    if num_layers > num_teacher_layers:
        raise ModelError(f"a student of {num_layers} layers cannot start from a teacher of {num_teacher_layers}")
    return [round(i * (num_teacher_layers - 1) / max(num_layers - 1, 1)) for i in range(num_layers)]


def warn_if_larger(student: Model, teacher: Model) -> None:
    """Log a warning if a student has more parameters than its teacher; heads do not count, since they may be new."""
    sizes = [count_parameters(model.trunk) for model in (student, teacher)]
    if sizes[0] > sizes[1]:
        counts = f"{sizes[0]:,} parameters, more than the {sizes[1]:,} of its teacher"
        logger.warning("the student has %s: choose a smaller `student`", counts)


def init_from_teacher(student: Model, teacher: Model) -> None:
    """Give the student the teacher's embeddings, some of its layers, and the heads that both have.

    Where the student has no segments, the teacher's first one, which every single text has, goes into the positions.
    Raise `ModelError` if the student has weights that the teacher lacks or has in another size.
    """
    teacher_state, student_state = teacher.state_dict(), student.state_dict()
    stacks = list(_paired_stacks(student.config, teacher.config))
    block_prefixes = tuple(f"{prefix}blocks." for prefix, _, _ in stacks)
    initial_state = {name: tensor for name, tensor in teacher_state.items() if not name.startswith(block_prefixes)}
    segments, positions = "trunk.embeddings.segments.weight", "trunk.embeddings.positions.weight"
    if segments in teacher_state and segments not in student_state and positions in teacher_state:
        initial_state[positions] = teacher_state[positions] + teacher_state[segments][0]
    if positions in initial_state and positions in student_state:
        initial_state[positions] = initial_state[positions][: len(student_state[positions])]  # a student may read less
    for prefix, student_stack, teacher_stack in stacks:
        student_blocks, teacher_blocks = student_stack.block_index_per_layer, teacher_stack.block_index_per_layer
        for student_layer, teacher_layer in enumerate(teacher_layer_map(len(student_blocks), len(teacher_blocks))):
            teacher_prefix = f"{prefix}blocks.{teacher_blocks[teacher_layer]}."
            student_prefix = f"{prefix}blocks.{student_blocks[student_layer]}."
            for name, tensor in teacher_state.items():
                if name.startswith(teacher_prefix):
                    initial_state[student_prefix + name.removeprefix(teacher_prefix)] = tensor
    for name, tensor in student_state.items():
        if name not in initial_state and not name.startswith("heads."):
            family = teacher.config.family
            raise ModelError(f"the student cannot start from its teacher ({family}), which has no {name}")
        if name in initial_state and initial_state[name].shape != tensor.shape:
            sizes = f"{tuple(tensor.shape)} in the student and {tuple(initial_state[name].shape)} in the teacher"
            raise ModelError(f"the student cannot start from its teacher: {name} is {sizes}")
    student.load_state_dict({name: t for name, t in initial_state.items() if name in student_state}, strict=False)


def _paired_stacks(
    student: ModelConfig, teacher: ModelConfig
) -> Iterator[tuple[str, TransformerConfig, TransformerConfig]]:
    """Yield each Transformer stack of the student with that of the teacher: prefix of its weights, and both configs."""
    pairs: list[tuple[str, Any, Any]] = [("trunk.", student.trunk, teacher.trunk)]
    if isinstance(student.trunk, EncoderDecoderConfig) and isinstance(teacher.trunk, EncoderDecoderConfig):
        pairs = [
            ("trunk.encoder.", student.trunk.encoder, teacher.trunk.encoder),
            ("trunk.decoder.", student.trunk.decoder, teacher.trunk.decoder),
        ]
    for prefix, student_stack, teacher_stack in pairs:
        if not isinstance(student_stack, TransformerConfig) or not isinstance(teacher_stack, TransformerConfig):
            families = f"{student.family} and {teacher.family}"
            raise ModelError(f"the student cannot start from its teacher: {families} are not both Transformers")
        yield prefix, student_stack, teacher_stack
