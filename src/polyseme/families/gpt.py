"""GPT (Radford et al. 2018): causal post-norm Transformer, fine-tuned on texts joined by delimiter tokens."""

from polyseme.errors import ConfigError
from polyseme.families import hf
from polyseme.families.family import HEAD_POOLING, Family, causal_lm_head, transformer_sizes
from polyseme.nn.attention.multihead import AttentionConfig
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.block import ActivationName, FeedForwardConfig, LayerNormConfig, TransformerBlockConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.model import ModelConfig
from polyseme.nn.trunks.base import PoolerConfig
from polyseme.nn.trunks.transformer import TransformerConfig


def trunk_config(
    num_layers: int = 12,
    dim: int = 768,
    num_heads: int = 12,
    ffn_dim: int = 0,
    vocab_size: int = 40478,
    max_len: int = 512,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    embedding_dropout: float | None = None,
    activation: ActivationName = "gelu_tanh",
    eps: float = 1e-5,
    init_std: float = 0.02,
) -> TransformerConfig:
    """Causal post-norm blocks over the sum of token and position embeddings (§4.1)."""
    return TransformerConfig(
        EmbeddingsConfig(vocab_size, dim, max_len, dropout=dropout if embedding_dropout is None else embedding_dropout),
        TransformerBlockConfig(
            AttentionConfig(num_heads, attention_dropout, causal=True),
            FeedForwardConfig(ffn_dim or 4 * dim, activation),
            post_norm=LayerNormConfig(eps),
            dropout=dropout,
        ),
        layer_to_block=tuple(range(num_layers)),
        pooler=PoolerConfig("last"),
        init=InitConfig(init_std, init_std),
    )


def task_head(name: str, labels: tuple[str, ...], config: TransformerConfig) -> HeadConfig:
    """Return a task's head as in `transformers`: for classes a matrix over the last token, others with dropout 0.1."""
    if name == "classify":
        return ClassificationHeadConfig(labels, "pooled", bias=False)
    return ClassificationHeadConfig(labels, HEAD_POOLING[name], 0.0 if name == "span" else 0.1)


def _check_ffn(config: ModelConfig) -> int:
    """Return the width; raise if the feed-forward layer has a size that the format cannot express."""
    dim, ffn_dim = config.transformer.dim, config.transformer.block.ffn.ffn_dim
    if ffn_dim != 4 * dim:
        raise ConfigError(f"ffn_dim is {ffn_dim}; the format of GPT only supports 4 × dim, here {4 * dim}")
    return dim


HF_ROWS = (
    *hf.required("vocab_size", n_embd="dim", n_layer="num_layers", n_head="num_heads", n_positions="max_len"),
    *hf.optional(resid_pdrop="dropout"),
    hf.ConfigMap("embd_pdrop", "embedding_dropout", default=0.1),
    *hf.optional(attn_pdrop="attention_dropout", initializer_range="init_std"),
    *hf.fixed(summary_activation=None, tie_word_embeddings=True),
)
LINEAR_MAPS = hf.layer_maps(
    "transformer.h.{}",
    {"attention.qkv": "attn.c_attn", "attention.out": "attn.c_proj", "ffn.up": "mlp.c_fc", "ffn.down": "mlp.c_proj"},
    "transpose",
)
HEAD_WEIGHT_MAPS: dict[str, tuple[hf.WeightMap, ...]] = {
    "next": (),
    "classify": (hf.WeightMap("heads.classify.linear.weight", ("score.weight",)),),
    **hf.linear_head_maps(choice="multiple_choice_head.summary"),
}
# "gelu" in the published config is the tanh approximation
ACTIVATIONS: dict[ActivationName, str] = {"gelu_tanh": "gelu", "relu": "relu"}

GPT = Family(
    name="gpt",
    paper="Radford et al. 2018, Improving Language Understanding by Generative Pre-Training",
    tokenizer="bpe",
    objective="causal LM",
    trunk_config=trunk_config,
    sizes=transformer_sizes(tiny=(2, 128, 2), base=(12, 768, 12)),
    num_params={"base": 116_534_784},
    pretraining_heads=causal_lm_head,
    task_head=task_head,
    hf_config=hf.ConfigTable(
        "openai-gpt",
        trunk_config,
        (*HF_ROWS, hf.ConfigMap("afn", "activation", values=ACTIVATIONS), *hf.optional(layer_norm_epsilon="eps")),
        {"dim": _check_ffn},
    ),
    architectures=hf.architectures(
        "OpenAIGPT", ("classify",), LMHeadModel=("next",), DoubleHeadsModel=("next", "choice")
    ),
    base_model_prefix="transformer.",
    weight_maps=(
        hf.WeightMap("trunk.embeddings.tokens.weight", ("transformer.tokens_embed.weight",)),
        hf.WeightMap("trunk.embeddings.positions.weight", ("transformer.positions_embed.weight",)),
        *LINEAR_MAPS,
        *hf.layer_maps("transformer.h.{}", {"attention_post_norm": "ln_1", "ffn_post_norm": "ln_2"}),
    ),
    head_weight_maps=HEAD_WEIGHT_MAPS,
    tied_weights={"lm_head.weight": "transformer.tokens_embed.weight"},
    ignored_weights=(".attn.bias", ".position_ids"),
    legacy_suffixes={"ln_1.g": "ln_1.weight", "ln_1.b": "ln_1.bias", "ln_2.g": "ln_2.weight", "ln_2.b": "ln_2.bias"},
    departures=(
        "A sequence stays inside one document; the paper's code reads 512 tokens from any position in a book.",
        "Vocabularies trained here are byte-level BPE, as in GPT-2; the published character-level BPE can be loaded.",
        "The auxiliary LM loss in fine-tuning is a mean over all tokens, not a mean of the means of texts.",
    ),
    model_type="openai-gpt",
    finetune_template=("<start>", "<delimiter>", "<extract>"),
    finetune_lm_loss_weight=0.5,  # §3.2 and §4.1
    reads_pairs_in_both_orders=True,  # §3.3
)
