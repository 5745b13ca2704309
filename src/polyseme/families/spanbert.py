"""SpanBERT (Joshi et al. 2020): BERT's trunk, trained to predict spans from what stands around them."""

from __future__ import annotations

from dataclasses import replace

from polyseme.families import bert
from polyseme.nn.heads.standard import BoundaryHeadSpec, HeadSpec
from polyseme.nn.trunks.transformer import TransformerSpec

CASED = 28996  # BERT's cased vocabulary, which the published models have


def heads(spec: TransformerSpec) -> dict[str, HeadSpec]:
    masked = bert.heads(spec)["masked"]
    boundary = BoundaryHeadSpec(spec.embeddings.vocab_size, spec.block.ffn.activation, spec.block.after)
    return {"masked": masked, "boundary": boundary}


SPANBERT = replace(
    bert.BERT,
    name="spanbert",
    paper="Joshi et al. 2020, SpanBERT: Improving Pre-training by Representing and Predicting Spans",
    objective="masked LM (spans) + span boundary",
    sizes={size: {**bert.BERT.sizes[size], "vocab_size": CASED} for size in ("tiny", "base", "large")},
    published={"base": 108_310_272, "large": 333_579_264},
    heads=heads,
    architectures={name: found for name, found in bert.BERT.architectures.items() if "pair" not in found},
    head_rules={name: rules for name, rules in bert.BERT.head_rules.items() if name != "pair"},
    departures=(
        "Masked spans are 15 % of the words on average, not of each sequence exactly, and never touch each other.",
        "Its folder says `bert`, which `transformers` opens; the boundary head lies in polyseme.safetensors.",
    ),
)
