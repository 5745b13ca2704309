"""Coreference by span ranking (Lee et al. 2017; coarse to fine, Lee et al. 2018).

Every span of words inside a sentence is a candidate, represented by its first and last state, an attention-weighted
mean of its states, and its width. The candidates with the highest mention scores are selected, without crossing spans,
and each selects an antecedent among those before it, or none. A document may be split into several sequences that are
encoded independently (Joshi et al. 2019, BERT for Coreference Resolution, "independent"): candidates stay inside a
sentence, antecedents may be in any sequence.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.nn.heads.base import Head, HeadConfig, PoolFn
from polyseme.nn.packing import PackedLayout

# columns of a word's row: first and last token, document, last word of its sentence, speaker, genre; documents follow
# each other, and words are numbered across them
FIRST_TOKEN, LAST_TOKEN, DOCUMENT, SENTENCE_END, SPEAKER, GENRE = range(6)
DISTANCE_BUCKETS = (1, 2, 3, 4, 5, 8, 16, 32, 64)  # lower bounds of the distance buckets, in mentions


@dataclass(frozen=True)
class CoreferenceHeadConfig(HeadConfig):
    """Span-ranking coreference head.

    Candidates have at most `max_span_width` words; `top_span_ratio` · words of them are selected as mentions, and each
    is compared with the `max_antecedents` best ones before it. `genres` are those of the training data; if empty, genre
    is not a feature. `detection_weight` weights a second loss, whether each candidate is a mention (Zhang et al. 2018,
    Joint Mention Detection): the first loss has no gradient for mentions that are not selected, and with little data
    selects the wrong ones.
    """

    max_span_width: int = 30
    top_span_ratio: float = 0.4
    max_antecedents: int = 50
    hidden_dim: int = 1000
    feature_dim: int = 20
    dropout: float = 0.3
    use_speakers: bool = True
    genres: tuple[str, ...] = ()
    detection_weight: float = 0.1

    def __post_init__(self) -> None:
        self.check_range(1, math.inf, "max_span_width", "max_antecedents", "hidden_dim", "feature_dim")
        self.check_range(0, math.inf, "top_span_ratio", "detection_weight")
        self.check_range(0, 1, "dropout")

    def max_mentions(self, num_words: int) -> int:
        """Return the maximum number of mentions in a document, which is also the count of its loss."""
        return max(int(self.top_span_ratio * num_words), 1)

    def span_dim(self, dim: int) -> int:
        """Return the size of a span representation."""
        return 3 * dim + self.feature_dim

    def pair_dim(self, dim: int) -> int:
        """Return the size of the representation of a mention and an antecedent."""
        return 3 * self.span_dim(dim) + self.feature_dim * (1 + self.use_speakers + bool(self.genres))

    def matmul_params(self, dim: int) -> int:
        """Return an upper bound on the weights that each mention is multiplied with, reached if sentences are long."""
        span_dim, candidates_per_mention = self.span_dim(dim), self.max_span_width / max(self.top_span_ratio, 1e-3)
        pair_params = self.max_antecedents * self.pair_dim(dim) * self.hidden_dim
        return int(candidates_per_mention * span_dim * self.hidden_dim + span_dim * span_dim + pair_params)

    def build(self, dim: int) -> Head:
        return CoreferenceHead(self, dim)


SpanCandidates = tuple[Tensor, Tensor, Tensor, Tensor]  # first word, last word, representation, mention score


@dataclass(frozen=True, eq=False)
class WordStates:
    """Inputs of the head for each word."""

    rows: Tensor  # int64 [words, columns]
    first_states: Tensor  # state of the first token
    last_states: Tensor  # state of the last token
    log_weights: Tensor  # logarithm of the summed attention weights of the tokens
    pooled_states: Tensor  # attention-weighted mean of the tokens' states


@dataclass(frozen=True, eq=False)
class MentionRanking:
    """Mentions of a document and the scores of their candidate antecedents."""

    first_word: int  # index of the document's first word
    starts: Tensor  # first word of each mention
    ends: Tensor  # last word of each mention
    scores: Tensor  # [mentions, 1 + antecedents]; column 0 is no antecedent, missing antecedents have −∞
    antecedents: Tensor  # int64 [mentions, antecedents], indices of mentions


class CoreferenceHead(Head):
    """Span-ranking head over the words of whole documents."""

    needs_host_sync = True

    def __init__(self, config: CoreferenceHeadConfig, dim: int):
        super().__init__(config)
        span_dim, feature_dim = config.span_dim(dim), config.feature_dim
        self.token_attention = nn.Linear(dim, 1)
        self.width_embeddings = nn.Embedding(config.max_span_width, feature_dim)
        self.mention_scorer = _build_scorer(span_dim, config)
        self.coarse_bilinear = nn.Linear(span_dim, span_dim, bias=False)
        self.distance_embeddings = nn.Embedding(len(DISTANCE_BUCKETS), feature_dim)
        self.speaker_embeddings = nn.Embedding(2, feature_dim) if config.use_speakers else None
        self.genre_embeddings = nn.Embedding(len(config.genres) + 1, feature_dim) if config.genres else None
        self.pair_scorer = _build_scorer(config.pair_dim(dim), config)

    def select_states(self, hidden: Tensor, layout: PackedLayout, rows: Tensor | None, pool: PoolFn) -> WordStates:
        """Pool the token states of each word."""
        if rows is None:
            raise ValueError("CoreferenceHead needs the rows of the words")
        first_token, last_token = rows[:, FIRST_TOKEN], rows[:, LAST_TOKEN]
        attention_logits = _upcast(self.token_attention(hidden).squeeze(-1))
        log_weight, state = attention_logits.index_select(0, first_token), hidden.index_select(0, first_token)
        for offset in range(1, int((last_token - first_token).max()) + 1):
            token, is_past_end = torch.minimum(first_token + offset, last_token), first_token + offset > last_token
            token_log_weight = attention_logits.index_select(0, token).masked_fill(is_past_end, -torch.inf)
            token_state = hidden.index_select(0, token)
            log_weight, state = _merge_weighted_means(log_weight, state, token_log_weight, token_state)
        first_states, last_states = (hidden.index_select(0, token) for token in (first_token, last_token))
        return WordStates(rows, first_states, last_states, log_weight, state)

    def loss(self, states: WordStates, token_embeddings: Any, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Return the summed negative log-likelihood of all true antecedents of each selected mention.

        A mention without a true antecedent has none as its target. `labels` are the true mentions, [m, 3]: first word,
        last word, cluster id from 1.
        """
        total_loss, candidates = states.log_weights.new_zeros(()), self._enumerate_candidates(states)
        if self.config.detection_weight:
            starts, ends, _, scores = candidates
            is_mention = torch.isin(starts * len(states.rows) + ends, labels[:, 0] * len(states.rows) + labels[:, 1])
            detection_loss = F.binary_cross_entropy_with_logits(scores, is_mention.to(scores.dtype), reduction="sum")
            total_loss = self.config.detection_weight * detection_loss
        for ranking in self._rank_documents(states, candidates):
            matches = (ranking.starts[:, None] == labels[:, 0]) & (ranking.ends[:, None] == labels[:, 1])
            cluster = (matches * labels[:, 2]).sum(1)
            antecedent_clusters = _select_rows(cluster, ranking.antecedents)
            is_coreferent = (antecedent_clusters == cluster[:, None]) & (antecedent_clusters > 0)
            is_coreferent &= ranking.scores[:, 1:].isfinite()
            is_correct = torch.cat([~is_coreferent.any(1, keepdim=True), is_coreferent], 1)
            correct_score = ranking.scores.masked_fill(~is_correct, -torch.inf).logsumexp(1)
            total_loss = total_loss + (ranking.scores.logsumexp(1) - correct_score).sum()
        return total_loss

    @torch.no_grad()
    def decode_clusters(self, states: WordStates) -> list[list[list[tuple[int, int]]]]:
        """Return the clusters of each document, the mentions linked by their best antecedents.

        Word indices are relative to the document.
        """
        document_clusters = []
        for ranking in self._rank_documents(states, self._enumerate_candidates(states)):
            antecedents, starts, ends = ranking.antecedents.tolist(), ranking.starts.tolist(), ranking.ends.tolist()
            cluster_by_mention: dict[int, list[tuple[int, int]]] = {}
            spans = [(a - ranking.first_word, b - ranking.first_word) for a, b in zip(starts, ends)]
            for i, column in enumerate(ranking.scores.argmax(1).tolist()):
                if column:
                    antecedent = antecedents[i][column - 1]
                    cluster_by_mention[i] = cluster_by_mention.setdefault(antecedent, [spans[antecedent]])
                    cluster_by_mention[i].append(spans[i])
            clusters = {id(mentions): mentions for mentions in cluster_by_mention.values()}
            document_clusters.append(list(clusters.values()))
        return document_clusters

    def _rank_documents(self, words: WordStates, candidates: SpanCandidates) -> Iterator[MentionRanking]:
        """Yield the mentions of each document and the scores of their antecedents."""
        tensors = words.rows[:, DOCUMENT], *candidates[:2], candidates[3]
        documents, *arrays = (t.detach().cpu().numpy() for t in tensors)
        document_lengths = np.unique(documents, return_counts=True)[1]
        word_borders = np.cumsum([0, *document_lengths])
        candidate_borders = np.searchsorted(arrays[0], word_borders)
        for i, num_words in enumerate(document_lengths.tolist()):
            first, last = candidate_borders[i : i + 2]
            starts, ends, scores = (array[first:last] for array in arrays)
            selected = first + select_non_crossing(starts, ends, scores, self.config.max_mentions(num_words))
            index = torch.from_numpy(selected).to(words.rows.device)
            top_starts, top_ends, top_spans, top_scores = (t.index_select(0, index) for t in candidates)
            antecedents = self._score_antecedents(words.rows, top_starts, top_scores, top_spans)
            yield MentionRanking(int(word_borders[i]), top_starts, top_ends, *antecedents)

    def _enumerate_candidates(self, words: WordStates) -> SpanCandidates:
        """Return all candidate spans, sorted by first word and width.

        The attention-weighted mean is extended word by word, as a running softmax.
        """
        sentence_ends = words.rows[:, SENTENCE_END]
        start = torch.arange(len(sentence_ends), device=sentence_ends.device)
        log_weight, state = words.log_weights, words.pooled_states
        groups: list[tuple[Tensor, Tensor, Tensor]] = []
        for extra_words in range(self.config.max_span_width):
            if extra_words:
                alive = (start + extra_words <= sentence_ends.index_select(0, start)).nonzero()[:, 0]
                if not len(alive):
                    break
                start, log_weight, state = (t.index_select(0, alive) for t in (start, log_weight, state))
                word = start + extra_words
                word_states = words.log_weights.index_select(0, word), words.pooled_states.index_select(0, word)
                log_weight, state = _merge_weighted_means(log_weight, state, *word_states)
            groups.append((start, torch.full_like(start, extra_words), state))
        starts, widths, states = (torch.cat(parts) for parts in zip(*groups))
        order = (starts * self.config.max_span_width + widths).argsort()
        starts, widths, states = (t.index_select(0, order) for t in (starts, widths, states))
        ends = starts + widths
        boundaries = words.first_states.index_select(0, starts), words.last_states.index_select(0, ends)
        spans = torch.cat([*boundaries, states, self.width_embeddings(widths)], 1)  # [candidates, span_dim]
        return starts, ends, spans, _upcast(self.mention_scorer(spans).squeeze(-1))

    def _score_antecedents(self, rows: Tensor, starts: Tensor, scores: Tensor, spans: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of each mention's antecedents, [mentions, 1 + antecedents], and their indices.

        A score is the sum of both mention scores, the coarse (bilinear) score and the fine score of the pair.
        """
        num_mentions = len(spans)
        positions = torch.arange(num_mentions, device=spans.device)
        precedes = positions[None] < positions[:, None]
        coarse_scores = _upcast(self.coarse_bilinear(spans) @ spans.t()) + scores[:, None] + scores[None]
        coarse_scores = coarse_scores.masked_fill(~precedes, -torch.inf)  # [mentions, mentions]
        antecedents = coarse_scores.detach().topk(min(self.config.max_antecedents, num_mentions), 1).indices
        buckets = torch.tensor(DISTANCE_BUCKETS, device=spans.device)
        distance = torch.bucketize(positions[:, None] - antecedents, buckets, right=True)
        pair_features = [self.distance_embeddings((distance - 1).clamp(min=0))]
        if self.speaker_embeddings is not None:
            speaker = rows[:, SPEAKER].index_select(0, starts)
            is_same_speaker = speaker[:, None] == _select_rows(speaker, antecedents)
            pair_features.append(self.speaker_embeddings(is_same_speaker.long()))
        if self.genre_embeddings is not None:
            genre = rows[:, GENRE].index_select(0, starts)
            pair_features.append(self.genre_embeddings(genre)[:, None].expand(-1, antecedents.shape[1], -1))
        pair_scores = self._pair_scores(spans, antecedents, torch.cat(pair_features, -1))
        fine_scores = coarse_scores.gather(1, antecedents) + _upcast(pair_scores)
        fine_scores = fine_scores.masked_fill(~precedes.gather(1, antecedents), -torch.inf)
        return torch.cat([fine_scores.new_zeros(num_mentions, 1), fine_scores], 1), antecedents

    def _pair_scores(self, spans: Tensor, antecedents: Tensor, features: Tensor) -> Tensor:
        """Score each mention with each of its antecedents: an MLP over both, their product and the pair's features.

        The part of the first layer that depends on one span is computed once per span, not once per pair.
        """
        first_layer: Any = self.pair_scorer[0]
        sizes = [*[spans.shape[1]] * 3, features.shape[-1]]
        mention_weight, antecedent_weight, product_weight, feature_weight = first_layer.weight.split(sizes, 1)
        antecedent_spans = _select_rows(spans, antecedents)
        products = spans[:, None] * antecedent_spans
        hidden = F.linear(products, product_weight, first_layer.bias) + F.linear(features, feature_weight)
        hidden = hidden + F.linear(spans, mention_weight)[:, None]
        hidden = hidden + _select_rows(F.linear(spans, antecedent_weight), antecedents)
        return self.pair_scorer[1:](hidden).squeeze(-1)


def select_non_crossing(starts: np.ndarray, ends: np.ndarray, scores: np.ndarray, max_spans: int) -> np.ndarray:
    """Return the sorted indices of the best candidates without crossing spans (Lee et al. 2017, §5)."""
    latest_end: dict[int, int] = {}  # by start, the last end of a selected span
    earliest_start: dict[int, int] = {}
    selected: list[int] = []
    for candidate in np.argsort(-scores, kind="stable").tolist():
        if len(selected) == max_spans:
            break
        start, end = int(starts[candidate]), int(ends[candidate])
        crosses = any(latest_end.get(i, -1) > end for i in range(start + 1, end + 1))
        if crosses or any(earliest_start.get(i, start) < start for i in range(start, end)):
            continue
        selected.append(candidate)
        latest_end[start] = max(latest_end.get(start, end), end)
        earliest_start[end] = min(earliest_start.get(end, start), start)
    return np.sort(np.array(selected, dtype=np.int64))


def _build_scorer(input_dim: int, config: CoreferenceHeadConfig) -> nn.Sequential:
    linear, output = nn.Linear(input_dim, config.hidden_dim), nn.Linear(config.hidden_dim, 1)
    return nn.Sequential(linear, nn.ReLU(), nn.Dropout(config.dropout), output)


def _select_rows(rows: Tensor, index: Tensor) -> Tensor:
    """Return rows[index] for a matrix of indices; indexing has a gradient that is not deterministic."""
    return rows.index_select(0, index.flatten()).unflatten(0, index.shape)


def _upcast(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _merge_weighted_means(log_a: Tensor, a: Tensor, log_b: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Merge two means with logarithmic weights, of which −∞ adds nothing; return the total weight and the mean."""
    total = torch.logaddexp(log_a, log_b)
    fraction_a, fraction_b = ((log_weight - total).exp().to(a.dtype)[:, None] for log_weight in (log_a, log_b))
    return total, a * fraction_a + b * fraction_b
