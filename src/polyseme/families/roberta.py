"""RoBERTa (Liu et al. 2019): BERT's trunk, pre-trained longer, on more text, with masked LM only."""

from dataclasses import replace
from typing import Any

from polyseme.errors import ModelError
from polyseme.families import bert, hf
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.lm import LMHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.block import ActivationName
from polyseme.nn.trunks.transformer import TransformerConfig

POSITION_OFFSET = 2  # fairseq starts positions at pad_token_id + 1


def trunk_config(
    num_layers: int = 12,
    dim: int = 768,
    num_heads: int = 12,
    ffn_dim: int = 0,
    vocab_size: int = 50265,
    max_len: int = 512,
    num_segments: int = 1,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    activation: ActivationName = "gelu",
    eps: float = 1e-5,
    init_std: float = 0.02,
    position_offset: int = POSITION_OFFSET,
) -> TransformerConfig:
    """BERT's trunk with one segment and two unused rows in the position table before the first position."""
    sizes = num_layers, dim, num_heads, ffn_dim, vocab_size, max_len, num_segments
    config = bert.trunk_config(*sizes, dropout, attention_dropout, activation, eps)
    return config.replace(
        embeddings=config.embeddings.replace(position_offset=position_offset), init=InitConfig(init_std, init_std)
    )


def task_head(name: str, labels: tuple[str, ...], config: TransformerConfig) -> HeadConfig:
    """Return a task's head; classification has a dense layer over the first token instead of the pooler."""
    if name != "classify":
        return bert.task_head(name, labels, config)
    dropout = config.block.dropout
    return ClassificationHeadConfig(labels, "first", dropout, dense=True, activation="tanh", input_dropout=dropout)


def _subtract_offset(hf_config: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    pad_id = hf_config.get("pad_token_id", POSITION_OFFSET - 1)
    if not isinstance(pad_id, int):
        raise ModelError(f"config.json: pad_token_id is {pad_id!r}, expected an integer")
    defaults = {"num_segments": 2, "eps": 1e-12}  # as in `transformers`
    return defaults | args | {"max_len": args["max_len"] - pad_id - 1, "position_offset": pad_id + 1}


ROBERTA = replace(
    bert.BERT,
    name="roberta",
    paper="Liu et al. 2019, RoBERTa: A Robustly Optimized BERT Pretraining Approach",
    tokenizer="byte-bpe-roberta",
    objective="masked LM, full sentences",
    trunk_config=trunk_config,
    sizes={name: bert.BERT.sizes[name] for name in ("tiny", "mini", "base", "large")},
    num_params={"base": 124_645_632, "large": 355_359_744},
    pretraining_heads=lambda config: {
        "masked": LMHeadConfig(config.embeddings.vocab_size, True, "gelu", config.block.post_norm, bias=True)
    },
    task_head=task_head,
    hf_config=hf.ConfigTable(
        "roberta",
        trunk_config,
        (
            *bert.HF_ROWS,
            *hf.fixed(is_decoder=False),
            hf.ConfigMap("pad_token_id", path=lambda config: config.trunk.embeddings.position_offset - 1),
        ),
        {"max_len": lambda config: config.trunk.embeddings.max_len + config.trunk.embeddings.position_offset},
        _subtract_offset,
    ),
    architectures=hf.architectures("Roberta", hf.TASKS, ForMaskedLM=("masked",)),
    base_model_prefix="roberta.",
    weight_maps=bert.trunk_maps("roberta"),
    head_weight_maps={
        "masked": bert.lm_head_maps("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
        **hf.dense_head_maps("classifier.dense", "classifier.out_proj", "classify"),
        **hf.linear_head_maps(tag="classifier", span="qa_outputs", choice="classifier"),
    },
    tied_weights={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    legacy_suffixes={},
    departures=(
        "Each token is masked with probability 15 %, instead of exactly 15 % of each sequence.",
        "The two unused rows of the position table are kept for compatibility with published weights.",
    ),
)
