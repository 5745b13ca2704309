"""Statistics of a corpus: sizes, sources, lengths, frequent tokens, entropy, removed documents, sample documents."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError, DataError
from polyseme.progress import progress
from polyseme.text.tokenizer import Tokenizer

SLICE_TOKENS = 1 << 18  # tokens counted at a time
MAX_SAMPLE_TOKENS = 300  # of each sampled document
_UNITS = ("documents", "sentences", "tokens", "characters")


@dataclass(frozen=True)
class SourceStats:
    """Statistics of one source, or of all documents in one language."""

    name: str
    lang: str
    weight: float | None  # None if the parts have different weights
    counts: dict[str, int]
    token_share: float  # of all tokens
    weighted_share: float  # of all tokens after weighting, as seen in training


@dataclass(frozen=True)
class LengthHistogram:
    """Histogram of lengths in tokens: `counts[i]` lengths are in [bin_edges[i], bin_edges[i + 1])."""

    bin_edges: tuple[int, ...]
    counts: tuple[int, ...]
    mean: float
    min: int
    quartiles: tuple[int, int, int]
    max: int


@dataclass(frozen=True)
class TokenCount:
    """Frequency of a vocabulary entry, either at the start of words or inside words."""

    id: int
    text: str
    count: int


@dataclass(frozen=True)
class UnigramStats:
    """Distribution of single tokens, what a model without context could learn."""

    vocab_size: int
    num_types: int  # vocabulary entries that occur
    entropy: float  # bits per token
    num_unknown: int  # unknown tokens
    num_words: int
    top_word_initial: tuple[TokenCount, ...]  # most frequent at the start of words
    top_word_internal: tuple[TokenCount, ...]  # most frequent inside words
    vocabulary_growth: tuple[tuple[int, int], ...]  # (number of tokens, distinct tokens among them)


@dataclass(frozen=True)
class SampledDocument:
    """A random document, cut to `MAX_SAMPLE_TOKENS`."""

    document_number: int  # from 1
    source: str
    num_tokens: int
    text: str
    is_complete: bool


@dataclass(frozen=True)
class CorpusStatistics:
    """All statistics of a corpus."""

    path: str
    tokenizer_kind: str
    counts: dict[str, int]
    num_bytes: int
    sources: tuple[SourceStats, ...]
    languages: tuple[SourceStats, ...]
    document_lengths: LengthHistogram
    sentence_lengths: LengthHistogram
    unigram: UnigramStats
    removed: dict[str, Any]
    samples: tuple[SampledDocument, ...]
    settings: dict[str, Any]


def compute_statistics(corpus: Corpus, seed: int = 0, num_samples: int = 5, top_k: int = 50) -> CorpusStatistics:
    """Compute the statistics of a corpus, with the `top_k` most frequent tokens and `num_samples` random documents."""
    for name, value in (("num_samples", num_samples), ("top_k", top_k)):
        if value < 0:
            raise ConfigError(f"{name} is {value}; it must not be negative")
    tokenizer = Tokenizer.load(corpus.path / "tokenizer")
    manifest = corpus.manifest
    counts = {"documents": corpus.num_documents, "sentences": corpus.num_sentences, "tokens": corpus.num_tokens}
    sources = _source_stats(manifest)
    document_starts = corpus.sentence_offsets[corpus.document_offsets]
    return CorpusStatistics(
        path=str(corpus.path),
        tokenizer_kind=tokenizer.kind,
        counts=counts | {"characters": int(manifest.get("counts", {}).get("characters", 0))},
        num_bytes=sum(facts["bytes"] for shard in manifest["shards"] for facts in shard["files"].values()),
        sources=sources,
        languages=_language_stats(manifest, sources),
        document_lengths=_length_histogram(np.diff(document_starts)),
        sentence_lengths=_length_histogram(np.diff(corpus.sentence_offsets)),
        unigram=_unigram_stats(corpus, tokenizer, top_k),
        removed=manifest.get("removed", {}),
        samples=tuple(_sample_documents(corpus, tokenizer, sources, seed, num_samples)),
        settings=dict(manifest.get("settings", {})),
    )


def _source_stats(manifest: dict[str, Any]) -> tuple[SourceStats, ...]:
    """Return the statistics of each source, in the order of their documents."""
    sources = manifest.get("sources", [])
    counts = [{unit: int(source.get("counts", {}).get(unit, 0)) for unit in _UNITS} for source in sources]
    tokens = np.array([source_counts["tokens"] for source_counts in counts])
    weights = [source.get("weight", 1) for source in sources]
    shares, weighted_shares = (t / (t.sum() or 1) for t in (tokens, tokens * np.array(weights)))
    return tuple(
        SourceStats(str(source.get("path", "?")), str(source.get("lang") or "?"), *stats)
        for source, *stats in zip(sources, weights, counts, shares.tolist(), weighted_shares.tolist())
    )


def _language_stats(manifest: dict[str, Any], sources: tuple[SourceStats, ...]) -> tuple[SourceStats, ...]:
    """Return the statistics of each language, largest first. All languages of a source have its weight."""
    parts: dict[str, list[SourceStats]] = defaultdict(list)
    for source in sources:
        if source.lang != "?":
            parts[source.lang].append(source)
    for mixed in (source for source in sources if source.lang == "?"):
        for lang, total in manifest.get("languages", {}).items():
            counts = {unit: total[unit] - sum(part.counts[unit] for part in parts[lang]) for unit in _UNITS}
            if counts["tokens"] > 0:
                share = counts["tokens"] / max(mixed.counts["tokens"], 1)
                shares = mixed.token_share * share, mixed.weighted_share * share
                parts[lang].append(SourceStats(lang, lang, mixed.weight, counts, *shares))
    language_stats = []
    for lang, stats in parts.items():
        weights = {part.weight for part in stats}
        counts = {unit: sum(part.counts[unit] for part in stats) for unit in _UNITS}
        shares = sum(part.token_share for part in stats), sum(part.weighted_share for part in stats)
        weight = weights.pop() if len(weights) == 1 else None
        language_stats += [SourceStats(lang, lang, weight, counts, *shares)] * bool(stats)
    return tuple(sorted(language_stats, key=lambda stats: -stats.token_share))


def _length_histogram(lengths: np.ndarray) -> LengthHistogram:
    """Bin lengths logarithmically, two bins per doubling."""
    if not lengths.size:
        return LengthHistogram((1, 2), (0,), 0.0, 0, (0, 0, 0), 0)
    longest = int(lengths.max())
    steps = np.arange(2 * longest.bit_length() + 1)
    bin_edges = np.unique(np.round(2.0 ** (steps / 2)).astype(np.int64))
    counts = np.histogram(lengths, bin_edges)[0]
    first, last = np.flatnonzero(counts)[[0, -1]].tolist()
    quartiles = np.quantile(lengths, [0.25, 0.5, 0.75], method="inverted_cdf")
    return LengthHistogram(
        tuple(bin_edges[first : last + 2].tolist()),
        tuple(counts[first : last + 1].tolist()),
        float(lengths.mean()),
        int(lengths.min()),
        tuple(quartiles.astype(int).tolist()),
        longest,
    )


def _unigram_stats(corpus: Corpus, tokenizer: Tokenizer, top_k: int) -> UnigramStats:
    vocab_size = corpus.vocab_size
    initial_counts, internal_counts = np.zeros(vocab_size, np.int64), np.zeros(vocab_size, np.int64)
    vocabulary_growth: list[tuple[int, int]] = []
    with progress("statistics", corpus.num_tokens, "tokens") as bar:
        for end, ids, word_starts in _token_slices(corpus):
            if ids.size and int(ids.max()) >= vocab_size:
                raise DataError(f"{corpus.path} is damaged: token {ids.max()} is not in its vocabulary of {vocab_size}")
            slice_counts = np.bincount(ids, minlength=vocab_size)
            slice_initial = np.bincount(ids[word_starts], minlength=vocab_size)
            initial_counts += slice_initial
            internal_counts += slice_counts - slice_initial
            if end & (end - 1) == 0 or end == corpus.num_tokens:
                vocabulary_growth.append((end, int(np.count_nonzero(initial_counts + internal_counts))))
            bar.advance(len(ids))
    counts = initial_counts + internal_counts
    probabilities = counts[counts > 0] / max(counts.sum(), 1)
    specials = tokenizer.special_token_ids
    has_unknown = specials.unk is not None and specials.unk not in (specials.bos, specials.eos)
    return UnigramStats(
        vocab_size=vocab_size,
        num_types=len(probabilities),
        entropy=float(-(probabilities * np.log2(probabilities)).sum()) + 0.0,
        num_unknown=int(counts[specials.unk]) if has_unknown else 0,
        num_words=int(initial_counts.sum()),
        top_word_initial=_most_frequent(initial_counts, tokenizer, top_k),
        top_word_internal=_most_frequent(internal_counts, tokenizer, top_k),
        vocabulary_growth=tuple(vocabulary_growth),
    )


def _token_slices(corpus: Corpus) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield (number of tokens so far, ids, word starts) of slices, which end at powers of two among others."""
    total = corpus.num_tokens
    doublings = 1 << np.arange(8, max(total.bit_length(), 8))
    cuts = np.unique(np.concatenate([np.arange(0, total, SLICE_TOKENS), doublings, [total]]))
    offsets = np.union1d(corpus.sentence_offsets[corpus.document_offsets], cuts)
    for low, high in pairwise(np.searchsorted(offsets, cuts).tolist()):
        starts, lengths = offsets[low:high], np.diff(offsets[low : high + 1])
        yield int(offsets[high]), corpus.gather_tokens(starts, lengths), corpus.gather_word_starts(starts, lengths)


def _most_frequent(counts: np.ndarray, tokenizer: Tokenizer, top_k: int) -> tuple[TokenCount, ...]:
    """Return the most frequent tokens, ties by id; as text if the token decodes to valid text."""
    token_counts = []
    for token_id in np.argsort(-counts, kind="stable")[:top_k].tolist():
        if counts[token_id]:
            text = tokenizer.decode([token_id], skip_special_tokens=False)
            if "\ufffd" in text or not text:
                text = tokenizer.convert_ids_to_tokens([token_id])[0]
            token_counts.append(TokenCount(token_id, text, int(counts[token_id])))
    return tuple(token_counts)


def _sample_documents(
    corpus: Corpus, tokenizer: Tokenizer, sources: tuple[SourceStats, ...], seed: int, num_samples: int
) -> Iterator[SampledDocument]:
    """Yield random documents in corpus order, long ones cut."""
    rng = np.random.default_rng(seed)
    document_indices = np.sort(rng.choice(corpus.num_documents, min(num_samples, corpus.num_documents), replace=False))
    source_ends = np.cumsum([source.counts["documents"] for source in sources])
    for index in document_indices.tolist():
        start, end = corpus.sentence_offsets[corpus.document_offsets[index : index + 2]].tolist()
        ids = corpus.gather_tokens(np.array([start]), np.array([min(end - start, MAX_SAMPLE_TOKENS)]))
        source_index = int(np.searchsorted(source_ends, index, side="right"))
        name = sources[source_index].name if source_index < len(sources) else ""
        text = tokenizer.decode(ids.tolist(), skip_special_tokens=False).removesuffix("\ufffd")
        yield SampledDocument(index + 1, name, end - start, text, end - start <= MAX_SAMPLE_TOKENS)
