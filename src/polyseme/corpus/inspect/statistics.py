"""What is in a corpus: sizes, sources, lengths, frequent tokens, entropy, what was removed, and some of its text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from polyseme.corpus.store import Corpus
from polyseme.errors import UserError
from polyseme.progress import progress
from polyseme.text.tokenizer import Tokenizer

SLICE = 1 << 18  # tokens counted together
SHOWN = 300  # tokens of a document in a sample
_COUNTS = ("documents", "sentences", "tokens", "characters")


@dataclass(frozen=True)
class Source:
    """Where a part of the corpus comes from, or all that is in one language."""

    name: str
    lang: str
    weight: float | None  # None where its parts have different ones
    counts: dict[str, int]
    share: float  # of the tokens
    read: float  # of the tokens that training sees, which are weighted


@dataclass(frozen=True)
class Lengths:
    """Lengths in tokens: `counts[i]` lie from `borders[i]` up to, not including, `borders[i + 1]`."""

    borders: tuple[int, ...]
    counts: tuple[int, ...]
    mean: float
    shortest: int
    quarters: tuple[int, int, int]
    longest: int


@dataclass(frozen=True)
class Piece:
    """A vocabulary entry where it starts a word, or where it goes on with one."""

    id: int
    text: str
    count: int


@dataclass(frozen=True)
class Unigram:
    """The distribution of single tokens: what a model without context can know."""

    vocab_size: int
    seen: int  # entries that occur
    entropy: float  # bits a token
    unknown: int  # tokens that stand for what the tokenizer cannot write
    words: int
    starting: tuple[Piece, ...]  # the most frequent at the start of a word
    inside: tuple[Piece, ...]  # and of those that go on with one
    growth: tuple[tuple[int, int], ...]  # after so many tokens, so many different ones were seen


@dataclass(frozen=True)
class Sample:
    document: int  # from 1
    source: str
    tokens: int
    text: str
    whole: bool


@dataclass(frozen=True)
class Description:
    path: str
    tokenizer: str  # its kind
    counts: dict[str, int]
    bytes: int
    sources: tuple[Source, ...]
    languages: tuple[Source, ...]
    documents: Lengths
    sentences: Lengths
    unigram: Unigram
    removed: dict[str, Any]
    samples: tuple[Sample, ...]
    settings: dict[str, Any]


def describe(corpus: Corpus, seed: int = 0, samples: int = 5, top: int = 50) -> Description:
    """Read a whole corpus, a slice at a time. `samples` random documents and the `top` tokens of each kind are kept."""
    for name, value in (("samples", samples), ("top", top)):
        if value < 0:
            raise UserError(f"{name} is {value}: it cannot be less than 0")
    tokenizer = Tokenizer.load(corpus.path / "tokenizer")
    manifest = corpus.manifest
    counted = {"documents": corpus.num_documents, "sentences": corpus.num_sentences, "tokens": corpus.num_tokens}
    sources = _sources(manifest)
    borders = corpus.sentences[corpus.documents]
    return Description(
        path=str(corpus.path),
        tokenizer=tokenizer.kind,
        counts=counted | {"characters": int(manifest.get("counts", {}).get("characters", 0))},
        bytes=sum(facts["bytes"] for shard in manifest["shards"] for facts in shard["files"].values()),
        sources=sources,
        languages=_languages(manifest, sources),
        documents=_lengths(np.diff(borders)),
        sentences=_lengths(np.diff(corpus.sentences)),
        unigram=_unigram(corpus, tokenizer, top),
        removed=manifest.get("removed", {}),
        samples=tuple(_samples(corpus, tokenizer, sources, seed, samples)),
        settings=dict(manifest.get("settings", {})),
    )


def _sources(manifest: dict[str, Any]) -> tuple[Source, ...]:
    """In the order of their documents."""
    found = []
    for origin in manifest.get("origins", []):
        counts = {name: int(origin.get("counts", {}).get(name, 0)) for name in _COUNTS}
        found.append((str(origin.get("path", "?")), str(origin.get("lang") or "?"), origin.get("weight", 1), counts))
    tokens = max(sum(counts["tokens"] for *_, counts in found), 1)
    read = sum(counts["tokens"] * weight for *_, weight, counts in found) or 1
    return tuple(Source(n, lang, w, c, c["tokens"] / tokens, c["tokens"] * w / read) for n, lang, w, c in found)


def _languages(manifest: dict[str, Any], sources: tuple[Source, ...]) -> tuple[Source, ...]:
    """The same by language, the largest first. A source of several languages (gettext) gives each its weight."""
    parts = [source for source in sources if source.lang != "?"]
    for mixed in (source for source in sources if source.lang == "?"):
        for lang, counts in manifest.get("languages", {}).items():
            known = sum(source.counts["tokens"] for source in parts if source.lang == lang)
            share = max(counts["tokens"] - known, 0) / max(mixed.counts["tokens"], 1)
            if share:
                own = {name: counts[name] - sum(s.counts[name] for s in parts if s.lang == lang) for name in _COUNTS}
                parts.append(Source(lang, lang, mixed.weight, own, mixed.share * share, mixed.read * share))
    found = []
    for lang in dict.fromkeys(part.lang for part in parts):
        here = [part for part in parts if part.lang == lang]
        weights = {part.weight for part in here}
        counts = {name: sum(part.counts[name] for part in here) for name in _COUNTS}
        shares = sum(part.share for part in here), sum(part.read for part in here)
        found.append(Source(lang, lang, weights.pop() if len(weights) == 1 else None, counts, *shares))
    return tuple(sorted(found, key=lambda each: -each.share))


def _lengths(lengths: np.ndarray) -> Lengths:
    """Two borders to each doubling, so that a few tokens and a million fit into one picture."""
    if not lengths.size:
        return Lengths((1, 2), (0,), 0.0, 0, (0, 0, 0), 0)
    longest = int(lengths.max())
    steps = np.arange(2 * longest.bit_length() + 1)
    borders = np.unique(np.round(2.0 ** (steps / 2)).astype(np.int64))
    counts = np.histogram(lengths, borders)[0]
    used = np.flatnonzero(counts)
    first, last = int(used[0]), int(used[-1])
    quarters = np.quantile(lengths, [0.25, 0.5, 0.75], method="inverted_cdf")
    return Lengths(
        tuple(borders[first : last + 2].tolist()),
        tuple(counts[first : last + 1].tolist()),
        float(lengths.mean()),
        int(lengths.min()),
        tuple(quarters.astype(int).tolist()),
        longest,
    )


def _unigram(corpus: Corpus, tokenizer: Tokenizer, top: int) -> Unigram:
    size = corpus.vocab_size
    starts, inside = np.zeros(size, np.int64), np.zeros(size, np.int64)
    growth: list[tuple[int, int]] = []
    with progress("describe", corpus.num_tokens, "tokens") as bar:
        for end, ids, words in _slices(corpus):
            if ids.size and int(ids.max()) >= size:
                raise UserError(f"{corpus.path} is damaged: token {ids.max()} is not in its vocabulary of {size}")
            whole = np.bincount(ids, minlength=size)
            begun = np.bincount(ids[words], minlength=size)
            starts += begun
            inside += whole - begun
            if end & (end - 1) == 0 or end == corpus.num_tokens:
                growth.append((end, int(np.count_nonzero(starts + inside))))
            bar.advance(len(ids))
    counts = starts + inside
    shares = counts[counts > 0] / max(counts.sum(), 1)
    specials = tokenizer.specials
    can_fail = specials.unk is not None and specials.unk not in (specials.bos, specials.eos)
    return Unigram(
        vocab_size=size,
        seen=len(shares),
        entropy=float(-(shares * np.log2(shares)).sum()) + 0.0,
        unknown=int(counts[specials.unk]) if can_fail else 0,
        words=int(starts.sum()),
        starting=_most(starts, tokenizer, top),
        inside=_most(inside, tokenizer, top),
        growth=tuple(growth),
    )


def _slices(corpus: Corpus) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """All tokens in order and whether each starts a word; cut at the powers of two. First the number read so far."""
    total = corpus.num_tokens
    doublings = 1 << np.arange(8, max(total.bit_length(), 8))
    cuts = np.unique(np.concatenate([np.arange(0, total, SLICE), doublings, [total]]))
    borders = np.union1d(corpus.sentences[corpus.documents], cuts)
    for low, high in pairwise(np.searchsorted(borders, cuts).tolist()):
        starts, lengths = borders[low:high], np.diff(borders[low : high + 1])
        yield int(borders[high]), corpus.gather(starts, lengths), corpus.gather_words(starts, lengths)


def _most(counts: np.ndarray, tokenizer: Tokenizer, top: int) -> tuple[Piece, ...]:
    """The most frequent, as text where an entry is one; of equals the first in the vocabulary."""
    order = np.argsort(-counts, kind="stable")[:top].tolist()
    found = []
    for i in order:
        text = tokenizer.decode([i], skip_specials=False)
        if counts[i]:
            found.append(Piece(i, tokenizer.pieces([i])[0] if "\ufffd" in text or not text else text, int(counts[i])))
    return tuple(found)


def _samples(
    corpus: Corpus, tokenizer: Tokenizer, sources: tuple[Source, ...], seed: int, count: int
) -> Iterator[Sample]:
    """Random documents in the order of the corpus; of long ones the beginning."""
    draw = np.random.default_rng(seed)
    chosen = np.sort(draw.choice(corpus.num_documents, min(count, corpus.num_documents), replace=False))
    ends = np.cumsum([source.counts["documents"] for source in sources])
    for number in chosen.tolist():
        start, end = corpus.sentences[corpus.documents[number : number + 2]].tolist()
        ids = corpus.gather(np.array([start]), np.array([min(end - start, SHOWN)]))
        of = int(np.searchsorted(ends, number, side="right"))
        name = sources[of].name if of < len(sources) else ""
        text = tokenizer.decode(ids.tolist(), skip_specials=False)
        yield Sample(number + 1, name, end - start, text.removesuffix("\ufffd"), end - start <= SHOWN)
