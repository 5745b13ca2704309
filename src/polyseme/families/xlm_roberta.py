"""XLM-RoBERTa (Conneau et al. 2020) and CamemBERT (Martin et al. 2020): RoBERTa with Unigram vocabularies."""

from dataclasses import replace
from typing import Any

from polyseme.families import hf
from polyseme.families.family import Family
from polyseme.families.roberta import ROBERTA


def _roberta_variant(name: str, model_type: str, prefix: str, vocab_size: int, departure: str, **fields: Any) -> Family:
    """Return RoBERTa under another name in `transformers`, with another vocabulary."""
    return replace(
        ROBERTA,
        name=name,
        model_type=model_type,
        tokenizer="unigram-roberta",
        sizes={size: {**args, "vocab_size": vocab_size} for size, args in ROBERTA.sizes.items()},
        hf_config=replace(ROBERTA.hf_config, model_type=model_type),
        architectures=hf.architectures(prefix, hf.TASKS, ForMaskedLM=("masked",)),
        departures=(*ROBERTA.departures, departure),
        **fields,
    )


XLM_ROBERTA = _roberta_variant(
    "xlm_roberta",
    "xlm-roberta",
    "XLMRoberta",
    vocab_size=250002,
    departure="Languages are sampled by the weights of their sources, not by their sizes to the power 0.3.",
    paper="Conneau et al. 2020, Unsupervised Cross-lingual Representation Learning at Scale",
    num_params={"base": 278_043_648, "large": 559_890_432},
)
CAMEMBERT = _roberta_variant(
    "camembert",
    "camembert",
    "Camembert",
    vocab_size=32005,
    departure="Single tokens are masked, not whole words.",
    paper="Martin et al. 2020, CamemBERT: a Tasty French Language Model",
    num_params={"base": 110_621_952, "large": 336_661_504},
)
