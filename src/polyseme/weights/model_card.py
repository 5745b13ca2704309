"""The card of a neural model: what its config, family and tokenizer say about it, and code that uses it."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from polyseme.families import Family
from polyseme.io.json import has_shape
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig
from polyseme.nn.trunks.image_text import ImageTextConfig
from polyseme.nn.trunks.shallow import StaticEmbeddingTrunkConfig
from polyseme.report.cards.model_card import ModelFacts, format_usage, write_model_card
from polyseme.report.cards.readme import format_literal
from polyseme.report.cards.transformers_usage import sentence_transformers_usage, transformers_usage
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.int8_storage import INT8_FILE

TEXT = "The cat sat on the mat."
_USAGE_SHAPE = {"pipeline_tag": str, "method": str, "example": str}
Usages = dict[str, dict[str, Any]]  # of each task by name: pipeline tag, example, source text


def write_neural_card(
    folder: Path,
    existing: Path,
    model: Model,
    tokenizer: Tokenizer,
    family: Family,
    hf_config: Mapping[str, Any],
    metadata: Mapping[str, Any],
) -> None:
    """Write the card of a model folder that is being written; `existing` is the folder that it replaces."""
    config, usages, name = model.config, _task_usages(metadata), existing.absolute().name
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    usage = next(iter(usages.values()), {})
    example = usage.get("source") or ast.literal_eval(usage.get("example", repr(TEXT)))
    mask_token = (tokenizer.mask_token or "") if "masked" in config.heads else ""
    library, other_usage = "transformers", transformers_usage(dict(hf_config), name, example, mask_token)
    is_int8 = (folder / INT8_FILE).exists()
    if is_int8 or not family.represents(config.trunk):
        other_usage = ""
    elif (folder / "modules.json").exists():  # the format of sentence-transformers
        library, other_usage = "sentence-transformers", sentence_transformers_usage(name, [TEXT, "A dog ran."])
    facts = ModelFacts(
        family.name,
        f"A {family.name} model with {num_parameters:,} parameters.",
        _describe(config, tokenizer, family, metadata, num_parameters)
        | ({"weights": "stored as int8 with a scale per row, float32 when loaded"} if is_int8 else {}),
        _polyseme_usage(config, tokenizer, usages, name),
        other_usage,
        usage.get("pipeline_tag", _pipeline_tag(config, tokenizer)),
        library=library if other_usage else "polyseme",
        limits=tuple(_list_limits(folder, family, metadata, other_usage)),
        num_parameters=num_parameters,
    )
    write_model_card(folder, facts, metadata, existing)


def _describe(
    config: ModelConfig, tokenizer: Tokenizer, family: Family, metadata: Mapping[str, Any], num_parameters: int
) -> dict[str, object]:
    trunk, recipe = config.trunk, metadata.get("recipe") or {}
    lowercase = ", lowercase" if tokenizer.lowercase else ""
    table = {
        "family": f"{family.name}: {family.paper}",
        "parameters": f"{num_parameters:,}",
        "layers": trunk.num_layers,
        "dimension": trunk.dim,
        "longest input": f"{trunk.embeddings.max_len:,} tokens",
        "heads": ", ".join(config.heads) or "none",
        "objective": recipe.get("objective", {}).get("kind", ""),
        "tokenizer": f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens{lowercase}",
        "recipe": f"{recipe['name']}; all settings are in polyseme.json" if recipe.get("name") else "",
        "imported from": metadata.get("imported", ""),
    }
    return {name: value for name, value in table.items() if value != ""}


def _list_limits(folder: Path, family: Family, metadata: Mapping[str, Any], other_usage: str) -> Iterator[str]:
    if other_usage and (folder / "polyseme.safetensors").exists():
        yield "`transformers` does not read `polyseme.safetensors`: the heads, or parts of them, that it lacks."
    if (folder / INT8_FILE).exists():
        yield "`transformers` does not read int8 weights; `polyseme.load(…).save(…)` writes a folder that it reads."
    for line in family.departures if "recipe" in metadata else ():
        yield f"Differs from the paper: {line}"


def _task_usages(metadata: Mapping[str, Any]) -> Usages:
    """Return how the model of each task is used, by its name, which is empty for a single task."""
    tasks = metadata.get("tasks")
    usages = {name: each.get("usage") for name, each in tasks.items()} if isinstance(tasks, Mapping) else {}
    usages = usages or {"": metadata.get("usage")}
    return {name: usage for name, usage in usages.items() if has_shape(usage, _USAGE_SHAPE)}


def _polyseme_usage(config: ModelConfig, tokenizer: Tokenizer, usages: Usages, folder: str) -> str:
    if usages:
        calls = {name: f"{usage['method']}({usage['example']})" for name, usage in usages.items()}
        return format_usage(folder, calls)
    return format_usage(folder, {"": _call(config, tokenizer)})


def _call(config: ModelConfig, tokenizer: Tokenizer) -> str:
    """Return the call that shows what a model without a task is for, by its heads."""
    heads = config.heads
    if "masked" in heads and tokenizer.mask_token:
        return f"fill({format_literal(f'The {tokenizer.mask_token} is here.')}, top_k=3)"
    if isinstance(config.trunk, StaticEmbeddingTrunkConfig):
        return f"neighbors({format_literal(_pick_word(tokenizer))}, top_k=3)"
    if "previous" in heads and "next" in heads:
        return f"score({format_literal(TEXT)})"
    if isinstance(config.trunk, ImageTextConfig):
        return 'caption("image.png").text'
    if "next" in heads:
        is_seq2seq = isinstance(config.trunk, EncoderDecoderConfig)
        prompt = _pick_word(tokenizer) if tokenizer.kind == "events" else TEXT if is_seq2seq else "The cat"
        return f"generate({format_literal(prompt)}, max_new_tokens=20)"
    return f"embed({format_literal([TEXT, 'A dog ran.'])}).shape"


def _pick_word(tokenizer: Tokenizer) -> str:
    """Return a word of the vocabulary, of letters if there is one."""
    words = [word for i, word in enumerate(tokenizer.vocabulary) if i not in tokenizer.all_special_ids]
    return next((word for word in words if len(word) > 2 and word.isascii() and word.isalpha()), words[-1])


def _pipeline_tag(config: ModelConfig, tokenizer: Tokenizer) -> str:
    """Return the Hub's name of what a model without a task does; none for music, or a model that maps text to text."""
    if isinstance(config.trunk, ImageTextConfig):
        return "image-to-text"
    if tokenizer.kind == "events" or ("next" in config.heads and isinstance(config.trunk, EncoderDecoderConfig)):
        return ""
    if "masked" in config.heads:
        return "fill-mask"
    return "text-generation" if set(config.heads) == {"next"} else "feature-extraction"
