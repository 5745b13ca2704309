"""BERT (Devlin et al. 2019): bidirectional Transformer with masked LM and next-sentence prediction."""

from polyseme.families import hf
from polyseme.families.family import HEAD_POOLING, Family, transformer_sizes
from polyseme.nn.attention.multihead import AttentionConfig
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.lm import LMHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.block import ActivationName, FeedForwardConfig, LayerNormConfig, TransformerBlockConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.trunks.base import PoolerConfig
from polyseme.nn.trunks.transformer import TransformerConfig


def trunk_config(
    num_layers: int = 12,
    dim: int = 768,
    num_heads: int = 12,
    ffn_dim: int = 0,
    vocab_size: int = 30522,
    max_len: int = 512,
    num_segments: int = 2,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    activation: ActivationName = "gelu",
    eps: float = 1e-12,
    init_std: float = 0.02,
    causal: bool = False,
) -> TransformerConfig:
    """Post-norm blocks over the normalized sum of token, position and segment embeddings (§3, appendix A.2).

    With `causal` it is the paper's left-to-right model (§5.1), which pools at the last token.
    """
    norm = LayerNormConfig(eps)
    return TransformerConfig(
        EmbeddingsConfig(vocab_size, dim, max_len, num_segments, norm, dropout),
        TransformerBlockConfig(
            AttentionConfig(num_heads, attention_dropout, causal),
            FeedForwardConfig(ffn_dim or 4 * dim, activation),
            post_norm=norm,
            dropout=dropout,
        ),
        layer_to_block=tuple(range(num_layers)),
        pooler=PoolerConfig("last" if causal else "first", dense=True),
        init=InitConfig(init_std, init_std, truncated=True),
    )


def lm_head(config: TransformerConfig) -> HeadConfig:
    """Return the language-model head: a dense layer, activation and norm before the tied output."""
    activation = config.block.ffn.activation
    return LMHeadConfig(config.embeddings.vocab_size, True, activation, config.block.post_norm, bias=True)


def pretraining_heads(config: TransformerConfig) -> dict[str, HeadConfig]:
    """Return the heads of masked LM and next-sentence prediction, or that of causal LM."""
    if config.causal:
        return {"next": lm_head(config)}
    return {"masked": lm_head(config), "pair": ClassificationHeadConfig(("follows", "random"))}


def task_head(name: str, labels: tuple[str, ...], config: TransformerConfig) -> HeadConfig:
    """Return a linear head, with dropout except for answer spans."""
    return ClassificationHeadConfig(labels, HEAD_POOLING[name], 0.0 if name == "span" else config.block.dropout)


ACTIVATIONS: dict[ActivationName, str] = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}
HF_ROWS = (
    *hf.required("vocab_size", hidden_size="dim", num_hidden_layers="num_layers", num_attention_heads="num_heads"),
    *hf.required(intermediate_size="ffn_dim"),
    hf.ConfigMap("hidden_act", "activation", values=ACTIVATIONS),
    *hf.optional(hidden_dropout_prob="dropout", attention_probs_dropout_prob="attention_dropout"),
    *hf.required(max_position_embeddings="max_len"),
    *hf.optional(type_vocab_size="num_segments", layer_norm_eps="eps", initializer_range="init_std"),
    *hf.constants(position_embedding_type="absolute"),
    *hf.fixed(add_cross_attention=False, tie_word_embeddings=True),
)
CAUSAL_ROW = hf.ConfigMap("is_decoder", "causal", allowed=(False, True), omit=False)


def embedding_maps(prefix: str, has_segments: bool = True) -> tuple[hf.WeightMap, ...]:
    """Return weight maps of the embeddings, which BERT, RoBERTa, ALBERT and DistilBERT name alike."""
    segments = hf.WeightMap("trunk.embeddings.segments.weight", (f"{prefix}.token_type_embeddings.weight",))
    return (
        hf.WeightMap("trunk.embeddings.tokens.weight", (f"{prefix}.word_embeddings.weight",)),
        hf.WeightMap("trunk.embeddings.positions.weight", (f"{prefix}.position_embeddings.weight",)),
        *([segments] if has_segments else []),
        *hf.weight_and_bias("trunk.embeddings.norm", f"{prefix}.LayerNorm"),
    )


def trunk_maps(prefix: str) -> tuple[hf.WeightMap, ...]:
    """Return weight maps of the trunk, which BERT and RoBERTa name alike but for their prefix."""
    layers: dict[str, str | tuple[str, ...]] = {
        "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "attention.out": "attention.output.dense",
        "attention_post_norm": "attention.output.LayerNorm",
        "ffn.up": "intermediate.dense",
        "ffn.down": "output.dense",
        "ffn_post_norm": "output.LayerNorm",
    }
    pooler = hf.weight_and_bias("trunk.pooler.dense", f"{prefix}.pooler.dense")
    return *embedding_maps(f"{prefix}.embeddings"), *hf.layer_maps(f"{prefix}.encoder.layer.{{}}", layers), *pooler


def lm_head_maps(dense: str, norm: str, bias: str, head: str = "masked") -> tuple[hf.WeightMap, ...]:
    """Return weight maps of a language-model head: a dense layer, a norm, and the bias of the tied output."""
    return (
        *hf.weight_and_bias(f"heads.{head}.dense", dense),
        *hf.weight_and_bias(f"heads.{head}.norm", norm),
        hf.WeightMap(f"heads.{head}.bias", (bias,)),
    )


def heads_without_class(config: TransformerConfig) -> tuple[str, ...]:
    """Return the heads that no class of `transformers` computes: it pools at the first token, which sees no other."""
    return ("masked", "pair", "classify", "choice") if config.causal else ("next",)


PREDICTIONS = "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"


BERT = Family(
    name="bert",
    paper="Devlin et al. 2019, BERT: Pre-training of Deep Bidirectional Transformers",
    tokenizer="wordpiece",
    objective="masked LM + next sentence",
    trunk_config=trunk_config,
    sizes={
        **transformer_sizes(tiny=(2, 128, 2), mini=(4, 256, 4), small=(4, 512, 8), medium=(8, 512, 8)),
        **transformer_sizes(base=(12, 768, 12), large=(24, 1024, 16), xlarge=(24, 2048, 32)),
        "multilingual": {"num_layers": 12, "dim": 768, "num_heads": 12, "vocab_size": 119547},
    },
    num_params={"base": 109_482_240, "large": 335_141_888, "xlarge": 1_276_360_704, "multilingual": 177_853_440},
    pretraining_heads=pretraining_heads,
    task_head=task_head,
    hf_config=hf.ConfigTable("bert", trunk_config, (*HF_ROWS, CAUSAL_ROW)),
    architectures=hf.architectures(
        "Bert",
        hf.TASKS,
        ForPreTraining=("masked", "pair"),
        ForMaskedLM=("masked",),
        ForNextSentencePrediction=("pair",),
        LMHeadModel=("next",),
    ),
    heads_without_class=heads_without_class,
    base_model_prefix="bert.",
    weight_maps=trunk_maps("bert"),
    head_weight_maps={
        **{head: lm_head_maps(*PREDICTIONS, head) for head in ("masked", "next")},
        **hf.linear_head_maps(pair="cls.seq_relationship", classify="classifier", tag="classifier"),
        **hf.linear_head_maps(span="qa_outputs", choice="classifier"),
    },
    tied_weights={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    optional_weights=("trunk.pooler.",),
    ignored_weights=("embeddings.position_ids",),
    legacy_suffixes={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    departures=(
        "Each token is masked with probability 15 %, instead of exactly 15 % of each sequence.",
        "Sentences replaced by a random sentence B are not used again within the epoch.",
        "The paper does not say how many tokens a step of short sequences has; bert-base has 256 sequences in each.",
    ),
)
