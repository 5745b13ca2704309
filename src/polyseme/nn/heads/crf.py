"""A linear-chain conditional random field over the words of a sentence (Lafferty et al. 2001; Lample et al. 2016).

A path of tags scores the sum of its words' own scores and of the steps from tag to tag. All sums over paths are taken
in log space, and all sentences of a packed batch take a step together: longest first, so that nothing is padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from polyseme.config import Spec
from polyseme.nn.heads.tag_schemes import legal_steps

NEVER = -1e4  # the score of a step that must not be taken: its share is 0 in any precision


@dataclass(frozen=True, eq=False)
class Chains:
    """Rows of several sentences, end to end, and how a scan reads them: all first words, all second words, and so on.

    The sentence with the most words comes first. What is of the rows stands in their own order; what is of the places
    of the scan, in its order.
    """

    sizes: list[int]  # how many sentences have an i-th word
    opens: Tensor  # bool, which rows are first words
    owner: Tensor  # int64, the sentence of each row, by its rank in the scan
    order: Tensor  # int64, the row at each place
    back: Tensor  # int64, the place of each row
    mirror: Tensor  # int64, of each place the place it has when every sentence is read backwards
    last: Tensor  # int64, the places of last words, one a sentence

    @classmethod
    def of(cls, lengths: Sequence[int], device: str | torch.device = "cpu") -> Chains:
        """Of sentences with so many rows; one without rows is passed over."""
        sizes = np.array([n for n in lengths if n], dtype=np.int64)
        rank = np.argsort(-sizes, kind="stable")
        starts, lead = (np.cumsum(sizes) - sizes)[rank], sizes[rank]
        counts = np.searchsorted(-lead, -np.arange(lead.max(initial=0)))
        begins = np.cumsum(counts) - counts  # where each step of the scan begins
        which = np.arange(counts.sum()) - np.repeat(begins, counts)
        step = np.repeat(np.arange(len(counts)), counts)
        order = starts[which] + step
        back = np.argsort(order)
        arrays = (step == 0)[back], which[back], order, back, begins[lead[which] - 1 - step] + which
        last = begins[lead - 1] + np.arange(len(lead))
        return cls(counts.tolist(), *(torch.from_numpy(a).to(device) for a in (*arrays, last)))


@dataclass(frozen=True)
class CrfSpec(Spec):
    """`constrained` bars the steps that `legal_steps` does not allow, in learning and in answers."""

    constrained: bool = True

    def build(self, labels: Sequence[str]) -> Crf:
        return Crf(self, labels)


class Crf(nn.Module):
    """`steps[i, j]` is the score of tag j behind tag i; `first` and `last` are those of both ends."""

    def __init__(self, spec: CrfSpec, labels: Sequence[str]):
        super().__init__()
        self.spec = spec
        number = len(labels)
        self.steps = nn.Parameter(torch.zeros(number, number))
        self.first, self.last = (nn.Parameter(torch.zeros(number)) for _ in range(2))
        legal = legal_steps(labels) if spec.constrained else np.ones((number + 1, number + 1), dtype=bool)
        self.barred = np.where(legal, 0.0, NEVER)  # no buffer: a model built without memory would lose it

    def zeros(self) -> list[nn.Parameter]:
        return [self.steps, self.first, self.last]

    def loss(self, scores: Tensor, chains: Chains, values: Tensor, ignored: int) -> Tensor:
        """The summed negative log likelihood of the true paths; a sentence with an ignored value does not count.

        A true path with a barred step costs as much as one, and pulls at nothing but its words.
        """
        steps, first, last = self.tables(scores)
        unknown = values == ignored
        tags = values.masked_fill(unknown, 0)
        moves = steps.flatten().index_select(0, tags.roll(1) * len(first) + tags)
        gains = torch.where(chains.opens, first.index_select(0, tags), moves) + scores.gather(1, tags[:, None])[:, 0]
        ends = last.index_select(0, tags.index_select(0, chains.order.index_select(0, chains.last)))
        gained = ends.index_add(0, chains.owner, gains)
        lost = torch.zeros_like(ends).index_add(0, chains.owner, unknown.to(ends.dtype))
        return torch.where(lost == 0, self.log_partition(scores, chains) - gained, 0.0).sum()

    def log_marginals(self, scores: Tensor, chains: Chains) -> Tensor:
        """The log probability of each tag of each word, over all paths, [n, tags]."""
        steps, first, last = self.tables(scores)
        scan = scores.index_select(0, chains.order)
        forwards = self._scan(scan, chains, steps, first)
        turned = scan.index_select(0, chains.mirror)
        backwards = self._scan(turned, chains, steps.t(), last).index_select(0, chains.mirror)
        both = forwards + backwards - scan
        return (both - both.logsumexp(1, keepdim=True)).index_select(0, chains.back)

    def log_partition(self, scores: Tensor, chains: Chains) -> Tensor:
        """The log of the sum over all paths, of each sentence, longest first."""
        steps, first, last = self.tables(scores)
        found = self._scan(scores.index_select(0, chains.order), chains, steps, first)
        return (found.index_select(0, chains.last) + last).logsumexp(1)

    @torch.no_grad()
    def best(self, scores: Tensor, chains: Chains) -> Tensor:
        """The tag of each word on the best path of its sentence (Viterbi 1967), int64 [n]."""
        steps, first, last = self.tables(scores)
        parts = scores.index_select(0, chains.order).split(chains.sizes)
        if not chains.sizes:
            return scores.new_zeros(0, dtype=torch.long)
        sums, pointers = [first + parts[0]], []
        for part in parts[1:]:
            top, pointer = (sums[-1][: len(part), :, None] + steps).max(1)
            sums.append(top + part)
            pointers.append(pointer)
        tags: list[Tensor] = []
        after = scores.new_zeros(0, dtype=torch.long)
        for i in reversed(range(len(parts))):  # those whose last word this is begin here
            chosen = (sums[i][len(after) :] + last).argmax(1)
            if len(after):
                chosen = torch.cat([pointers[i].gather(1, after[:, None])[:, 0], chosen])
            tags.append(chosen)
            after = chosen
        return torch.cat(tags[::-1]).index_select(0, chains.back)

    def tables(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The scores of steps, of beginning and of ending, as precise as `scores`, with what is barred."""
        barred = torch.from_numpy(self.barred).to(scores)
        steps, first, last = (p.to(scores.dtype) for p in (self.steps, self.first, self.last))
        return steps + barred[:-1, :-1], first + barred[-1, :-1], last + barred[:-1, -1]

    @staticmethod
    def _scan(scan: Tensor, chains: Chains, steps: Tensor, first: Tensor) -> Tensor:
        """The log of the sum over all paths that end in each tag of each word."""
        found: list[Tensor] = []
        for part in scan.split(chains.sizes):
            found.append(part + (found[-1][: len(part), :, None] + steps).logsumexp(1) if found else part + first)
        return torch.cat(found) if found else scan
