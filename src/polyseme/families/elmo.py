"""ELMo (Peters et al. 2018): contextual word vectors from a bidirectional language model over characters."""

from polyseme.families import hf
from polyseme.families.family import Family, linear_task_head
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.lm import LMHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.block import ActivationName
from polyseme.nn.layers.char_cnn import CharCNNConfig
from polyseme.nn.trunks.base import PoolerConfig
from polyseme.nn.trunks.recurrent import RecurrentTrunkConfig

FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


def trunk_config(
    num_layers: int = 2,
    dim: int = 1024,
    ffn_dim: int = 0,
    vocab_size: int = 793471,
    max_len: int = 1 << 20,
    dropout: float = 0.1,
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
        init=InitConfig(1.0, scale_by_fan_in=True, conv_std=0.05 / 3**0.5),  # as the released code: ± 0.05, uniform
    )


def pretraining_heads(config: RecurrentTrunkConfig) -> dict[str, HeadConfig]:
    """Return one head per direction; they share a softmax, which is sampled if the vocabulary is large."""
    vocab_size = config.embeddings.vocab_size
    head = LMHeadConfig(vocab_size, bias=True, tie_word_embeddings=False, num_sampled=8192 * (vocab_size > 65536))
    return {"next": head.replace(direction="forward"), "previous": head.replace(direction="backward", tied_to="next")}


HF_ROWS = (
    *hf.required("num_layers", "dim", "ffn_dim", "vocab_size", "max_len", "char_dim", "max_chars_per_word"),
    *hf.required("num_highway"),
    hf.ConfigMap("filters", "filters", parse=lambda filters: tuple(map(tuple, filters))),
    *hf.optional("activation", "dropout", "cell_clip", "projection_clip", "use_skip_connections"),
)
PATHS: dict[str, hf.ConfigPath] = {
    **{name: f"embeddings.{name}" for name in ("char_dim", "max_chars_per_word", "num_highway", "activation")},
    "filters": lambda config: [list(f) for f in config.trunk.embeddings.filters],
    "ffn_dim": lambda config: config.trunk.hidden_dims[0],
    "dropout": "dropout",
    "use_skip_connections": lambda config: config.trunk.skip == "residual",
}

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
    task_head=linear_task_head("dropout"),
    hf_config=hf.ConfigTable("elmo", trunk_config, HF_ROWS, PATHS),
    architectures={"ElmoForBidirectionalLM": ("next", "previous"), "Elmo": ()},
    head_weight_maps={
        name: hf.same_names(f"heads.{name}.decoder.weight", f"heads.{name}.bias") for name in ("next", "previous")
    },
    departures=(
        "Cells and projections are not clipped in training from scratch, which the fused kernel does not support.",
        "LSTM states are not carried over from batch to batch; the published program does so, even at inference.",
        "Out-of-vocabulary words are read as the unknown word in training, not as their characters.",
        "Highway gates start at one half, not biased toward carrying the input.",
    ),
)
