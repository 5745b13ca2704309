"""Transformer (Vaswani et al. 2017): the original encoder-decoder for translation."""

from polyseme.families import hf
from polyseme.families.family import TEXT_TOKENIZERS, Family, transformer_sizes
from polyseme.nn.attention.multihead import AttentionConfig
from polyseme.nn.heads.lm import LMHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.block import ActivationName, FeedForwardConfig, LayerNormConfig, TransformerBlockConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.trunks.base import PoolerConfig
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig
from polyseme.nn.trunks.transformer import TransformerConfig


def trunk_config(
    num_layers: int = 6,
    dim: int = 512,
    num_heads: int = 8,
    ffn_dim: int = 0,
    vocab_size: int = 37000,
    max_len: int = 512,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    num_decoder_layers: int = 0,
    target_vocab_size: int = 0,
    activation: ActivationName = "relu",
    eps: float = 1e-6,
) -> EncoderDecoderConfig:
    """Post-norm stacks over token embeddings times √dim plus sinusoids; one table for both sides and the output (§3.4).

    With a `target_vocab_size`, the target side has its own vocabulary and table, which the output shares. Attention
    projections have no biases, feed-forward layers have (§3.2, §3.3).
    """
    norm = LayerNormConfig(eps)
    init = InitConfig(1.0, scale_by_fan_in=True, token_std=dim**-0.5)

    def stack(stack_layers: int, is_decoder: bool) -> TransformerConfig:
        return TransformerConfig(
            EmbeddingsConfig(
                (is_decoder and target_vocab_size) or vocab_size,
                dim,
                max_len,
                dropout=dropout,
                position_embedding_type="sinusoidal",
                scale=dim**0.5,
                tied_to_encoder=is_decoder and not target_vocab_size,
            ),
            TransformerBlockConfig(
                AttentionConfig(num_heads, attention_dropout, bias=False, causal=is_decoder),
                FeedForwardConfig(ffn_dim or 4 * dim, activation),
                post_norm=norm,
                dropout=dropout,
                cross_attention=AttentionConfig(num_heads, attention_dropout, bias=False) if is_decoder else None,
            ),
            layer_to_block=tuple(range(stack_layers)),
            pooler=PoolerConfig("last"),
            init=init,
        )

    return EncoderDecoderConfig(stack(num_layers, False), stack(num_decoder_layers or num_layers, True), init=init)


HF_ROWS = (
    *hf.required("num_layers", "num_decoder_layers", "dim", "num_heads", "ffn_dim", "vocab_size", "max_len"),
    *hf.optional("dropout", "attention_dropout", "activation", "eps"),
    hf.ConfigMap("target_vocab_size", "target_vocab_size", hf.target_vocab_size, omit=0),
    hf.ConfigMap("is_encoder_decoder", path=lambda _: True),
    *hf.fixed(tie_word_embeddings=True),
)

TRANSFORMER = Family(
    name="transformer",
    paper="Vaswani et al. 2017, Attention Is All You Need",
    tokenizer="bpe",
    other_tokenizers=TEXT_TOKENIZERS,
    objective="translation",
    trunk_config=trunk_config,
    sizes=transformer_sizes(tiny=(2, 128, 2), base=(6, 512, 8), big=(6, 1024, 16)),
    paper_params={"base": "65M", "big": "213M"},  # table 3
    pretraining_heads=lambda config: {"next": LMHeadConfig(config.decoder.embeddings.vocab_size)},
    hf_config=hf.ConfigTable("transformer", trunk_config, HF_ROWS, {"num_decoder_layers": "decoder.num_layers"}),
    architectures={"Translation": ("next",), "EncoderDecoder": ()},
    head_weight_maps={"next": ()},
    departures=(
        "Weights are initialized with a standard deviation of 1 / √fan-in; the paper does not specify it.",
        "The vocabulary is a byte-level BPE of both languages.",
        "A translation has up to twice the length of its source and 20 tokens; in the paper up to 50 tokens more.",
    ),
)
