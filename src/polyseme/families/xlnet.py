"""XLNet (Yang et al. 2019): permutation language model with two-stream attention and relative positions."""

from polyseme.families import bert, hf
from polyseme.families.family import HEAD_POOLING, Family, transformer_sizes
from polyseme.nn.attention.relative import RelativeAttentionConfig, RelativePositionConfig
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
    vocab_size: int = 32000,
    max_len: int = 1 << 20,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    memory_len: int = 0,
    max_distance: int = 0,
    activation: ActivationName = "gelu",
    eps: float = 1e-12,
    init_std: float = 0.02,
) -> TransformerConfig:
    """Post-norm blocks with relative attention over token embeddings (§2.3 to §2.5).

    There are no position embeddings; `max_len` only guards against running out of memory.
    """
    return TransformerConfig(
        EmbeddingsConfig(vocab_size, dim, max_len, dropout=dropout, position_embedding_type="none"),
        TransformerBlockConfig(
            RelativeAttentionConfig(num_heads, dropout=attention_dropout, has_segment_bias=True),
            FeedForwardConfig(ffn_dim or 4 * dim, activation, dropout=dropout),
            post_norm=LayerNormConfig(eps),
            dropout=dropout,
        ),
        layer_to_block=tuple(range(num_layers)),
        pooler=PoolerConfig("last"),
        init=InitConfig(init_std),
        position_bias=RelativePositionConfig(max_distance, dropout, two_stream=True),
        memory_len=memory_len,
    )


def task_head(name: str, labels: tuple[str, ...], config: TransformerConfig) -> HeadConfig:
    """Return a task's head: over the last token, `<cls>`, with a dense layer and tanh; over each token, linear."""
    if HEAD_POOLING[name] == "tokens":
        return ClassificationHeadConfig(labels, "tokens")
    return ClassificationHeadConfig(labels, "pooled", config.block.dropout, dense=True)


HF_ROWS = (
    *hf.required("vocab_size", d_model="dim", n_layer="num_layers", n_head="num_heads"),
    hf.ConfigMap("d_head", path=lambda config: config.trunk.dim // config.trunk.num_heads),
    *hf.required(d_inner="ffn_dim"),
    hf.ConfigMap("ff_activation", "activation", values=bert.ACTIVATIONS),
    hf.ConfigMap("dropout", "dropout"),
    hf.ConfigMap("summary_last_dropout", path="block.dropout"),
    hf.ConfigMap("mem_len", "memory_len", lambda c: c.trunk.memory_len or None, parse=lambda n: n or 0),
    hf.ConfigMap(
        "clamp_len", "max_distance", lambda c: c.trunk.position_bias.max_distance or -1, parse=lambda n: max(n, 0)
    ),
    *hf.optional(layer_norm_eps="eps", initializer_range="init_std"),
    *hf.constants(attn_type="bi"),
    hf.ConfigMap("reuse_len", allowed=(None, 0)),
    *hf.fixed(bi_data=False, same_length=False, tie_word_embeddings=True),
    *hf.fixed(summary_type="last", summary_use_proj=True, summary_activation="tanh"),
)


def _attention(weight_name: str, *published: str, op: hf.Op = "same") -> hf.WeightMap:
    names = tuple(f"transformer.layer.{{}}.rel_attn.{name}" for name in published)
    return hf.WeightMap(f"trunk.blocks.{{}}.attention.{weight_name}", names, op)


XLNET = Family(
    name="xlnet",
    paper="Yang et al. 2019, XLNet: Generalized Autoregressive Pretraining for Language Understanding",
    tokenizer="unigram",
    objective="permutation LM",
    text_start="eos",
    trunk_config=trunk_config,
    sizes=transformer_sizes(tiny=(2, 128, 2), mini=(4, 256, 4), base=(12, 768, 12), large=(24, 1024, 16)),
    num_params={"base": 116_718_336, "large": 360_268_800},
    pretraining_heads=lambda config: {"masked": LMHeadConfig(config.embeddings.vocab_size, bias=True)},
    task_head=task_head,
    hf_config=hf.ConfigTable(
        "xlnet", trunk_config, HF_ROWS, finish=lambda _, args: {"attention_dropout": args.get("dropout", 0.1)} | args
    ),
    architectures=hf.architectures(
        "XLNet", ("classify", "tag", "choice"), LMHeadModel=("masked",), ForQuestionAnsweringSimple=("span",)
    ),
    base_model_prefix="transformer.",
    weight_maps=(
        hf.WeightMap("trunk.embeddings.tokens.weight", ("transformer.word_embedding.weight",)),
        hf.WeightMap("trunk.position_bias.mask_emb", ("transformer.mask_emb",)),
        _attention("qkv.weight", "q", "k", "v", op="merge_heads"),
        _attention("distance.weight", "r", op="merge_heads"),
        _attention("out.weight", "o", op="flatten_heads"),
        _attention("u", "r_w_bias"),
        _attention("v", "r_r_bias"),
        _attention("s", "r_s_bias"),
        _attention("segments", "seg_embed"),
        *hf.layer_maps(
            "transformer.layer.{}",
            {
                "attention_post_norm": "rel_attn.layer_norm",
                "ffn.up": "ff.layer_1",
                "ffn.down": "ff.layer_2",
                "ffn_post_norm": "ff.layer_norm",
            },
        ),
    ),
    head_weight_maps={
        "masked": (hf.WeightMap("heads.masked.bias", ("lm_loss.bias",)),),
        **hf.dense_head_maps("sequence_summary.summary", "logits_proj", "classify", "choice"),
        **hf.linear_head_maps(tag="classifier", span="qa_outputs"),
    },
    tied_weights={"lm_loss.weight": "transformer.word_embedding.weight"},
    cls_position="last",
    departures=(
        "Pre-training uses single segments without memory between them; the paper uses pairs of segments, each with "
        "the memory of the one before.",
        "There is no dropout on the final hidden states, and the whole batch shares one dropout mask on the distances.",
    ),
)
