"""Every family as a tiny model, so that a law is written once and a new family gets it for free."""

from inspect import signature
from typing import Any

import numpy as np
import pytest
import torch

from polyseme.families import FAMILIES, Family
from polyseme.nn.attention.relative import QueryStream
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.lm import SpanBoundaryHeadConfig
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig
from polyseme.objectives.batch import Batch, Targets
from polyseme.train.loop import TrainState, setup_device, train
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig

VOCAB = 61
LENGTHS = (5, 9, 9, 1, 12, 5)
WORDS = [f"word{i}" for i in range(VOCAB)]
# what a family can be beside its usual self: the name of a case, the family, arguments of its trunk
# and what a small model would not have of itself: blocks that see their neighbours alone, the mean as the pooled
# vector, distances that count as the furthest
EXTRA = {
    "modernbert": {"global_every": 2, "window": 2, "pooling": "mean"},
    "gpt-bert": {"global_every": 2, "window": 2},
    "music": {"max_distance": 5},
    "fasttext": {"num_buckets": 97},
    "elmo": {"char_dim": 4},
    "flair": {"char_dim": 8},
    "ulmfit": {"hidden_dim": 40},
}
VARIANTS = {"elmo clipped": ("elmo", EXTRA["elmo"] | {"cell_clip": 0.3, "projection_clip": 0.2})}
VARIANTS |= {f"albert sharing {what}": ("albert", {"sharing": what}) for what in ("attention", "ffn", "none")}
VARIANTS |= {"bert causal": ("bert", {"causal": True})}
VARIANTS |= {"nnlm direct": ("nnlm", {"direct_connections": True})} | {
    " ".join(map(str, ["rnn_lm", *given.values()])): ("rnn_lm", given)
    for given in (
        {"cell": "rnn", "direction": "backward", "skip": "dense"},
        {"cell": "gru", "gru_reset": "before", "skip": "residual", "variational_dropout": True},
        {"cell": "gru", "direction": "both", "skip": "highway"},
        {"cell": "lstm", "has_projection": True, "hidden_dim": 40},
        {"cell": "lstm", "hidden_dim": 40, "variational_dropout": True},
    )
}
VARIANTS |= {f"flair {way}": ("flair", {"char_dim": 8, "direction": way}) for way in ("forward", "backward")}
VARIANTS |= {"ulmfit backward": ("ulmfit", EXTRA["ulmfit"] | {"direction": "backward"})}
VARIANTS |= {
    " ".join(["seq2seq", *given.values()]): ("seq2seq", given)
    for given in (
        {"attention": "none", "cell": "gru"},
        {"attention": "additive", "context_order": "inside_recurrence", "cell": "gru", "gru_reset": "before"},
        {"attention": "dot", "context_order": "inside_recurrence", "cell": "rnn"},
        {"attention": "cosine", "context_order": "inside_recurrence"},
        {"attention": "additive", "context_order": "after_recurrence"},
    )
}
RENAMED = {"xlm_roberta", "camembert"}  # RoBERTa's trunk under another name
CASES = {name: (name, EXTRA.get(name, {})) for name in FAMILIES if name not in RENAMED} | VARIANTS
NAMES = list(CASES)
GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
DTYPES = [(torch.float64, 1e-10), (torch.float32, 1e-5)]
PLACES = [*(("cpu", *each) for each in DTYPES), pytest.param("cuda", torch.float32, 1e-4, marks=GPU)]


def supported_args(family: Family, **given: object) -> dict[str, Any]:
    """Of these arguments of a trunk, those that the family's takes."""
    return {key: value for key, value in given.items() if key in signature(family.trunk_config).parameters}


def family_of(name: str) -> Family:
    return FAMILIES[CASES[name][0]]


def tiny_spec(name: str, dropout: float = 0.0) -> ModelConfig:
    family = family_of(name)
    usual = {"num_layers": 3, "dim": 24, "num_heads": 3, "ffn_dim": 40, "vocab_size": VOCAB,
             "max_len": 32, "dropout": dropout, "attention_dropout": dropout, "weight_dropout": dropout}  # fmt: skip
    return family.model_config(**supported_args(family, **usual) | CASES[name][1])


CAUSAL = [name for name in NAMES if tiny_spec(name).trunk.causal]


def tiny_model(family: str, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Model:
    """Weights far from their start, so that every bias and norm shows."""
    if device == "cuda":
        setup_device()  # float32 is float32 there too
    model = tiny_spec(family).build(seed=1).to(dtype).eval()
    model.set_vocabulary(WORDS)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator, dtype=torch.float64).to(dtype) * 0.2)
    return model.to(device)


def sequences(lengths: tuple[int, ...], seed: int = 0, device: str = "cpu") -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, VOCAB, (n,), generator=generator).to(device) for n in lengths]


def segments_of(layout: PackedLayout, family: str) -> torch.Tensor | None:
    number = family_of(family).model_config().trunk.num_segments
    return (layout.positions >= 3).long().clamp(max=number - 1) if number else None


def training_batch(model: Model, rows: list[torch.Tensor], seed: int = 3) -> Batch:
    """A batch with targets for each of the model's heads; the draw belongs to the sequence, not to the batch."""
    layout = PackedLayout.from_lengths([len(r) for r in rows])
    begins = np.cumsum([0, *layout.lengths])
    targets, queries = {}, None
    for name, head in model.config.heads.items():
        if isinstance(head, SpanBoundaryHeadConfig):  # the first token and the last are the two sides
            sides = zip(begins, layout.lengths)
            where = np.concatenate([[[b, b + n - 1, i % head.max_span_offset] for i in range(n)] for b, n in sides])
            what = np.concatenate([(r.numpy() * 5 + seed) % VOCAB for r in rows])
        elif not isinstance(head, ClassificationHeadConfig):
            where = np.concatenate([b + np.arange(0, n, 2) for b, n in zip(begins, layout.lengths)])
            if model.config.trunk.has_query_stream:
                order = torch.cat([torch.where(torch.arange(len(r)) % 2 == 0, r + 1, 0) for r in rows])
                queries = QueryStream(
                    order, torch.from_numpy(where), PackedLayout.from_lengths([-(-n // 2) for n in layout.lengths])
                )
                where = layout.num_tokens + np.arange(len(where))
            what = np.concatenate([(r.numpy()[::2] * 7 + seed) % VOCAB for r in rows])
        else:
            where = np.arange(len(rows))
            what = np.array([int(r.sum()) % len(head.labels) for r in rows])
        targets[name] = Targets(torch.from_numpy(where), torch.from_numpy(what), len(where))
    segments = segments_of(layout, model.config.family)
    source = None
    if isinstance(
        model.config.trunk, EncoderDecoderConfig
    ):  # the source of a sequence is the same, longer and backwards
        source = EncoderInput(
            torch.cat([row.flip(0).repeat(2) for row in rows]), PackedLayout.from_lengths([2 * len(r) for r in rows])
        )
    return Batch(
        Inputs(torch.cat(rows), layout, segments, query_stream=queries, source=source), targets, layout.num_tokens
    )


def gradients(model: Model, batches: list) -> dict[str, torch.Tensor]:
    """The gradients after one step of the real loop, clipping off; a pooler that no head reads has none."""
    optim = OptimizerConfig(lr=0.0, max_grad_norm=0.0)
    device = next(model.parameters()).device
    run = TrainState(model, optim.build(model, model.trunk.layer_groups()), optim, ScheduleConfig(), 1, device)
    list(train(run, [(batches, None)]))
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
