"""The same model on both sides: `transformers` with random weights, ours with these weights, one batch for both."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from polyseme.families import FAMILIES
from polyseme.nn.attention.relative import QueryStream
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout
from polyseme.objectives.batch import Batch, Targets
from polyseme.train.loop import TrainState, train
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
from polyseme.weights.convert import from_published

HEADS = {"bert": ("masked", "pair"), "albert": ("masked", "pair"), "gpt": ("next",), "gpt2": ("next",), "t5": ("next",)}
PAD = {"roberta": 1, "gpt": 0, "gpt2": 0}


def peer_model(family: str, num_layers: int, dim: int, num_heads: int, dropout: float = 0.0) -> Any:
    """Build the model of `transformers` with random weights and the heads that its paper pre-trains."""
    import transformers as t

    if family in ("gpt", "gpt2"):
        settings = {"n_layer": num_layers, "n_embd": dim, "n_head": num_heads}
        settings |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
        if family == "gpt":
            return t.OpenAIGPTLMHeadModel(t.OpenAIGPTConfig(**settings))
        return t.GPT2LMHeadModel(t.GPT2Config(**settings))
    if family == "xlnet":
        settings = {"n_layer": num_layers, "d_model": dim, "n_head": num_heads, "d_inner": 4 * dim}
        return t.XLNetLMHeadModel(t.XLNetConfig(**settings, dropout=dropout, mem_len=None))
    if family == "t5":
        settings = {"num_layers": num_layers, "d_model": dim, "num_heads": num_heads, "d_kv": dim // num_heads}
        config = t.T5Config(**settings, d_ff=4 * dim, dropout_rate=dropout, decoder_start_token_id=0)
        return t.T5ForConditionalGeneration(config)
    if family == "distilbert":
        settings = {"n_layers": num_layers, "dim": dim, "n_heads": num_heads, "hidden_dim": 4 * dim}
        config = t.DistilBertConfig(**settings, dropout=dropout, attention_dropout=dropout)
        return t.DistilBertForMaskedLM(config)
    common = {"num_hidden_layers": num_layers, "hidden_size": dim, "num_attention_heads": num_heads}
    if family == "modernbert":
        return t.ModernBertForMaskedLM(t.ModernBertConfig(**common, intermediate_size=64 * round(dim / 24)))
    bert = {**common, "intermediate_size": 4 * dim}
    bert |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    if family == "roberta":
        more = {"vocab_size": 50_265, "type_vocab_size": 1, "max_position_embeddings": 514, "pad_token_id": 1}
        return t.RobertaForMaskedLM(t.RobertaConfig(**bert, **more))
    if family == "albert":
        return t.AlbertForPreTraining(t.AlbertConfig(**bert))
    return t.BertForPreTraining(t.BertConfig(**bert))


def our_model(family: str, peer: Any) -> Model:
    """Build our model from the peer's config and weights."""
    spec = FAMILIES[family]
    tensors = {name: value.detach() for name, value in peer.named_parameters()}
    trunk = spec.from_hf_config({**peer.config.to_dict(), "tensors": list(tensors)})
    heads = spec.pretraining_heads(trunk)
    model = ModelConfig(family, trunk, {name: heads[name] for name in HEADS.get(family, ("masked",))}).build(seed=0)
    missing = model.load_state_dict(in_our_names(model, tensors), strict=False).missing_keys
    assert all("pooler" in name for name in missing), missing  # RoBERTa's pooler is not pre-trained
    return model


def in_our_names(model: Model, theirs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Convert the peer's tensors to our names and layout."""
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    return from_published(FAMILIES[model.config.family], model.config, shapes, theirs, "the peer")


def our_batch(family: str, lengths: Sequence[int], vocab_size: int) -> Batch:
    """Generate random tokens with the targets of the family's pre-training objective."""
    draw = torch.Generator().manual_seed(0)
    layout = PackedLayout.from_lengths(lengths)
    total = layout.num_tokens
    tokens = torch.randint(2, vocab_size, (total,), generator=draw)
    if family == "t5":  # spans of three, 15 % of the text, and a sentinel for each on both sides
        short = PackedLayout.from_lengths([max(n * 20 // 85, 2) for n in lengths])
        values = torch.randint(2, vocab_size, (short.num_tokens,), generator=draw)
        inputs = torch.cat([torch.zeros(1, dtype=torch.long), values[:-1]])
        inputs[short.cu_seqlens[: len(lengths)].long()] = 0
        targets = {"next": Targets(torch.arange(short.num_tokens), values, short.num_tokens)}
        return Batch(Inputs(inputs, short, source=EncoderInput(tokens, layout)), targets, total + short.num_tokens)
    if family in ("gpt", "gpt2"):
        rows = torch.cat([torch.arange(s, s + n - 1) for s, n in zip(layout.cu_seqlens.tolist(), lengths)])
        return Batch(Inputs(tokens, layout), {"next": Targets(rows, tokens[rows + 1], len(rows))}, total)
    if family == "xlnet":
        each = [max(n // 6, 1) for n in lengths]
        ranks = [torch.randperm(n, generator=draw) - (n - e) for n, e in zip(lengths, each)]
        order = torch.cat(ranks).clamp(min=-1)  # the last ones are predicted
        rows = (order >= 0).nonzero()[:, 0]
        targets = {"masked": Targets(total + torch.arange(len(rows)), tokens[rows], len(rows))}
        stream = QueryStream(order, rows, PackedLayout.from_lengths(each))
        return Batch(Inputs(tokens, layout, query_stream=stream), targets, total)
    count = total * 15 // 100
    rows = torch.randperm(total, generator=draw)[:count].sort().values
    targets = {"masked": Targets(rows, torch.randint(0, vocab_size, (count,), generator=draw), count)}
    if family not in ("bert", "albert"):
        return Batch(Inputs(tokens, layout), targets, total)
    pairs = torch.randint(0, 2, (len(lengths),), generator=draw)
    targets["pair"] = Targets(torch.arange(len(lengths)), pairs, len(lengths))
    halves = torch.repeat_interleave(torch.tensor(lengths), torch.tensor(lengths)) // 2
    return Batch(Inputs(tokens, layout, (layout.positions[:total] >= halves).long()), targets, total)


def peer_inputs(family: str, batch: Batch, device: torch.device) -> dict[str, torch.Tensor]:
    """Convert a batch to the peer's inputs: padded to the longest row, with a label at every position."""
    layout = batch.inputs.layout if batch.inputs.source is None else batch.inputs.source.layout
    tokens = batch.inputs.tokens if batch.inputs.source is None else batch.inputs.source.values
    inputs = {"input_ids": layout.pad(tokens, PAD.get(family, 0)), "attention_mask": layout.attention_mask().long()}
    if batch.inputs.source is not None:
        inputs["labels"] = batch.inputs.layout.pad(batch.targets["next"].labels, -100)
    elif batch.inputs.query_stream is not None:
        stream = batch.inputs.query_stream
        ranks = layout.pad(stream.rank, len(stream.rank))
        inputs["perm_mask"] = (ranks[:, None, :] >= ranks[:, :, None].clamp(min=0)).float()  # i must not see j
        places = stream.layout.pad(layout.positions[: layout.num_tokens][stream.target_positions])
        inputs["target_mapping"] = torch.nn.functional.one_hot(places, ranks.shape[1]).float()
        inputs["labels"] = stream.layout.pad(batch.targets["masked"].labels, -100)
    elif "next" in batch.targets:
        inputs["labels"] = layout.pad(tokens, -100)
    else:
        labels = torch.full_like(tokens, -100)
        labels[batch.targets["masked"].rows] = batch.targets["masked"].labels
        inputs["labels"] = layout.pad(labels, -100)
    if batch.inputs.segments is not None:
        inputs["token_type_ids"] = layout.pad(batch.inputs.segments)
        label = "sentence_order_label" if family == "albert" else "next_sentence_label"
        inputs[label] = batch.targets["pair"].labels
    return {name: value.to(device) for name, value in inputs.items()}


def our_step(model: Model, batch: Batch, device: torch.device, **options: Any) -> Callable[[], object]:
    """Return a training step of our loop on one batch; `options` are those of `TrainState`."""
    optim = OptimizerConfig()
    optimizer = optim.build(model, model.trunk.layer_groups())
    state = TrainState(model, optimizer, optim, ScheduleConfig("constant"), 10**6, device, **options)
    reports = train(state, itertools.repeat(([batch], 0)))
    return lambda: next(reports)


def peer_step(
    peer: Any,
    inputs: Iterable[dict[str, Any]],
    forward: Callable[..., Any] | None = None,
    loss: Callable[[Any], torch.Tensor] = lambda output: output.loss,
) -> Callable[[], None]:
    """Return a usual training step of the peer: bf16 autocast on a GPU, clipping, fused AdamW.

    Each step takes the next inputs. `forward` is the compiled model, if it is compiled.
    """
    optimizer = torch.optim.AdamW(peer.parameters(), lr=1e-4, fused=True)
    batches, forward = iter(inputs), forward or peer
    device_type = next(peer.parameters()).device.type

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device_type, torch.bfloat16, enabled=device_type == "cuda"):
            value = loss(forward(**next(batches)))
        value.backward()
        torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
        optimizer.step()

    return step
