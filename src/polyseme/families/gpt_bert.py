"""GPT-BERT (Charpentier and Samuel 2024): one trunk, read left to right or in both directions, with one LM head."""

from dataclasses import replace
from functools import wraps
from typing import Any

from polyseme.families import hf, modernbert
from polyseme.families.family import HEAD_POOLING
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.lm import ShiftedLMHeadConfig
from polyseme.nn.trunks.transformer import TransformerConfig


@wraps(modernbert.trunk_config)
def trunk_config(*args: Any, **arguments: Any) -> TransformerConfig:
    """ModernBERT's trunk, whose batches say in which direction they are read."""
    return modernbert.trunk_config(*args, **arguments).replace(is_hybrid=True)


def pretraining_heads(config: TransformerConfig) -> dict[str, HeadConfig]:
    """Return the head of causal LM, and the same head for masked tokens."""
    (head,) = modernbert.pretraining_heads(config).values()
    return {"next": head, "masked": ShiftedLMHeadConfig(config.embeddings.vocab_size, "next")}


GPT_BERT = replace(
    modernbert.MODERNBERT,
    name="gpt-bert",
    paper="Charpentier and Samuel 2024, GPT or BERT: why not both?",
    objective="masked LM and causal LM",
    trunk_config=trunk_config,
    sizes={
        **{size: modernbert.MODERNBERT.sizes[size] for size in ("tiny", "small", "medium")},
        "base": {"num_layers": 12, "dim": 768, "num_heads": 12, "max_len": 512},
    },
    num_params={},
    pretraining_heads=pretraining_heads,
    hf_config=replace(modernbert.MODERNBERT.hf_config, trunk_config=trunk_config),
    architectures=hf.architectures("ModernBert", hf.TASKS),
    head_weight_maps={head: modernbert.MODERNBERT.head_weight_maps[head] for head in HEAD_POOLING},
    tied_weights={},
    departures=(
        "The layout is ModernBERT's, not LTG-BERT's: no disentangled relative positions, no gates on attention, no "
        "weights on the outputs of earlier layers.",
        "A constant share of the tokens is masked; the paper lowers it from 30 % to 15 %.",
        "`transformers` has no such architecture: it opens the trunk, and models for tasks, as ModernBERT in both "
        "directions. The language-model head and reading left to right are in Polyseme only.",
    ),
)
