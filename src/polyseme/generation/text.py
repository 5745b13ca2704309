"""Texts that a model writes: prompts to ids, a search, ids to texts; and text that comes piece by piece."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyseme.config import Spec
from polyseme.errors import UserError
from polyseme.families import FAMILIES
from polyseme.generation.beam import Found, beam
from polyseme.generation.sample import GREEDY, Sampling, Written, sample, stream
from polyseme.generation.session import Speaker, can_write, needs_source
from polyseme.nn.model import Model
from polyseme.nn.packing import bins
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderSpec
from polyseme.progress import progress
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import ModelFolder

CELLS = {"cuda": 1 << 18, "cpu": 1 << 14}  # rows × columns of the buffers of one batch


@dataclass(frozen=True)
class Generated:
    """A text that a model wrote: its log-probability, and whether the model ended it."""

    text: str
    tokens: tuple[int, ...]
    score: float
    finished: bool


@dataclass(frozen=True)
class Translated:
    """A translation: its log-probability, and whether the model ended all of it."""

    text: str
    score: float
    finished: bool


@dataclass(frozen=True)
class Search(Spec):
    """How texts are looked for: drawn one token after another, or by a beam if it has a width."""

    most: int = 100  # tokens; 0 goes by the length of the source
    sampling: Sampling = GREEDY
    copies: int = 1  # texts drawn for each prompt
    beams: int = 0
    penalty: float = 1.0
    best: int = 1
    patience: float = 0.0  # 0 stops a beam when nothing better can come

    def __post_init__(self) -> None:
        self.within(1, math.inf, "copies", "best")
        self.within(0, math.inf, "most", "beams")
        if self.beams and (self.sampling != GREEDY or self.copies > 1):
            raise UserError("a beam search draws nothing: give a width, or how to sample")


@dataclass(frozen=True, eq=False)
class Writer:
    """A model with its tokenizers and marks; `begun` turns a prompt into ids, with the mark that opens it.

    One that is `sourced` writes a target, behind its `start`, for a source, which ends in `closing`.
    """

    path: Path
    model: Model | Speaker
    tokenizer: Tokenizer
    target: Tokenizer  # of what it writes
    begun: Callable[[str], list[int]]
    eos: frozenset[int]
    banned: frozenset[int]
    start: tuple[int, ...] = ()
    closing: tuple[int, ...] = ()
    sourced: bool = False

    @classmethod
    def of(cls, folder: ModelFolder) -> Writer:
        """Told apart by what it reads: a beginning, or a source."""
        model, tokenizer = folder.model, folder.tokenizer
        if not can_write(model):
            has = ", ".join(model.heads) or "no head"
            raise UserError(f"{folder.path} cannot write: {model.spec.family} with {has} predicts no next token")
        sourced, target = needs_source(model), folder.target or tokenizer
        marks, own = target.specials, tokenizer.specials
        end = marks.sep if marks.eos is None else marks.eos
        eos = frozenset(() if end is None else (end,))
        first = getattr(marks, FAMILIES[model.spec.family].start) if sourced else marks.bos
        start = tuple(mark for mark in (first, end) if mark is not None)[:1]
        closing = tuple(mark for mark in (own.eos, own.sep) if mark is not None)[:1]
        banned = target.special_ids - eos - set(target.sentinels)

        def begun(text: str) -> list[int]:
            return [*start, *tokenizer.encode(text)]

        return cls(folder.path, model, tokenizer, target, begun, eos, frozenset(banned), start, closing, sourced)

    def source(self, text: str) -> list[int]:
        """A source and its end mark."""
        return [*self.tokenizer.encode(text), *self.closing]

    @property
    def longest(self) -> tuple[int, int]:
        """How many tokens a source and a target may have, marks counted."""
        assert isinstance(self.model, Model)
        trunk = self.model.spec.trunk
        decoder = trunk.decoder if isinstance(trunk, EncoderDecoderSpec) else None
        return trunk.embeddings.max_len, (decoder or trunk).embeddings.max_len

    def asked(self, prompts: Sequence[str], prefix: str) -> tuple[list[list[int]], list[list[int]] | None]:
        """What the searches are given: beginnings, and sources where the model reads those."""
        if self.sourced:
            begun = self.target.encode(prefix) if prefix else []
            return [[*self.start, *begun] for _ in prompts], [self.source(prompt) for prompt in prompts]
        beginnings = [self.begun(prompt + prefix) for prompt in prompts]
        if any(not ids for ids in beginnings):
            raise UserError("an empty prompt: this model has no mark that opens texts, so it needs a beginning")
        return beginnings, None

    def found(
        self, beginnings: Sequence[list[int]], sources: Sequence[list[int]] | None, search: Search
    ) -> list[Found]:
        """The texts behind each beginning; those of like length are searched together.

        With `most` 0, a target may have twice the tokens of its source and 20, if there is room for them.
        """
        own = [len(ids) for ids in sources or [[]] * len(beginnings)]
        mosts = [search.most] * len(own)
        if not search.most:
            room = self.longest[1] - max(map(len, beginnings), default=0)
            mosts = [min(2 * size + 20, room) for size in own]
        sizes = [len(ids) + most + size for ids, most, size in zip(beginnings, mosts, own)]
        rows = search.beams or search.copies
        on_gpu = isinstance(self.model, Model) and next(self.model.parameters()).is_cuda
        cells = CELLS["cuda" if on_gpu else "cpu"]
        results: list[Found | None] = [None] * len(beginnings)
        with progress("write", len(beginnings), "texts", show=len(beginnings) > 50) as bar:
            for index in bins([size * rows for size in sizes], cells):
                some = [beginnings[i] for i in index], None if sources is None else [sources[i] for i in index]
                for i, found in zip(index, self._search(*some, search, [mosts[i] for i in index])):
                    results[i] = found
                bar.advance(len(index))
        return [found for found in results if found is not None]

    def _search(
        self, beginnings: list[list[int]], sources: list[list[int]] | None, search: Search, mosts: list[int]
    ) -> list[Found]:
        model, n = self.model, search.copies
        if search.beams:
            numbers = search.beams, search.penalty, search.best
            return beam(model, beginnings, mosts, *numbers, sources, self.eos, self.banned, patience=search.patience)
        repeated = [ids for ids in beginnings for _ in range(n)]
        again = None if sources is None else [ids for ids in sources for _ in range(n)]
        copies = list(range(n)) * len(beginnings)
        mosts = [most for most in mosts for _ in range(n)]
        written = sample(model, repeated, mosts, search.sampling, again, self.eos, self.banned, copies)
        return [Found(written[i * n : (i + 1) * n], []) for i in range(len(beginnings))]

    def text(self, begun: Sequence[int], written: Sequence[int]) -> str:
        """What was written, as it reads behind its beginning."""
        return behind(self.target, [] if self.sourced else begun, written)

    def generated(self, begun: Sequence[int], written: Written) -> Generated:
        return Generated(self.text(begun, written.tokens), written.tokens, written.score, written.finished)


def generate(writer: Writer, prompts: Sequence[str], search: Search, prefix: str = "") -> list[list[Generated]]:
    """What the model writes for each prompt: behind it, or for it as a source. A `prefix` is how each text begins."""
    if not search.most and not writer.sourced:
        raise UserError("most is 0, and without a source nothing says how long a text may get")
    beginnings, sources = writer.asked(prompts, prefix)
    found = writer.found(beginnings, sources, search)
    return [[writer.generated(ids, text) for text in each.texts] for ids, each in zip(beginnings, found)]


def translate(
    writer: Writer, texts: Sequence[str], search: Search, split: Callable[[str], list[str]] | None = None
) -> list[Translated]:
    """A translation of each text. An empty text has an empty one; one that is too long is refused, or split.

    `split` cuts a text into parts, whose translations are joined with spaces.
    """
    if not writer.sourced:
        raise UserError(f"{writer.path} cannot translate: it goes on with a text, and does not write one for it")
    limit = writer.longest[0]
    parts: list[list[str]] = []
    for number, text in enumerate(texts, 1):
        own = [text.strip()] if text.strip() else []
        for tries in range(2):
            sizes = [len(writer.source(part)) for part in own]
            if max(sizes, default=0) <= limit:
                break
            if split is None or tries:
                where, way = (
                    ("", "split it into sentences (--split)") if not tries else (" in a sentence", "shorten it")
                )
                size = f"{max(sizes):,} tokens with its end mark{where}"
                raise UserError(f"text {number} has {size}, and the model reads {limit}: {way}")
            own = [part.strip() for part in split(text) if part.strip()]
        parts.append(own)
    flat = [part for own in parts for part in own]
    beginnings, sources = writer.asked(flat, "")
    found = iter(writer.found(beginnings, sources, search))
    results = []
    for own in parts:
        best = [next(found).texts[0] for _ in own]
        text = " ".join(writer.text([], each.tokens).strip() for each in best)
        results.append(Translated(text, sum(each.score for each in best), all(each.finished for each in best)))
    return results


def streamed(writer: Writer, prompt: str, search: Search, prefix: str = "") -> Iterator[str]:
    """The text behind one prompt, piece by piece; a character that is not whole yet is held back."""
    if search.beams or search.copies > 1:
        raise UserError("a beam, or several copies, cannot be shown while it is written")
    beginnings, sources = writer.asked([prompt], prefix)
    steps = stream(writer.model, beginnings, search.most, search.sampling, sources, writer.eos, writer.banned)
    tokens: list[int] = []
    shown = ""
    for ((_, token, _),) in steps:
        if token in writer.eos:
            break
        tokens.append(token)
        text = writer.text(beginnings[0], tokens)
        if text.startswith(shown) and not text.endswith("\ufffd") and text != shown:
            yield text[len(shown) :]
            shown = text
    text = writer.text(beginnings[0], tokens)
    if text.startswith(shown) and text != shown:
        yield text[len(shown) :]


def behind(tokenizer: Tokenizer, begun: Sequence[int], written: Sequence[int]) -> str:
    """The text of tokens as it stands behind others: with the space before it, if there is one."""
    tail = list(begun)[-8:]
    before, whole = tokenizer.decode(tail), tokenizer.decode([*tail, *written])
    return whole[len(before) :] if whole.startswith(before) else tokenizer.decode(written)
