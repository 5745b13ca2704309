"""SpanBERT (Joshi et al. 2020): BERT's trunk, trained with span masking and the span-boundary objective."""

from dataclasses import replace

from polyseme.families import bert
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.lm import SpanBoundaryHeadConfig
from polyseme.nn.trunks.transformer import TransformerConfig

CASED_VOCAB_SIZE = 28996  # the published models use BERT's cased vocabulary


def pretraining_heads(config: TransformerConfig) -> dict[str, HeadConfig]:
    """Return the heads of masked LM and the span-boundary objective."""
    boundary = SpanBoundaryHeadConfig(config.embeddings.vocab_size, config.block.ffn.activation, config.block.post_norm)
    return {"masked": bert.lm_head(config), "boundary": boundary}


SPANBERT = replace(
    bert.BERT,
    name="spanbert",
    paper="Joshi et al. 2020, SpanBERT: Improving Pre-training by Representing and Predicting Spans",
    objective="masked LM (spans) + span boundary",
    sizes={size: {**bert.BERT.sizes[size], "vocab_size": CASED_VOCAB_SIZE} for size in ("tiny", "base", "large")},
    num_params={"base": 108_310_272, "large": 333_579_264},
    pretraining_heads=pretraining_heads,
    architectures={name: heads for name, heads in bert.BERT.architectures.items() if not {"pair", "next"} & {*heads}},
    head_weight_maps={
        name: rules for name, rules in bert.BERT.head_weight_maps.items() if name not in ("pair", "next")
    },
    departures=(
        "Masked spans cover 15 % of the words on average, not exactly in each sequence, and are never adjacent.",
        "Its model type is `bert`, so that `transformers` can load it; the boundary head is in polyseme.safetensors.",
    ),
)
