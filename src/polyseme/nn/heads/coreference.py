"""Which stretches of a document mean the same: span ranking (Lee et al. 2017; coarse to fine, Lee et al. 2018).

Every run of words inside a sentence is a candidate. A candidate is its first state, its last, the states between
weighted by attention, and its width. Those that look most like mentions are kept, no two of them crossing, and each
chooses one that stands before it, or none. A document may be read in several sequences, each by itself (Joshi et al.
2019, BERT for Coreference Resolution, "independent"): candidates keep to a sentence, antecedents may lie anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Spec
from polyseme.nn.heads.base import Head, Pool
from polyseme.nn.packing import Layout

# the columns of a word's row: its first and last token, its document, the last word of its sentence, who says it, the
# kind of text; documents lie one behind the other, and words are numbered through
FIRST, LAST, DOCUMENT, END, SPEAKER, GENRE = range(6)
DISTANCES = (1, 2, 3, 4, 5, 8, 16, 32, 64)  # where the classes of distances begin, in mentions


@dataclass(frozen=True)
class CoreferenceHeadSpec(Spec):
    """Candidates have at most `width` words; `ratio` · words of them are kept, and each is compared with the best
    `antecedents` of those before it. `genres` are the kinds of text that were seen; none, and they are not looked at.
    `detection` is the weight of a second loss, whether each candidate is a mention (Zhang et al. 2018, Joint Mention
    Detection): the first alone learns nothing of a mention that is not kept, and on little data keeps the wrong ones.
    """

    width: int = 30
    ratio: float = 0.4
    antecedents: int = 50
    hidden: int = 1000
    feature_dim: int = 20
    dropout: float = 0.3
    speakers: bool = True
    genres: tuple[str, ...] = ()
    detection: float = 0.1

    def __post_init__(self) -> None:
        self.within(1, math.inf, "width", "antecedents", "hidden", "feature_dim")
        self.within(0, math.inf, "ratio", "detection")
        self.within(0, 1, "dropout")

    def kept(self, num_words: int) -> int:
        """How many candidates of a document are kept at most, which is what its loss counts for."""
        return max(int(self.ratio * num_words), 1)

    def span_dim(self, dim: int) -> int:
        return 3 * dim + self.feature_dim

    def pair_dim(self, dim: int) -> int:
        return 3 * self.span_dim(dim) + self.feature_dim * (1 + self.speakers + bool(self.genres))

    def weights(self, dim: int) -> int:
        """At most: as if no sentence were shorter than a candidate may be."""
        size, candidates = self.span_dim(dim), self.width / max(self.ratio, 1e-3)
        return int(candidates * size * self.hidden + size * size + self.antecedents * self.pair_dim(dim) * self.hidden)

    def build(self, dim: int) -> CoreferenceHead:
        return CoreferenceHead(self, dim)


Candidates = tuple[Tensor, Tensor, Tensor, Tensor]  # first word, last word, vector, worth as a mention


@dataclass(frozen=True, eq=False)
class Words:
    """What the head reads: of each word its row, the states of its first and last token, and of all its tokens the
    state that attention makes of them, with the logarithm of its weight."""

    rows: Tensor
    first: Tensor
    last: Tensor
    weight: Tensor
    state: Tensor


@dataclass(frozen=True, eq=False)
class Ranked:
    """The mentions of a document, from its first word on, and what they choose among: column 0 is none, the others are
    the antecedents `which`. Classes of mentions that are no antecedents, for there are too few, are worth −∞."""

    begin: int  # the number of the document's first word
    starts: Tensor
    ends: Tensor
    scores: Tensor  # [k, 1 + antecedents]
    which: Tensor  # int64 [k, antecedents]


class CoreferenceHead(Head):
    asks = True

    def __init__(self, spec: CoreferenceHeadSpec, dim: int):
        super().__init__()
        self.spec = spec
        size, features = spec.span_dim(dim), spec.feature_dim
        self.look = nn.Linear(dim, 1)
        self.widths = nn.Embedding(spec.width, features)
        self.mention = _scorer(size, spec)
        self.coarse = nn.Linear(size, size, bias=False)
        self.distances = nn.Embedding(len(DISTANCES), features)
        self.speakers = nn.Embedding(2, features) if spec.speakers else None
        self.genres = nn.Embedding(len(spec.genres) + 1, features) if spec.genres else None
        self.pair = _scorer(spec.pair_dim(dim), spec)

    def states(self, last: Tensor, layout: Layout, rows: Tensor | None, pool: Pool) -> Words:
        if rows is None:
            raise ValueError("a coreference head has to be told which words it reads")
        first, behind = rows[:, FIRST], rows[:, LAST]
        looks = _wide(self.look(last).squeeze(-1))
        weight, state = looks.index_select(0, first), last.index_select(0, first)
        for more in range(1, int((behind - first).max()) + 1):
            token = torch.minimum(first + more, behind)
            extra = looks.index_select(0, token).masked_fill(first + more > behind, -torch.inf)
            weight, state = _joined(weight, state, extra, last.index_select(0, token))
        return Words(rows, last.index_select(0, first), last.index_select(0, behind), weight, state)

    def loss(self, states: Words, table: Tensor, values: Tensor, ignored: int, smoothing: float = 0.0) -> Tensor:
        """The summed −log of the share of all true antecedents of each mention that is kept; that of none, where it has
        no true one before it. `values` are the true mentions: first word, last word, cluster from 1, [m, 3]."""
        total = states.weight.new_zeros(())
        candidates = self._candidates(states)
        if self.spec.detection:
            total = self.spec.detection * self._detection(candidates, values, len(states.rows))
        for ranked in self.documents(states, candidates):
            matches = (ranked.starts[:, None] == values[:, 0]) & (ranked.ends[:, None] == values[:, 1])
            cluster = (matches * values[:, 2]).sum(1)
            others = cluster.index_select(0, ranked.which.flatten()).view_as(ranked.which)
            same = (others == cluster[:, None]) & (others > 0) & ranked.scores[:, 1:].isfinite()
            right = torch.cat([~same.any(1, keepdim=True), same], 1)
            gained = ranked.scores.masked_fill(~right, -torch.inf).logsumexp(1)
            total = total + (ranked.scores.logsumexp(1) - gained).sum()
        return total

    @torch.no_grad()
    def clusters(self, states: Words) -> list[list[list[tuple[int, int]]]]:
        """Of each document the mentions that hang together by their best antecedents; words are counted from its own
        first."""
        found = []
        for ranked in self.documents(states, self._candidates(states)):
            best = ranked.scores.argmax(1).tolist()
            which, starts, ends = ranked.which.tolist(), ranked.starts.tolist(), ranked.ends.tolist()
            chain: dict[int, list[tuple[int, int]]] = {}
            spans = [(a - ranked.begin, b - ranked.begin) for a, b in zip(starts, ends)]
            for i, choice in enumerate(best):
                if choice:
                    other = which[i][choice - 1]
                    chain[i] = chain.setdefault(other, [spans[other]])
                    chain[i].append(spans[i])
            found.append(list({id(mentions): mentions for mentions in chain.values()}.values()))
        return found

    def _detection(self, candidates: Candidates, values: Tensor, number: int) -> Tensor:
        starts, ends, _, scores = candidates
        true = torch.isin(starts * number + ends, values[:, 0] * number + values[:, 1])
        return F.binary_cross_entropy_with_logits(scores, true.to(scores.dtype), reduction="sum")

    def documents(self, words: Words, candidates: Candidates) -> Iterator[Ranked]:
        """Each document's mentions, ranked."""
        starts, ends, spans, scores = candidates
        host = [t.detach().cpu().numpy() for t in (words.rows[:, DOCUMENT], starts, ends, scores)]
        sizes = np.unique(host[0], return_counts=True)[1]
        borders = np.cumsum([0, *sizes])
        edges = np.searchsorted(host[1], borders)
        for i, size in enumerate(sizes.tolist()):
            part = slice(edges[i], edges[i + 1])
            chosen = edges[i] + keep(host[1][part], host[2][part], host[3][part], self.spec.kept(size))
            rows = torch.from_numpy(chosen).to(spans.device)
            kept = [t.index_select(0, rows) for t in (starts, ends, scores, spans)]
            yield Ranked(int(borders[i]), kept[0], kept[1], *self._ranked(words.rows, kept[0], kept[2], kept[3]))

    def _candidates(self, words: Words) -> Candidates:
        """All that may be mentions, by first word and width.

        Attention grows with the candidate: one word more is one more term of a softmax that is taken as it comes.
        """
        last = words.rows[:, END]
        start = torch.arange(len(last), device=last.device)
        weight, state = words.weight, words.state
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        for more in range(self.spec.width):
            if more:
                alive = (start + more <= last.index_select(0, start)).nonzero()[:, 0]
                if not len(alive):
                    break
                start, weight, state = (t.index_select(0, alive) for t in (start, weight, state))
                word = start + more
                extra = words.weight.index_select(0, word), words.state.index_select(0, word)
                weight, state = _joined(weight, state, *extra)
            found.append((start, torch.full_like(start, more), state))
        starts, widths, states = (torch.cat(parts) for parts in zip(*found))
        order = (starts * self.spec.width + widths).argsort()
        starts, widths, states = (t.index_select(0, order) for t in (starts, widths, states))
        ends = starts + widths
        parts = (words.first.index_select(0, starts), words.last.index_select(0, ends), states, self.widths(widths))
        spans = torch.cat(parts, 1)
        return starts, ends, spans, _wide(self.mention(spans).squeeze(-1))

    def _ranked(self, rows: Tensor, starts: Tensor, scores: Tensor, spans: Tensor) -> tuple[Tensor, Tensor]:
        """What each mention's antecedents are worth: both as mentions, and both together, roughly and closely."""
        number = len(spans)
        places = torch.arange(number, device=spans.device)
        before = places[None] < places[:, None]
        rough = _wide(self.coarse(spans) @ spans.t()) + scores[:, None] + scores[None]
        rough = rough.masked_fill(~before, -torch.inf)
        which = rough.detach().topk(min(self.spec.antecedents, number), 1).indices
        distance = torch.bucketize(places[:, None] - which, torch.tensor(DISTANCES, device=spans.device), right=True)
        parts = [self.distances((distance - 1).clamp(min=0))]
        if self.speakers is not None:
            said = rows[:, SPEAKER].index_select(0, starts)
            parts.append(self.speakers((said[:, None] == said.index_select(0, which.flatten()).view_as(which)).long()))
        if self.genres is not None:
            genre = rows[:, GENRE].index_select(0, starts)
            parts.append(self.genres(genre)[:, None].expand(-1, which.shape[1], -1))
        close = rough.gather(1, which) + _wide(self._compared(spans, which, torch.cat(parts, -1)))
        close = close.masked_fill(~before.gather(1, which), -torch.inf)
        return torch.cat([close.new_zeros(number, 1), close], 1), which

    def _compared(self, spans: Tensor, which: Tensor, features: Tensor) -> Tensor:
        """What each mention and each of its antecedents are worth together: layers over both, their product and what
        is known of the pair. What the first layer makes of one of them alone is reckoned once, not for each pair."""
        first: Any = self.pair[0]
        size = spans.shape[1]
        one, other, product, known = first.weight.split([size, size, size, features.shape[-1]], 1)
        rows = which.flatten()
        mates = spans.index_select(0, rows).unflatten(0, which.shape)
        hidden = F.linear(spans[:, None] * mates, product, first.bias) + F.linear(features, known)
        hidden = hidden + F.linear(spans, one)[:, None]
        hidden = hidden + F.linear(spans, other).index_select(0, rows).unflatten(0, which.shape)
        found: Tensor = self.pair[1:](hidden).squeeze(-1)
        return found


def keep(starts: np.ndarray, ends: np.ndarray, scores: np.ndarray, most: int) -> np.ndarray:
    """The places of the best candidates, rising, of which no two cross (Lee et al. 2017, §5)."""
    latest: dict[int, int] = {}  # of kept ones that start here, the last end
    earliest: dict[int, int] = {}
    found: list[int] = []
    for place in np.argsort(-scores, kind="stable").tolist():
        if len(found) == most:
            break
        a, b = int(starts[place]), int(ends[place])
        crosses = any(latest.get(i, -1) > b for i in range(a + 1, b + 1))
        if crosses or any(earliest.get(i, a) < a for i in range(a, b)):
            continue
        found.append(place)
        latest[a], earliest[b] = max(latest.get(a, b), b), min(earliest.get(b, a), a)
    return np.sort(np.array(found, dtype=np.int64))


def _scorer(size: int, spec: CoreferenceHeadSpec) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, spec.hidden), nn.ReLU(), nn.Dropout(spec.dropout), nn.Linear(spec.hidden, 1))


def _wide(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _joined(weight: Tensor, state: Tensor, more: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Two weighted means as one; weights are logarithms, and −∞ adds nothing."""
    both = torch.logaddexp(weight, more)
    share, rest = ((part - both).exp().to(state.dtype)[:, None] for part in (weight, more))
    return both, state * share + other * rest
