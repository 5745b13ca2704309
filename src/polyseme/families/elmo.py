"""ELMo (Peters et al. 2018): contextual word vectors from a bidirectional language model over characters."""

from __future__ import annotations

from typing import Any

from polyseme.families.family import HEAD_POOLING, Family, all_same_names, read_hf_config, same_names
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.lm import LMHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.char_cnn import CharCNNConfig
from polyseme.nn.layers.feedforward import ActivationName
from polyseme.nn.model import ModelConfig
from polyseme.nn.trunks.base import PoolerConfig
from polyseme.nn.trunks.recurrent import RecurrentTrunkConfig

FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


def trunk_config(
    num_layers: int = 2,
    dim: int = 1024,
    num_heads: int = 0,
    ffn_dim: int = 0,
    vocab_size: int = 793471,
    max_len: int = 1 << 20,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    filters: tuple[tuple[int, ...], ...] = (),
    char_dim: int = 16,
    max_chars_per_word: int = 50,
    num_highway: int = 2,
    activation: ActivationName = "relu",
    cell_clip: float = 0.0,
    projection_clip: float = 0.0,
    use_skip_connections: bool = True,
) -> RecurrentTrunkConfig:
    """A forward and a backward stack of LSTMs over one character CNN (§3.1, 3.4).

    `dim` is the size of both directions together, `ffn_dim` that of an LSTM (0 means 4 · dim). Residual connections
    start at the second layer. The published weights were trained with clipping, which the fused kernel does not
    support; training from scratch omits it. Empty `filters` means the published ones, fewer if `dim` is below 256.
    `num_heads` and `attention_dropout` have no effect.
    """
    filters = filters or tuple((width, max(count * min(dim, 256) // 256, 2)) for width, count in FILTERS)
    return RecurrentTrunkConfig(
        CharCNNConfig(vocab_size, dim // 2, max_len, filters, char_dim, num_highway, max_chars_per_word, activation),
        hidden_dims=(ffn_dim or 4 * dim,) * num_layers,
        projection_dim=dim // 2,
        direction="both",
        skip="residual" if use_skip_connections else "none",
        input_dropout=dropout,
        dropout=dropout,
        output_dropout=dropout,
        fixed_forget_bias=1.0,
        cell_clip=cell_clip,
        projection_clip=projection_clip,
        skip_from_layer=2,
        pooler=PoolerConfig("mean"),
        init=InitConfig(1.0, scale_by_fan_in=True),
    )


def pretraining_heads(config: RecurrentTrunkConfig) -> dict[str, HeadConfig]:
    """Return one head per direction; they share a softmax, which is sampled if the vocabulary is large."""
    vocab_size = config.embeddings.vocab_size
    head = LMHeadConfig(
        vocab_size,
        bias=True,
        tie_word_embeddings=False,
        direction="forward",
        num_sampled=8192 if vocab_size > 65536 else 0,
    )
    return {"next": head, "previous": head.replace(direction="backward", tied_to="next")}


def task_head(name: str, labels: tuple[str, ...], config: RecurrentTrunkConfig) -> HeadConfig:
    """Return a task's head."""
    return ClassificationHeadConfig(labels, HEAD_POOLING[name], config.dropout)


def to_hf_config(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model."""
    trunk = config.trunk
    assert isinstance(trunk, RecurrentTrunkConfig) and isinstance(trunk.embeddings, CharCNNConfig)
    char_cnn = trunk.embeddings
    return {
        "model_type": "elmo",
        "num_layers": trunk.num_layers,
        "dim": trunk.dim,
        "ffn_dim": trunk.hidden_dims[0],
        "vocab_size": char_cnn.vocab_size,
        "max_len": char_cnn.max_len,
        "char_dim": char_cnn.char_dim,
        "max_chars_per_word": char_cnn.max_chars_per_word,
        "num_highway": char_cnn.num_highway,
        "filters": [list(filter_spec) for filter_spec in char_cnn.filters],
        "activation": char_cnn.activation,
        "dropout": trunk.dropout,
        "cell_clip": trunk.cell_clip,
        "projection_clip": trunk.projection_clip,
        "use_skip_connections": trunk.skip == "residual",
    }


INT_FIELDS = ("num_layers", "dim", "ffn_dim", "vocab_size", "max_len", "char_dim", "max_chars_per_word", "num_highway")
OTHER_FIELDS = ("activation", "dropout", "cell_clip", "projection_clip", "use_skip_connections")


def from_hf_config(hf_config: dict[str, Any]) -> RecurrentTrunkConfig:
    """Return the trunk's config from a `config.json`."""
    int_values = read_hf_config(hf_config, int_fields={name: name for name in INT_FIELDS}, allowed_values={})
    filters = tuple(tuple(filter_spec) for filter_spec in hf_config.get("filters", ()))
    return trunk_config(
        **int_values, filters=filters, **{name: hf_config[name] for name in OTHER_FIELDS if name in hf_config}
    )


ELMO = Family(
    name="elmo",
    paper="Peters et al. 2018, Deep contextualized word representations",
    tokenizer="words",
    objective="bidirectional LM",
    trunk_config=trunk_config,
    sizes={
        "tiny": {"dim": 128, "ffn_dim": 256, "num_highway": 1},
        "small": {"dim": 256, "ffn_dim": 1024, "num_highway": 1},
        "medium": {"dim": 512, "ffn_dim": 2048, "num_highway": 1},
        "original": {"dim": 1024, "ffn_dim": 4096},
    },
    num_params={"small": 13_593_312, "medium": 28_027_744, "original": 93_600_864},
    pretraining_heads=pretraining_heads,
    task_head=task_head,
    to_hf_config=to_hf_config,
    from_hf_config=from_hf_config,
    architectures={"ElmoForBidirectionalLM": ("next", "previous"), "Elmo": ()},
    base_model_prefix="trunk.",
    weight_maps=all_same_names,
    head_weight_maps={
        name: same_names(f"heads.{name}.decoder.weight", f"heads.{name}.bias") for name in ("next", "previous")
    },
    departures=(
        "Cells and projections are not clipped in training from scratch, which the fused kernel does not support.",
        "LSTM states are not carried over from batch to batch; the published program does so, even at inference.",
        "Out-of-vocabulary words are read as the unknown word in training, not as their characters.",
        "Highway gates start at one half, not biased toward carrying the input.",
    ),
)
