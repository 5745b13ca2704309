"""GPT (Radford et al. 2018): causal post-norm Transformer, fine-tuned on texts that marks turn into one sequence."""

from __future__ import annotations

from typing import Any

from polyseme.errors import UserError
from polyseme.families.family import READS, Family, Rule, both, read_config
from polyseme.nn.attention.multihead import AttentionSpec
from polyseme.nn.heads.standard import HeadSpec, LabelHeadSpec, LanguageHeadSpec
from polyseme.nn.init import InitSpec
from polyseme.nn.layers.block import BlockSpec
from polyseme.nn.layers.embeddings import EmbeddingsSpec
from polyseme.nn.layers.feedforward import ActivationName, FeedForwardSpec
from polyseme.nn.layers.norms import LayerNormSpec
from polyseme.nn.model import ModelSpec
from polyseme.nn.trunks.transformer import PoolerSpec, TransformerSpec


def trunk(
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
) -> TransformerSpec:
    """Post-norm blocks that look back, over the plain sum of token and position vectors (§4.1)."""
    return TransformerSpec(
        EmbeddingsSpec(vocab_size, dim, max_len, dropout=dropout if embedding_dropout is None else embedding_dropout),
        BlockSpec(
            AttentionSpec(num_heads, attention_dropout, causal=True),
            FeedForwardSpec(ffn_dim or 4 * dim, activation),
            after=LayerNormSpec(eps),
            dropout=dropout,
        ),
        order=tuple(range(num_layers)),
        pooler=PoolerSpec("last"),
        init=InitSpec(init_std, init_std),
    )


def heads(spec: TransformerSpec) -> dict[str, HeadSpec]:
    return {"next": LanguageHeadSpec(spec.embeddings.vocab_size)}


def label_head(name: str, labels: tuple[str, ...], spec: TransformerSpec) -> HeadSpec:
    """As `transformers` has them: a bare matrix on the last token for classes, dropout before others (§4.1, 0.1)."""
    if name == "classify":
        return LabelHeadSpec(labels, "pooled", bias=False)
    return LabelHeadSpec(labels, READS[name], 0.0 if name == "span" else 0.1)


# The published config knows one gelu, by that name, and it is the tanh form.
ACTIVATIONS: dict[ActivationName, str] = {"gelu_tanh": "gelu", "relu": "relu"}


def to_config(spec: ModelSpec) -> dict[str, Any]:
    dim, block = spec.transformer.dim, spec.transformer.block
    if block.ffn.ffn_dim != 4 * dim:
        raise UserError(f"ffn_dim is {block.ffn.ffn_dim}: folders of GPT know only 4 × dim, {4 * dim} here")
    activation = {"afn": ACTIVATIONS[block.ffn.activation]}
    return {"model_type": "openai-gpt", **described(spec), **activation, "layer_norm_epsilon": block.after.eps}


def from_config(config: dict[str, Any]) -> TransformerSpec:
    return trunk(**arguments(config, "afn", ACTIVATIONS))


def described(spec: ModelSpec) -> dict[str, Any]:
    """What the published configs of GPT and GPT-2 say alike."""
    trunk, block = spec.transformer, spec.transformer.block
    return {
        "vocab_size": trunk.embeddings.vocab_size,
        "n_embd": trunk.dim,
        "n_layer": trunk.num_layers,
        "n_head": block.attention.num_heads,
        "n_positions": trunk.embeddings.max_len,
        "resid_pdrop": block.dropout,
        "embd_pdrop": trunk.embeddings.dropout,
        "attn_pdrop": block.attention.dropout,
        "initializer_range": trunk.init.std,
    }


def arguments(
    config: dict[str, Any], key: str, activations: dict[ActivationName, str], fixed: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What `trunk` is given for a published config of either, which names its activation under `key`."""
    names = {theirs: ours for ours, theirs in activations.items()}
    values = read_config(
        config,
        needed={
            "num_layers": "n_layer",
            "dim": "n_embd",
            "num_heads": "n_head",
            "vocab_size": "vocab_size",
            "max_len": "n_positions",
        },
        fixed={key: list(names), "summary_activation": [None], "tie_word_embeddings": [True], **(fixed or {})},
    )
    return values | {
        "dropout": config.get("resid_pdrop", 0.1),
        "attention_dropout": config.get("attn_pdrop", 0.1),
        "embedding_dropout": config.get("embd_pdrop", 0.1),
        "activation": names[config.get(key, activations["gelu_tanh"])],
        "eps": config.get("layer_norm_epsilon", 1e-5),
        "init_std": config.get("initializer_range", 0.02),
    }


def layer(ours: str, theirs: str, turned: bool = True) -> tuple[Rule, Rule]:
    how = "transpose" if turned else "same"
    return both(f"trunk.blocks.{{}}.{ours}", f"transformer.h.{{}}.{theirs}", how)  # type: ignore[arg-type]


GPT = Family(
    name="gpt",
    paper="Radford et al. 2018, Improving Language Understanding by Generative Pre-Training",
    tokenizer="bpe",
    objective="causal LM",
    trunk=trunk,
    sizes={
        "tiny": {"num_layers": 2, "dim": 128, "num_heads": 2},
        "base": {"num_layers": 12, "dim": 768, "num_heads": 12},
    },
    published={"base": 116_534_784},
    heads=heads,
    label_head=label_head,
    to_config=to_config,
    from_config=from_config,
    architectures={
        "OpenAIGPTLMHeadModel": ("next",),
        "OpenAIGPTDoubleHeadsModel": ("next", "choice"),
        "OpenAIGPTForSequenceClassification": ("classify",),
        "OpenAIGPTModel": (),
    },
    prefix="transformer.",
    rules=(
        Rule("trunk.embeddings.tokens.weight", ("transformer.tokens_embed.weight",)),
        Rule("trunk.embeddings.positions.weight", ("transformer.positions_embed.weight",)),
        *layer("attention.qkv", "attn.c_attn"),
        *layer("attention.out", "attn.c_proj"),
        *layer("attention_after", "ln_1", turned=False),
        *layer("ffn.up", "mlp.c_fc"),
        *layer("ffn.down", "mlp.c_proj"),
        *layer("ffn_after", "ln_2", turned=False),
    ),
    head_rules={
        "next": (),
        "classify": (Rule("heads.classify.linear.weight", ("score.weight",)),),
        "choice": both("heads.choice.linear", "multiple_choice_head.summary"),
    },
    tied={"lm_head.weight": "transformer.tokens_embed.weight"},
    ignored=(".attn.bias", ".position_ids"),
    renamed={"ln_1.g": "ln_1.weight", "ln_1.b": "ln_1.bias", "ln_2.g": "ln_2.weight", "ln_2.b": "ln_2.bias"},
    departures=(
        "A sequence belongs to one document; its code reads 512 tokens on from any place in a book.",
        "A vocabulary trained here is a BPE of bytes, as GPT-2 has it; the published one, of characters, can be read.",
        "The auxiliary loss of fine-tuning is a mean over tokens, not first over each text.",
    ),
    model_type="openai-gpt",
    frame=("<start>", "<delimiter>", "<extract>"),
)
