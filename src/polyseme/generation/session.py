"""Sequences under way: what comes next in each, and going on with some of them. One interface for every kind of model.

A search sees `scores` and calls `go`; what is remembered of each sequence, and how, is known here alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol
from weakref import ref

import torch
from torch import Tensor

from polyseme.errors import UserError
from polyseme.generation.cuda_graph import Stage, records, stage_for
from polyseme.nn.attention.relative import Queries
from polyseme.nn.memory import Memory
from polyseme.nn.model import Model
from polyseme.nn.packing import Layout, Source
from polyseme.nn.static_memory import StaticMemory
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderSpec

Ids = Sequence[int]


class Writing(Protocol):
    """Sequences under way, in rows. Anything that has these two can be searched: a model of counts too."""

    scores: Tensor  # [rows, vocabulary], of the next token, float32 or wider; need not add up to anything

    def go(self, tokens: Tensor, chosen: Sequence[int] | None = None) -> None:
        """Read one token more in each of the chosen rows, which may repeat and fall away; None is all as they are.

        Rows that look at one source stay neighbours, as many for each source.
        """

    def spares(self, rows: int, alive: int) -> bool:
        """Whether it is worth while to let finished rows fall away."""


class Speaker(Protocol):
    """A model that is no network, as n-grams are: it begins by itself, and has no sources and no limit of places."""

    def begin(self, prompts: Sequence[Ids]) -> Writing: ...


def begin(
    model: Model | Speaker,
    prompts: Sequence[Ids],
    sources: Sequence[Ids] | None,
    rows: int,
    longest: int,
    cached: bool = True,
) -> Writing:
    """The prompts read, with room for so many rows of so many tokens.

    `sources` are for a model that writes a target for a source; its prompts open with its start mark. With `cached`
    off every step reads everything anew: the definition that the others are held to.
    """
    if not isinstance(model, Model):
        if sources is not None:
            raise UserError("the model goes on with a beginning, and has no source")
        return model.begin(prompts)
    trunk = model.spec.trunk
    check(model, prompts, sources, longest)
    if not cached:
        return _Afresh(model, prompts, sources)
    if trunk.stream:
        return _Streamed(model, prompts)
    if getattr(trunk, "static", False):
        return _Static(model, prompts, sources, rows, longest)
    return _Remembered(model, prompts, sources)


def can_write(model: Model) -> str:
    """The head with which a model writes; empty if it cannot."""
    trunk = model.spec.trunk
    if trunk.stream:
        return "masked" if "masked" in model.heads else ""
    writes = trunk.causal or isinstance(trunk, EncoderDecoderSpec)
    return "next" if writes and "next" in model.heads else ""


def needs_source(model: Model) -> bool:
    return isinstance(model.spec.trunk, EncoderDecoderSpec)


def places(model: Model) -> int:
    """For how many tokens of what it writes the model has places."""
    trunk = model.spec.trunk
    own = trunk.decoder if isinstance(trunk, EncoderDecoderSpec) else trunk
    return own.embeddings.max_len if own else 0


def endless(model: Model) -> bool:
    """Whether places are relative, or there are none, so that texts may get longer than what is read at once."""
    trunk = model.spec.trunk
    return not isinstance(trunk, EncoderDecoderSpec) and (trunk.remembers or not trunk.one_shape)


def check(model: Model, prompts: Sequence[Ids], sources: Sequence[Ids] | None, longest: int) -> None:
    """Refuse what the model cannot do, before anything is read."""
    trunk = model.spec.trunk
    if not can_write(model):
        raise UserError(f"a model of the family {model.spec.family} with {', '.join(model.heads) or 'no head'} "
                        "cannot write")  # fmt: skip
    if needs_source(model) != (sources is not None) or (sources is not None and len(sources) != len(prompts)):
        wants = "writes a target for a source: each prompt needs one" if needs_source(model) else "has no source"
        raise UserError(f"{model.spec.family} {wants}")
    if any(not len(ids) for ids in (*prompts, *(sources or ()))):
        raise UserError("a prompt has no token, and there is nothing to go on with")
    if (long := max(map(len, sources or ()), default=0)) > trunk.embeddings.max_len:
        raise UserError(f"a source of {long} tokens is longer than the model reads ({trunk.embeddings.max_len})")
    most = places(model)
    if longest > most and not endless(model):
        prompt = max(map(len, prompts))
        raise UserError(f"a beginning of {prompt} tokens and {longest - prompt} more are {longest}, "
                        f"and the model has places for {most}")  # fmt: skip


def _packed(sequences: Sequence[Ids], model: Model) -> tuple[Tensor, Layout]:
    device = next(model.parameters()).device
    tokens = torch.tensor([token for ids in sequences for token in ids], device=device)
    return tokens, Layout.of([len(ids) for ids in sequences], device=device)


def _sources(sources: Sequence[Ids] | None, model: Model) -> Source | None:
    return None if sources is None else Source(*_packed(sources, model))


class _Rows:
    """What the kinds have in common."""

    scores: Tensor

    def __init__(self, model: Model):
        self.model, self.head = model, can_write(model)

    def spares(self, rows: int, alive: int) -> bool:
        return alive < rows

    def _ones(self, rows: int) -> Layout:
        return Layout.of([1] * rows, device=next(self.model.parameters()).device)

    def _predict(self, last: Tensor, layout: Layout, rows: Tensor | None) -> Tensor:
        scores = self.model.predict(self.head, last, layout, rows)
        return scores.to(torch.promote_types(scores.dtype, torch.float32))


class _Static(_Rows):
    """Keys and values in buffers that are made once; on a GPU the kernels of a step are recorded and replayed."""

    def __init__(self, model: Model, prompts: Sequence[Ids], sources: Sequence[Ids] | None, rows: int, longest: int):
        super().__init__(model)
        tokens, layout = _packed(prompts, model)
        trunk: Any = model.trunk
        reading = trunk(tokens, layout, source=_sources(sources, model), remember=True)
        memory, crossed = reading.memory, trunk.source_keys(reading.memory)
        wide = max(map(len, sources or ()), default=0)
        self.stage: Stage | None = None
        if records(tokens.device):
            self.stage = stage_for(model, memory, crossed, rows, longest, wide, places(model))
            self.stage.holder = ref(self)
            self.memory = self.stage.memory
        else:
            self.memory = StaticMemory.made(memory, crossed, rows, longest, wide)
        self.memory.fill(memory, crossed)
        self.scores = self._predict(reading.last, layout, layout.last)
        self.rows, self.sources = len(prompts), len(sources or ())
        self.layout = self._ones(self.rows)

    def go(self, tokens: Tensor, chosen: Sequence[int] | None = None) -> None:
        if chosen is not None:
            self._take(chosen)
        if self.stage is None:
            self.scores = self._step(tokens)
            return
        if self.memory.longest >= self.memory.columns:
            raise ValueError(f"there is room for {self.memory.columns} tokens, and all are there")
        self.scores = self.stage.step((self.rows, self.sources), self._step, tokens)
        self.memory.longest += 1

    def _step(self, tokens: Tensor) -> Tensor:
        reading = self.model.trunk(tokens, self.layout, memory=self.memory, remember=True)
        return self._predict(reading.last, self.layout, None)

    def spares(self, rows: int, alive: int) -> bool:
        """On a GPU rows fall away by halves: another number of rows is another recording."""
        return alive < rows if self.stage is None else 2 * alive <= rows

    def _ones(self, rows: int) -> Layout:
        return super()._ones(rows) if self.stage is None else self.stage.layout(rows)

    def _take(self, chosen: Sequence[int]) -> None:
        self.memory.take(chosen)
        if self.sources:
            each = self.rows // self.sources
            kept = list(dict.fromkeys(row // each for row in chosen))
            if kept != list(range(self.sources)):
                self.memory.take_sources(kept)
                self.sources = len(kept)
        if len(chosen) != self.rows:
            self.rows, self.layout = len(chosen), self._ones(len(chosen))


class _Remembered(_Rows):
    """Whatever the trunk's memory is: states of segments, or of a recurrence."""

    def __init__(self, model: Model, prompts: Sequence[Ids], sources: Sequence[Ids] | None):
        super().__init__(model)
        self._read(*_packed(prompts, model), None, _sources(sources, model))

    def _read(self, tokens: Tensor, layout: Layout, memory: Memory | None, source: Source | None = None) -> None:
        more = {"source": source} if source is not None else {}
        reading = self.model.trunk(tokens, layout, memory=memory, remember=True, **more)
        self.memory = reading.memory
        trunk = self.model.spec.trunk
        if endless(self.model) and not trunk.remembers:
            self.memory = self.memory.last(trunk.embeddings.max_len - 1)
        self.scores = self._predict(reading.last, layout, layout.last)

    def go(self, tokens: Tensor, chosen: Sequence[int] | None = None) -> None:
        memory = self.memory if chosen is None else self.memory.take(chosen)
        self._read(tokens, self._ones(len(tokens)), memory)


class _Streamed(_Rows):
    """A query stream asks for the token behind the last one, each token having seen those before it.

    So the order of factorisation is that of the text, and what was read stays as it is.
    """

    def __init__(self, model: Model, prompts: Sequence[Ids]):
        super().__init__(model)
        self._read(prompts, None)

    def _read(self, chunks: Sequence[Ids], memory: Memory | None) -> None:
        tokens, layout = _packed([[*chunk, 0] for chunk in chunks], self.model)  # 0 stands where it asks, unseen
        asks = Layout.of([1] * len(chunks), device=tokens.device)
        queries = Queries(layout.positions, layout.last, asks)
        reading = self.model.trunk(tokens, layout, memory=memory, remember=True, queries=queries)
        self.memory = reading.memory.without_last()
        rows = layout.total + torch.arange(len(chunks), device=tokens.device)
        self.scores = self._predict(reading.last, layout, rows)

    def go(self, tokens: Tensor, chosen: Sequence[int] | None = None) -> None:
        memory = self.memory if chosen is None else self.memory.take(chosen)
        self._read([[token] for token in tokens.tolist()], memory)


class _Afresh(_Rows):
    """Nothing is remembered: every step reads everything anew."""

    def __init__(self, model: Model, prompts: Sequence[Ids], sources: Sequence[Ids] | None):
        super().__init__(model)
        self.texts, self.sources = [list(ids) for ids in prompts], None if sources is None else list(sources)
        self._read()

    def _read(self) -> None:
        if self.head == "masked":
            self.scores = _Streamed(self.model, self.texts).scores
            return
        tokens, layout = _packed(self.texts, self.model)
        source = _sources(self.sources, self.model)
        last = self.model.trunk(tokens, layout, **({"source": source} if source is not None else {})).last
        self.scores = self._predict(last, layout, layout.last)

    def go(self, tokens: Tensor, chosen: Sequence[int] | None = None) -> None:
        chosen = range(len(self.texts)) if chosen is None else chosen
        self.texts = [[*self.texts[row], token] for row, token in zip(chosen, tokens.tolist())]
        self.sources = None if self.sources is None else [self.sources[row] for row in chosen]
        self._read()
