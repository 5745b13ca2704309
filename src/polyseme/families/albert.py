"""ALBERT (Lan et al. 2020): BERT with factorized embeddings, shared layers, and sentence-order prediction."""

from typing import Any, Literal, get_args

from polyseme.errors import ConfigError, suggest
from polyseme.families import bert, hf
from polyseme.families.family import HEAD_POOLING, Family, transformer_sizes
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.layers.block import ActivationName
from polyseme.nn.model import ModelConfig
from polyseme.nn.trunks.transformer import TransformerConfig

Sharing = Literal["all", "attention", "ffn", "none"]
CLASSIFIER_DROPOUT = 0.1  # in all published configs, whatever the dropout of the trunk


def trunk_config(
    num_layers: int = 12,
    dim: int = 768,
    num_heads: int = 12,
    ffn_dim: int = 0,
    vocab_size: int = 30000,
    max_len: int = 512,
    num_segments: int = 2,
    embedding_dim: int = 128,
    sharing: Sharing = "all",
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    activation: ActivationName = "gelu_tanh",
    eps: float = 1e-12,
    init_std: float = 0.02,
) -> TransformerConfig:
    """BERT's blocks over embeddings of size `embedding_dim` (§3.1); `sharing` is what layers share (§4.5)."""
    if sharing not in get_args(Sharing):
        raise ConfigError(f"sharing is {sharing!r}; {suggest(str(sharing), get_args(Sharing))}")
    sizes = num_layers, dim, num_heads, ffn_dim, vocab_size, max_len, num_segments
    config = bert.trunk_config(*sizes, dropout, attention_dropout, activation, eps, init_std)
    shared_layers, separate_layers = (0,) * num_layers, tuple(range(num_layers))
    return config.replace(
        embeddings=config.embeddings.replace(embedding_dim=embedding_dim),
        layer_to_block=shared_layers if sharing in ("all", "attention") else separate_layers,
        layer_to_ffn=shared_layers if sharing in ("all", "ffn") else separate_layers,
    )


def pretraining_heads(config: TransformerConfig) -> dict[str, HeadConfig]:
    """Return the heads of masked LM and sentence-order prediction."""
    masked = bert.pretraining_heads(config)["masked"].replace(embedding_dim=config.embeddings.embedding_dim)
    return {"masked": masked, "pair": ClassificationHeadConfig(("ordered", "swapped"), dropout=config.block.dropout)}


def task_head(name: str, labels: tuple[str, ...], config: TransformerConfig) -> HeadConfig:
    """Return a linear head, with dropout except for answer spans."""
    return ClassificationHeadConfig(labels, HEAD_POOLING[name], 0.0 if name == "span" else CLASSIFIER_DROPOUT)


def _classifier_dropout(config: ModelConfig) -> float:
    dropouts = (head.dropout for head in config.heads.values() if isinstance(head, ClassificationHeadConfig))
    return next(dropouts, CLASSIFIER_DROPOUT)


def _read_sharing(hf_config: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    """Add what layers share: one group of layers is shared by all; otherwise there is one group per layer."""
    num_groups = hf_config.get("num_hidden_groups", 1)
    hf.ConfigMap("num_hidden_groups", allowed=(1, args["num_layers"])).check(hf_config)
    return args | {"sharing": "all" if num_groups == 1 else "none"}


HF_CONFIG = hf.ConfigTable(
    "albert",
    trunk_config,
    (
        *hf.required("vocab_size", embedding_size="embedding_dim", hidden_size="dim", num_hidden_layers="num_layers"),
        # sharing of only attention or only the feed-forward layer has no published form; `transformers` gets copies
        hf.ConfigMap("num_hidden_groups", path=lambda config: len(config.transformer.block_configs)),
        *hf.constants(inner_group_num=1),
        *hf.required(num_attention_heads="num_heads", intermediate_size="ffn_dim"),
        hf.ConfigMap("hidden_act", "activation", values=bert.ACTIVATIONS),
        hf.ConfigMap("hidden_dropout_prob", "dropout", default=0.0),
        hf.ConfigMap("attention_probs_dropout_prob", "attention_dropout", default=0.0),
        hf.ConfigMap("classifier_dropout_prob", path=_classifier_dropout),
        *hf.required(max_position_embeddings="max_len"),
        *hf.optional(type_vocab_size="num_segments", layer_norm_eps="eps", initializer_range="init_std"),
        *hf.fixed(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False),
        *hf.fixed(tie_word_embeddings=True),
    ),
    finish=_read_sharing,
)

ALBERT = Family(
    name="albert",
    paper="Lan et al. 2020, ALBERT: A Lite BERT for Self-supervised Learning of Language Representations",
    tokenizer="unigram",
    objective="masked LM (n-grams) + sentence order",
    trunk_config=trunk_config,
    sizes={
        "tiny": {"num_layers": 2, "dim": 128, "num_heads": 2, "embedding_dim": 64},
        **transformer_sizes(base=(12, 768, 12), large=(24, 1024, 16), xlarge=(24, 2048, 16), xxlarge=(12, 4096, 64)),
    },
    num_params={"base": 11_683_584, "large": 17_683_968, "xlarge": 58_724_864, "xxlarge": 222_595_584},
    paper_params={"base": "12M", "large": "18M", "xlarge": "60M", "xxlarge": "235M"},
    pretraining_heads=pretraining_heads,
    task_head=task_head,
    hf_config=HF_CONFIG,
    architectures=hf.architectures("Albert", hf.TASKS, ForPreTraining=("masked", "pair"), ForMaskedLM=("masked",)),
    base_model_prefix="albert.",
    weight_maps=(
        *bert.embedding_maps("albert.embeddings"),
        *hf.weight_and_bias("trunk.embeddings.projection", "albert.encoder.embedding_hidden_mapping_in"),
        *hf.layer_maps(
            "albert.encoder.albert_layer_groups.{}.albert_layers.0",
            {
                "attention.qkv": ("attention.query", "attention.key", "attention.value"),
                "attention.out": "attention.dense",
                "attention_post_norm": "attention.LayerNorm",
                "ffn.up": "ffn",
                "ffn.down": "ffn_output",
                "ffn_post_norm": "full_layer_layer_norm",
            },
        ),
        *hf.weight_and_bias("trunk.pooler.dense", "albert.pooler"),
    ),
    head_weight_maps={
        "masked": bert.lm_head_maps("predictions.dense", "predictions.LayerNorm", "predictions.bias"),
        **hf.linear_head_maps(pair="sop_classifier.classifier", classify="classifier", tag="classifier"),
        **hf.linear_head_maps(span="qa_outputs", choice="classifier"),
    },
    tied_weights={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    optional_weights=("trunk.pooler.",),
    ignored_weights=("embeddings.position_ids",),
    departures=(
        "Masked n-grams cover 15 % of the words on average, not exactly in each sequence, and are never adjacent.",
        "A segment of a single sentence is split in its middle and has no sentence-order target.",
    ),
)
