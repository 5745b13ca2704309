"""GPT-2 (Radford et al. 2019): causal pre-norm Transformer."""

from polyseme.families import gpt, hf
from polyseme.families.family import Family, causal_lm_head, transformer_sizes
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.block import ActivationName
from polyseme.nn.model import ModelConfig
from polyseme.nn.trunks.transformer import TransformerConfig


def trunk_config(
    num_layers: int = 12,
    dim: int = 768,
    num_heads: int = 12,
    ffn_dim: int = 0,
    vocab_size: int = 50257,
    max_len: int = 1024,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    embedding_dropout: float | None = None,
    activation: ActivationName = "gelu_tanh",
    eps: float = 1e-5,
    init_std: float = 0.02,
    window: int = 0,
) -> TransformerConfig:
    """Causal pre-norm blocks with a norm after the last one (§2.3).

    With a `window`, every second block attends at most that far back, as in GPT-3 (Brown et al. 2020, §2.1).
    """
    sizes, dropouts = (num_layers, dim, num_heads, ffn_dim, vocab_size, max_len), (dropout, attention_dropout)
    config = gpt.trunk_config(*sizes, *dropouts, embedding_dropout, activation, eps)
    norm = config.block.post_norm
    block = config.block.replace(pre_norm=norm, post_norm=config.block.pre_norm)
    return config.replace(
        block=block,
        block_variants=(block.replace(attention=block.attention.replace(window=window)),) if window else (),
        variant_per_block=tuple(i % 2 for i in range(num_layers)) if window else (),
        final_norm=norm,
        init=InitConfig(init_std, position_std=init_std / 2, scale_residuals=True),
    )


def _window(config: ModelConfig) -> int:
    variants = config.transformer.block_variants
    return variants[0].attention.window if variants else 0


ACTIVATIONS: dict[ActivationName, str] = {"gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu"}
HF_ROWS = (
    *gpt.HF_ROWS,
    hf.ConfigMap("n_inner", "ffn_dim", parse=lambda value: value or 0),
    hf.ConfigMap("n_ctx", path="embeddings.max_len"),
    hf.ConfigMap("activation_function", "activation", values=ACTIVATIONS),
    *hf.optional(layer_norm_epsilon="eps"),
    # GPT-3's banded attention has no published format; the model type keeps other tools from loading it as dense
    hf.ConfigMap("model_type", path=lambda config: "gpt3" if _window(config) else "gpt2"),
    hf.ConfigMap("architectures", path=lambda config: [] if _window(config) else None, omit=None),
    hf.ConfigMap("window", "window", omit=0),
    *hf.fixed(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False),
)
# Brown et al. 2020, table 2.1
GPT3_SIZES = {
    **transformer_sizes(**{"125m": (12, 768, 12), "350m": (24, 1024, 16), "760m": (24, 1536, 16)}),
    **transformer_sizes(**{"1.3b": (24, 2048, 16), "2.7b": (32, 2560, 32), "6.7b": (32, 4096, 32)}),
    **transformer_sizes(**{"13b": (40, 5120, 40), "175b": (96, 12288, 96)}),
}
GPT3_PARAMS = dict(zip(GPT3_SIZES, ("125M", "350M", "760M", "1.3B", "2.7B", "6.7B", "13.0B", "175.0B")))

GPT2 = Family(
    name="gpt2",
    paper="Radford et al. 2019, Language Models are Unsupervised Multitask Learners",
    tokenizer="bpe",
    objective="causal LM",
    trunk_config=trunk_config,
    sizes={
        **transformer_sizes(tiny=(2, 128, 2), mini=(4, 256, 4), small=(12, 768, 12), medium=(24, 1024, 16)),
        **transformer_sizes(large=(36, 1280, 20), xl=(48, 1600, 25)),
        **{f"gpt3-{name}": {**size, "max_len": 2048, "window": 256} for name, size in GPT3_SIZES.items()},
    },
    num_params={"small": 124_439_808, "medium": 354_823_168, "large": 774_030_080, "xl": 1_557_611_200},
    paper_params={f"gpt3-{name}": rounded for name, rounded in GPT3_PARAMS.items()},
    pretraining_heads=causal_lm_head,
    task_head=gpt.task_head,
    hf_config=hf.ConfigTable("gpt2", trunk_config, HF_ROWS, {"eps": "block.pre_norm.eps", "window": _window}),
    architectures=hf.architectures(
        "GPT2", ("classify", "tag", "span"), LMHeadModel=("next",), DoubleHeadsModel=("next", "choice")
    ),
    base_model_prefix="transformer.",
    weight_maps=(
        hf.WeightMap("trunk.embeddings.tokens.weight", ("transformer.wte.weight",)),
        hf.WeightMap("trunk.embeddings.positions.weight", ("transformer.wpe.weight",)),
        *gpt.LINEAR_MAPS,
        *hf.layer_maps("transformer.h.{}", {"attention_pre_norm": "ln_1", "ffn_pre_norm": "ln_2"}),
        *hf.weight_and_bias("trunk.final_norm", "transformer.ln_f"),
    ),
    head_weight_maps=gpt.HEAD_WEIGHT_MAPS | hf.linear_head_maps(tag="classifier", span="qa_outputs"),
    tied_weights={"lm_head.weight": "transformer.wte.weight"},
    ignored_weights=(".attn.bias", ".attn.masked_bias"),
    departures=(
        "Documents are not concatenated: a sequence stays inside one document and attends to nothing else.",
        "GPT-3: the width of its attention bands is not published; every second layer attends 256 tokens back.",
        "GPT-3: the learning rate decays until the end of the run, not over 260 of the 300 billion tokens.",
        "GPT-3: table 2.1 lists 24 heads of 128 at width 2,048 for 1.3B (here 16), width 5,140 for 13B (here 5,120).",
    ),
)
