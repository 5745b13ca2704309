"""Texts that a model writes: prompts to ids, a search, ids to texts; and text that comes piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from polyseme.decode.beam import Found, beam
from polyseme.decode.sample import GREEDY, Sampling, Written, sample, stream
from polyseme.decode.writing import can_write, needs_source
from polyseme.errors import UserError
from polyseme.families import FAMILIES
from polyseme.parts.layout import bins
from polyseme.parts.spec import Spec
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
class Search(Spec):
    """How texts are looked for: drawn one token after another, or by a beam if it has a width."""

    most: int = 100  # tokens
    sampling: Sampling = GREEDY
    copies: int = 1  # texts drawn for each prompt
    beams: int = 0
    penalty: float = 1.0
    best: int = 1

    def __post_init__(self) -> None:
        for name in ("most", "copies", "best"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}, which is less than 1")
        if self.beams < 0:
            raise UserError(f"beams is {self.beams}, expected 0 for none, or a width")
        if self.beams and (self.sampling != GREEDY or self.copies > 1):
            raise UserError("a beam search draws nothing: give a width, or how to sample")


class Writer:
    """A model with its tokenizer, told apart by what it reads: a beginning, or a source."""

    def __init__(self, folder: ModelFolder):
        self.folder, self.model, self.tokenizer = folder, folder.model, folder.tokenizer
        if not can_write(self.model):
            has = ", ".join(self.model.heads) or "no head"
            raise UserError(f"{folder.path} cannot write: {self.model.spec.family} with {has} predicts no next token")
        self.sourced = needs_source(self.model)
        marks = self.tokenizer.specials
        end = marks.sep if marks.eos is None else marks.eos
        self.eos = frozenset(() if end is None else (end,))
        self.banned = self.tokenizer.special_ids - self.eos - set(self.tokenizer.sentinels)
        first = getattr(marks, FAMILIES[self.model.spec.family].start) if self.sourced else marks.bos
        self.start = [mark for mark in (first, end) if mark is not None][:1]

    def source(self, text: str) -> list[int]:
        """A source and its end mark."""
        return [*self.tokenizer.encode(text), *sorted(self.eos)]

    def asked(self, prompts: Sequence[str], prefix: str) -> tuple[list[list[int]], list[list[int]] | None]:
        """What the searches are given: beginnings, and sources where the model reads those."""
        begun = self.tokenizer.encode(prefix) if prefix else []
        if self.sourced:
            return [[*self.start, *begun] for _ in prompts], [self.source(prompt) for prompt in prompts]
        beginnings = [[*self.start, *self.tokenizer.encode(prompt + prefix)] for prompt in prompts]
        if any(not ids for ids in beginnings):
            raise UserError("an empty prompt: this model has no mark that opens texts, so it needs a beginning")
        return beginnings, None

    def found(
        self, beginnings: Sequence[list[int]], sources: Sequence[list[int]] | None, search: Search
    ) -> list[Found]:
        """The texts behind each beginning; long ones are searched together."""
        sizes = [len(ids) + search.most + (len(sources[i]) if sources else 0) for i, ids in enumerate(beginnings)]
        rows = search.beams or search.copies
        cells = CELLS["cuda" if next(self.model.parameters()).is_cuda else "cpu"]
        results: list[Found | None] = [None] * len(beginnings)
        with progress("write", len(beginnings), "texts", show=len(beginnings) > 50) as bar:
            for index in bins([size * rows for size in sizes], cells):
                some = [beginnings[i] for i in index], None if sources is None else [sources[i] for i in index]
                for i, found in zip(index, self._search(*some, search)):
                    results[i] = found
                bar.advance(len(index))
        return [found for found in results if found is not None]

    def _search(self, beginnings: list[list[int]], sources: list[list[int]] | None, search: Search) -> list[Found]:
        model, most, n = self.model, search.most, search.copies
        if search.beams:
            numbers = search.beams, search.penalty, search.best
            return beam(model, beginnings, most, *numbers, sources, self.eos, self.banned)
        repeated = [ids for ids in beginnings for _ in range(n)]
        again = None if sources is None else [ids for ids in sources for _ in range(n)]
        copies = list(range(n)) * len(beginnings)
        written = sample(model, repeated, most, search.sampling, again, self.eos, self.banned, copies)
        return [Found(written[i * n : (i + 1) * n], []) for i in range(len(beginnings))]

    def text(self, begun: Sequence[int], written: Sequence[int]) -> str:
        """What was written, as it reads behind its beginning."""
        return behind(self.tokenizer, [] if self.sourced else begun, written)

    def generated(self, begun: Sequence[int], written: Written) -> Generated:
        return Generated(self.text(begun, written.tokens), written.tokens, written.score, written.finished)


def generate(writer: Writer, prompts: Sequence[str], search: Search, prefix: str = "") -> list[list[Generated]]:
    """What the model writes for each prompt: behind it, or for it as a source. A `prefix` is how each text begins."""
    beginnings, sources = writer.asked(prompts, prefix)
    found = writer.found(beginnings, sources, search)
    return [[writer.generated(ids, text) for text in each.texts] for ids, each in zip(beginnings, found)]


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
