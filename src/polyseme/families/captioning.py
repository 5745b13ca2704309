"""Text about images: Show, Attend and Tell (Xu et al. 2015), and a Transformer over image regions."""

from typing import Any

from polyseme.families import hf
from polyseme.families.family import TEXT_TOKENIZERS, Family, linear_task_head
from polyseme.nn.attention.multihead import AttentionConfig
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.lm import LMHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.block import FeedForwardConfig, LayerNormConfig, TransformerBlockConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.layers.regions import RegionEmbeddingsConfig
from polyseme.nn.layers.rnn import RNNAttentionConfig
from polyseme.nn.trunks.base import PoolerConfig
from polyseme.nn.trunks.image_text import ImageTextConfig
from polyseme.nn.trunks.recurrent import RecurrentDecoderConfig, RecurrentTrunkConfig
from polyseme.nn.trunks.shallow import StaticEmbeddingTrunkConfig
from polyseme.nn.trunks.transformer import TransformerConfig

Grid = tuple[int, int, int, int, bool]  # rows, columns, patch size, feature size, and whether there are boxes


def _region_embeddings(
    dim: int, conv_dim: int, num_grid_convs: int, grid: Grid, dropout: float, hidden_dim: int = 0
) -> RegionEmbeddingsConfig:
    """Return the embeddings of a grid of regions.

    A convolution of stride 2 for each factor of 2 in the patch size has `conv_dim`, then twice, then four times as many
    channels; a patch size that is no power of 2, or a `conv_dim` of 0, has a linear layer instead.
    """
    num_rows, num_columns, patch_size, feature_dim, has_boxes = grid
    num_convs = patch_size.bit_length() - 1 if conv_dim and patch_size.bit_count() == 1 else 0
    conv_dims = tuple(conv_dim * min(2**i, 4) for i in range(num_convs))
    num_grid_convs = num_grid_convs if conv_dims else 0
    sizes = patch_size, feature_dim, conv_dims, num_grid_convs, hidden_dim
    return RegionEmbeddingsConfig(dim, num_rows, num_columns, *sizes, has_boxes=has_boxes, dropout=dropout)


def show_attend_tell_config(
    dim: int = 512,
    vocab_size: int = 10_000,
    max_len: int = 64,
    dropout: float = 0.3,
    attention_dim: int = 0,
    conv_dim: int = 32,
    num_grid_convs: int = 1,
    num_rows: int = 14,
    num_columns: int = 14,
    patch_size: int = 0,
    feature_dim: int = 512,
    has_boxes: bool = False,
) -> ImageTextConfig:
    """An LSTM whose every step attends to the regions by its previous state, with additive scores (§3.1.2, §4.2).

    Its states start from the mean of the regions. A feed-forward layer relates content and position of each region.
    """
    grid = num_rows, num_columns, patch_size, feature_dim, has_boxes
    regions = _region_embeddings(dim, conv_dim, num_grid_convs, grid, dropout, hidden_dim=2 * dim)
    init = InitConfig(1.0, scale_by_fan_in=True, token_std=4 * dim**-0.5)
    stack = RecurrentTrunkConfig(
        EmbeddingsConfig(vocab_size, dim, max_len, position_embedding_type="none"),
        (dim,),
        forget_bias=1.0,
        input_dropout=dropout,
        context_dim=dim,
        init=init,
    )
    attention = RNNAttentionConfig("additive", attention_dim)
    decoder = RecurrentDecoderConfig(stack, dim, attention, PoolerConfig("mean"), dropout=dropout)
    return ImageTextConfig(StaticEmbeddingTrunkConfig(regions, init=init), decoder, init=init)


def image_transformer_config(
    num_layers: int = 6,
    dim: int = 512,
    num_heads: int = 8,
    ffn_dim: int = 0,
    vocab_size: int = 10_000,
    max_len: int = 64,
    dropout: float = 0.1,
    num_decoder_layers: int = 0,
    conv_dim: int = 32,
    num_grid_convs: int = 1,
    num_rows: int = 14,
    num_columns: int = 14,
    patch_size: int = 16,
    feature_dim: int = 0,
    has_boxes: bool = False,
) -> ImageTextConfig:
    """The encoder-decoder of Vaswani et al. 2017 with norms before sublayers; the source is the regions of an image."""
    grid, norm = (num_rows, num_columns, patch_size, feature_dim, has_boxes), LayerNormConfig(1e-6)
    init = InitConfig(1.0, scale_by_fan_in=True, token_std=dim**-0.5)

    def stack(embeddings: Any, stack_layers: int, is_decoder: bool) -> TransformerConfig:
        block = TransformerBlockConfig(
            AttentionConfig(num_heads, causal=is_decoder),
            FeedForwardConfig(ffn_dim or 4 * dim),
            pre_norm=norm,
            dropout=dropout,
            cross_attention=AttentionConfig(num_heads) if is_decoder else None,
        )
        layers = tuple(range(stack_layers))
        return TransformerConfig(
            embeddings, block, layers, final_norm=norm, pooler=PoolerConfig("last" if is_decoder else "mean"), init=init
        )

    regions = _region_embeddings(dim, conv_dim, num_grid_convs, grid, dropout)
    tokens = EmbeddingsConfig(vocab_size, dim, max_len, dropout=dropout, scale=dim**0.5)
    decoder = stack(tokens, num_decoder_layers or num_layers, True)
    return ImageTextConfig(stack(regions, num_layers, False), decoder, init=init)


def pretraining_heads(config: Any) -> dict[str, HeadConfig]:
    """Return the head that writes captions, tied to the token embeddings."""
    return {"next": LMHeadConfig(config.embeddings.vocab_size, bias=True)}


_REGION_NAMES = ("num_rows", "num_columns", "patch_size", "feature_dim")
_REGION_PATHS: dict[str, hf.ConfigPath] = {name: f"regions.{name}" for name in (*_REGION_NAMES, "has_boxes")}
_REGION_PATHS["num_grid_convs"] = "regions.num_grid_convs"
_REGION_PATHS["conv_dim"] = lambda config: (*config.trunk.regions.conv_dims, 0)[0]
_REGION_ROWS = (
    *hf.required("dim", "vocab_size", "max_len", "conv_dim", "num_grid_convs", *_REGION_NAMES),
    *hf.choices(has_boxes=(False, True)),
    hf.ConfigMap("is_encoder_decoder", path=lambda _: True),
)
_HEADS: dict[str, Any] = {
    "pretraining_heads": pretraining_heads,
    "head_weight_maps": {"next": hf.same_names("heads.next.bias"), **hf.NATIVE_LABEL_HEADS},
    "tokenizer": "words",
    "other_tokenizers": TEXT_TOKENIZERS,
    "objective": "captioning",
}

SHOW_ATTEND_TELL = Family(
    name="show_attend_tell",
    paper="Xu et al. 2015, Show, Attend and Tell: Neural Image Caption Generation with Visual Attention",
    trunk_config=show_attend_tell_config,
    sizes={"tiny": {"dim": 128, "dropout": 0.1, "attention_dim": 32, "conv_dim": 16}, "base": {"dim": 512}},
    hf_config=hf.ConfigTable(
        "show_attend_tell",
        show_attend_tell_config,
        (*_REGION_ROWS, *hf.required("attention_dim"), *hf.optional("dropout")),
        {**_REGION_PATHS, "attention_dim": "decoder.attention.hidden_dim", "dropout": "decoder.dropout"},
    ),
    architectures={"ShowAttendTell": ("next",), "ShowAttendTellForVQA": ("classify",), "ShowAttendTellModel": ()},
    task_head=linear_task_head("decoder.dropout"),
    departures=(
        "Soft attention only; hard attention is not implemented.",
        "State and context are combined by tanh, and the output shares the token embeddings; the paper adds the state, "
        "the context and the last word (§3.1.2), and has a gate on the context (§4.2.1).",
        "Regions know their row and column, and a feed-forward layer relates the two to what is there.",
        "Regions are features of a network that is not trained, as in the paper, or pixels and trained convolutions.",
    ),
    **_HEADS,
)

IMAGE_TRANSFORMER = Family(
    name="image_transformer",
    paper="Vaswani et al. 2017, Attention Is All You Need; Dosovitskiy et al. 2021, An Image is Worth 16x16 Words",
    trunk_config=image_transformer_config,
    sizes={
        "tiny": {"num_layers": 2, "dim": 128, "num_heads": 4, "conv_dim": 16},
        "base": {},
    },
    hf_config=hf.ConfigTable(
        "image_transformer",
        image_transformer_config,
        (
            *_REGION_ROWS,
            *hf.required("num_layers", "num_decoder_layers", "num_heads", "ffn_dim"),
            *hf.optional("dropout"),
        ),
        {**_REGION_PATHS, "num_decoder_layers": "decoder.num_layers"},
    ),
    architectures={"ImageTransformer": ("next",), "ImageTransformerForVQA": ("classify",), "ImageTransformerModel": ()},
    departures=(
        "Convolutions reduce pixels to patches; the Vision Transformer has one linear layer (`conv_dim` 0).",
        "Positions are the sum of a row's and a column's embedding instead of one embedding for each patch.",
    ),
    **_HEADS,
)
