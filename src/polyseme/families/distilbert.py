"""DistilBERT (Sanh et al. 2019): BERT with half of its layers, without segments and pooler, trained by distillation."""

from polyseme.families import bert, hf
from polyseme.families.family import HEAD_POOLING, Family, transformer_sizes
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.block import ActivationName
from polyseme.nn.trunks.base import PoolerConfig
from polyseme.nn.trunks.transformer import TransformerConfig


def trunk_config(
    num_layers: int = 6,
    dim: int = 768,
    num_heads: int = 12,
    ffn_dim: int = 0,
    vocab_size: int = 30522,
    max_len: int = 512,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    activation: ActivationName = "gelu",
    init_std: float = 0.02,
) -> TransformerConfig:
    """BERT's blocks over token and position embeddings; the sequence is pooled to its first state (§3)."""
    config = bert.trunk_config(
        num_layers, dim, num_heads, ffn_dim, vocab_size, max_len, 0, dropout, attention_dropout, activation
    )
    return config.replace(pooler=PoolerConfig("first"), init=InitConfig(init_std, init_std))


def task_head(name: str, labels: tuple[str, ...], config: TransformerConfig) -> HeadConfig:
    """Return a task's head as in `transformers`: heads over the whole sequence have a dense layer, not a pooler."""
    if HEAD_POOLING[name] == "pooled":
        return ClassificationHeadConfig(labels, "pooled", 0.2, dense=True, activation="relu")
    return ClassificationHeadConfig(labels, HEAD_POOLING[name], 0.1 if name == "span" else config.block.dropout)


HF_ROWS = (
    *hf.required("vocab_size", "dim", n_layers="num_layers", n_heads="num_heads", hidden_dim="ffn_dim"),
    hf.ConfigMap("activation", "activation", values=bert.ACTIVATIONS),
    *hf.optional("dropout", "attention_dropout"),
    *hf.required(max_position_embeddings="max_len"),
    *hf.optional(initializer_range="init_std"),
    hf.ConfigMap("sinusoidal_pos_embds", path=lambda _: False),  # true only initializes the table, which is stored
    *hf.fixed(tie_word_embeddings=True),
)


DISTILBERT = Family(
    name="distilbert",
    paper="Sanh et al. 2019, DistilBERT, a distilled version of BERT",
    tokenizer="wordpiece",
    objective="distillation: soft targets, masked LM, cosine of states",
    trunk_config=trunk_config,
    sizes=transformer_sizes(tiny=(2, 128, 2), base=(6, 768, 12)),
    num_params={"base": 66_362_880},
    pretraining_heads=lambda config: {"masked": bert.pretraining_heads(config)["masked"]},
    task_head=task_head,
    hf_config=hf.ConfigTable("distilbert", trunk_config, HF_ROWS),
    architectures=hf.architectures("DistilBert", hf.TASKS, ForMaskedLM=("masked",)),
    base_model_prefix="distilbert.",
    weight_maps=(
        *bert.embedding_maps("distilbert.embeddings", has_segments=False),
        *hf.layer_maps(
            "distilbert.transformer.layer.{}",
            {
                "attention.qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
                "attention.out": "attention.out_lin",
                "attention_post_norm": "sa_layer_norm",
                "ffn.up": "ffn.lin1",
                "ffn.down": "ffn.lin2",
                "ffn_post_norm": "output_layer_norm",
            },
        ),
    ),
    head_weight_maps={
        "masked": bert.lm_head_maps("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
        **hf.dense_head_maps("pre_classifier", "classifier", "classify", "choice"),
        **hf.linear_head_maps(tag="classifier", span="qa_outputs"),
    },
    tied_weights={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    ignored_weights=("embeddings.position_ids",),
    departures=(
        "Each token is masked independently, 15 % on average, instead of exactly 15 % of each batch.",
        "The teacher's first segment embedding is added to the initial position embeddings of the student.",
    ),
)
