"""Transformer-XL (Dai et al. 2019): causal Transformer with segment-level memory and relative positions."""

from polyseme.families import hf
from polyseme.families.family import TEXT_TOKENIZERS, Family
from polyseme.nn.attention.relative import RelativeAttentionConfig, RelativePositionConfig
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.adaptive import AdaptiveEmbeddingsConfig, AdaptiveSoftmaxHeadConfig
from polyseme.nn.layers.block import FeedForwardConfig, LayerNormConfig, TransformerBlockConfig
from polyseme.nn.trunks.base import PoolerConfig
from polyseme.nn.trunks.transformer import TransformerConfig

VOCAB_SIZE = 267_735  # WikiText-103
CUTOFFS = (20_000, 40_000, 200_000)


def trunk_config(
    num_layers: int = 16,
    dim: int = 410,
    num_heads: int = 10,
    ffn_dim: int = 0,
    vocab_size: int = VOCAB_SIZE,
    max_len: int = 1 << 20,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    head_dim: int = 0,
    memory_len: int = 150,
    max_distance: int = 0,
    div_value: int = 1,
    share_uv_biases: bool = True,
    eps: float = 1e-5,
    init_std: float = 0.02,
) -> TransformerConfig:
    """Post-norm blocks over adaptive embeddings (§3, §4.1).

    The cutoffs are those of WikiText-103, scaled to the vocabulary. With `share_uv_biases`, all layers share u and v.
    Distances beyond `max_distance` are clamped (clamp_len in the authors' code).
    """
    uv_bias_shape = num_heads, head_dim or dim // num_heads
    attention = RelativeAttentionConfig(
        num_heads, attention_dropout, True, head_dim=head_dim, has_uv_biases=not share_uv_biases
    )
    return TransformerConfig(
        AdaptiveEmbeddingsConfig(vocab_size, dim, scale_cutoffs(vocab_size), div_value, max_len, dropout),
        TransformerBlockConfig(
            attention,
            FeedForwardConfig(ffn_dim or 4 * dim, "relu", dropout=dropout),
            post_norm=LayerNormConfig(eps),
            dropout=dropout,
        ),
        layer_to_block=tuple(range(num_layers)),
        pooler=PoolerConfig("last"),
        init=InitConfig(init_std),
        position_bias=RelativePositionConfig(max_distance, dropout, uv_bias_shape if share_uv_biases else ()),
        memory_len=memory_len,
    )


def scale_cutoffs(vocab_size: int) -> tuple[int, ...]:
    """Scale the cutoffs of WikiText-103 to another vocabulary size."""
    scaled = [vocab_size * cutoff // VOCAB_SIZE for cutoff in CUTOFFS]
    return tuple(sorted({cutoff for cutoff in scaled if 0 < cutoff < vocab_size}))


def pretraining_heads(config: TransformerConfig) -> dict[str, HeadConfig]:
    """Return the adaptive softmax, tied to the adaptive embeddings."""
    embeddings = config.embeddings
    assert isinstance(embeddings, AdaptiveEmbeddingsConfig)
    sizes = embeddings.vocab_size, embeddings.dim, embeddings.cutoffs, embeddings.div_value
    return {"next": AdaptiveSoftmaxHeadConfig(*sizes)}


HF_CONFIG = hf.ConfigTable(
    "transformer_xl",
    trunk_config,
    (
        *hf.required("num_layers", "dim", "num_heads", "ffn_dim", "vocab_size", "max_len"),
        *hf.optional("dropout", "attention_dropout"),
        *hf.required("head_dim", "memory_len", "max_distance", "div_value"),
        *hf.choices(share_uv_biases=(True, False)),
        *hf.optional(layer_norm_eps="eps", initializer_range="init_std"),
    ),
    {
        "max_distance": "position_bias.max_distance",
        "share_uv_biases": lambda config: not config.transformer.block.attention.has_uv_biases,
    },
)

_LARGE = {"memory_len": 384, "div_value": 4, "share_uv_biases": False}
TRANSFORMER_XL = Family(
    name="transformer_xl",
    paper="Dai et al. 2019, Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context",
    tokenizer="bpe",
    other_tokenizers=TEXT_TOKENIZERS,
    objective="causal LM over segments with memory",
    text_start="eos",
    trunk_config=trunk_config,
    sizes={
        "tiny": {"num_layers": 2, "dim": 128, "num_heads": 2, "memory_len": 128},
        "mini": {"num_layers": 4, "dim": 256, "num_heads": 4},
        "base": {"num_layers": 16, "dim": 410, "num_heads": 10, "ffn_dim": 2100},
        "large": {"num_layers": 18, "dim": 1024, "num_heads": 16, "ffn_dim": 4096, **_LARGE},
    },
    num_params={"base": 150_838_570, "large": 283_885_936},
    pretraining_heads=pretraining_heads,
    hf_config=HF_CONFIG,
    architectures=hf.architectures("TransformerXL", ForCausalLM=("next",)),
    head_weight_maps={
        "next": (
            *hf.same_names(*(f"heads.next.biases.{i}" for i in range(len(CUTOFFS) + 1))),
            *hf.same_names("heads.next.projection.weight"),
            *hf.weight_and_bias("heads.next.clusters"),
        ),
        **hf.NATIVE_LABEL_HEADS,
    },
    departures=(
        "The vocabulary has subwords instead of words; cutoffs are proportional to those of WikiText-103.",
        "Norm weights start at 1; the authors' code draws them around 1.",
    ),
)
