"""Linear-chain conditional random field over the words of a sentence (Lafferty et al. 2001; Lample et al. 2016).

The score of a tag sequence is the sum of emission and transition scores. Sums over sequences are computed in log space,
for all sentences of a packed batch at once, longest first, so that nothing is padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from polyseme.config import Config
from polyseme.nn.heads.tag_schemes import allowed_transitions
from polyseme.nn.packing import time_major_order

FORBIDDEN_SCORE = -1e4  # of a forbidden transition: its probability is 0 in any precision


@dataclass(frozen=True, eq=False)
class ChainLayout:
    """Order in which a scan visits the concatenated rows of several sentences: all first words, all second words, …

    At each time step the longest sentence comes first. Tensors are indexed by row or by scan position, as noted.
    """

    batch_sizes: list[int]  # number of sentences with an i-th word
    is_first: Tensor  # bool [rows], whether a row is a first word
    sequence_index: Tensor  # int64 [rows], sentence of each row, by its rank in the scan
    order: Tensor  # int64 [positions], row at each scan position
    inverse_order: Tensor  # int64 [rows], scan position of each row
    reversed_order: Tensor  # int64 [positions], scan position of the same word if all sentences were reversed
    last_index: Tensor  # int64 [sentences], scan positions of last words

    @classmethod
    def from_lengths(cls, lengths: Sequence[int], device: str | torch.device = "cpu") -> Self:
        """Build the layout for sentences of these lengths; empty ones are skipped."""
        batch_sizes, sentences, order, inverse, reverse, ranks = time_major_order(np.array(lengths, dtype=np.int64))
        n = len(sentences)  # reversed, the first n words of the scan are the last words of the sentences
        arrays = inverse < n, ranks[inverse], order, inverse, reverse, reverse[:n]
        return cls(batch_sizes.tolist(), *(torch.from_numpy(array).to(device) for array in arrays))


@dataclass(frozen=True)
class CRFConfig(Config):
    """CRF layer; if `constrained`, only `allowed_transitions` are possible, in training and decoding."""

    constrained: bool = True

    def build(self, labels: Sequence[str]) -> CRF:
        """Create the module."""
        return CRF(self, labels)


class CRF(nn.Module):
    """CRF layer; `transitions[i, j]` is the score of tag j following tag i."""

    constant_init: ClassVar = {"transitions": 0.0, "start_transitions": 0.0, "end_transitions": 0.0}

    def __init__(self, config: CRFConfig, labels: Sequence[str]):
        super().__init__()
        self.config, num_labels = config, len(labels)
        self.transitions = nn.Parameter(torch.zeros(num_labels, num_labels))
        self.start_transitions, self.end_transitions = (nn.Parameter(torch.zeros(num_labels)) for _ in range(2))
        allowed = allowed_transitions(labels) if config.constrained else np.ones((num_labels + 1,) * 2, dtype=bool)
        self.forbidden = np.where(allowed, 0.0, FORBIDDEN_SCORE)  # a buffer would be lost on the meta device

    def loss(self, emissions: Tensor, layout: ChainLayout, labels: Tensor, ignore_index: int) -> Tensor:
        """Return the summed negative log-likelihood of the true tags; a sentence with an ignored label does not count.

        A true sequence with a forbidden transition has a large but finite loss.
        """
        transitions, start, end = self.constrained_transitions(emissions)
        is_ignored = labels == ignore_index
        tags = labels.masked_fill(is_ignored, 0)
        transition_scores = transitions.flatten().index_select(0, tags.roll(1) * len(start) + tags)
        step_scores = torch.where(layout.is_first, start.index_select(0, tags), transition_scores)
        step_scores = step_scores + emissions.gather(1, tags[:, None])[:, 0]
        last_tags = tags.index_select(0, layout.order.index_select(0, layout.last_index))
        end_scores = end.index_select(0, last_tags)
        path_scores = end_scores.index_add(0, layout.sequence_index, step_scores)
        num_ignored = torch.zeros_like(end_scores).index_add(0, layout.sequence_index, is_ignored.to(end_scores.dtype))
        return torch.where(num_ignored == 0, self.log_partition(emissions, layout) - path_scores, 0.0).sum()

    def log_marginals(self, emissions: Tensor, layout: ChainLayout, temperature: float = 1.0) -> Tensor:
        """Return the log marginal probability of each tag of each word, [n, tags], with scores at a temperature."""
        transitions, start, end = (t / temperature for t in self.constrained_transitions(emissions))
        scan_emissions = emissions.index_select(0, layout.order) / temperature
        reversed_emissions = scan_emissions.index_select(0, layout.reversed_order)
        forward_scores = self._forward_algorithm(scan_emissions, layout, transitions, start)
        backward_scores = self._forward_algorithm(reversed_emissions, layout, transitions.t(), end)
        joint_scores = forward_scores + backward_scores.index_select(0, layout.reversed_order) - scan_emissions
        return (joint_scores - joint_scores.logsumexp(1, keepdim=True)).index_select(0, layout.inverse_order)

    def log_partition(self, emissions: Tensor, layout: ChainLayout) -> Tensor:
        """Return the log partition function of each sentence, longest first."""
        transitions, start, end = self.constrained_transitions(emissions)
        scores = self._forward_algorithm(emissions.index_select(0, layout.order), layout, transitions, start)
        return (scores.index_select(0, layout.last_index) + end).logsumexp(1)

    @torch.no_grad()
    def decode(self, emissions: Tensor, layout: ChainLayout) -> Tensor:
        """Return the tags of the best sequence of each sentence (Viterbi 1967), int64 [n]."""
        transitions, start, end = self.constrained_transitions(emissions)
        if not layout.batch_sizes:
            return emissions.new_zeros(0, dtype=torch.long)
        step_emissions = emissions.index_select(0, layout.order).split(layout.batch_sizes)
        path_scores, backpointers = [start + step_emissions[0]], []
        for emission in step_emissions[1:]:
            best_scores, backpointer = (path_scores[-1][: len(emission), :, None] + transitions).max(1)
            path_scores.append(best_scores + emission)
            backpointers.append(backpointer)
        tags: list[Tensor] = []
        next_tags = emissions.new_zeros(0, dtype=torch.long)
        for i in reversed(range(len(step_emissions))):  # sentences that end at this step join here
            best_tags = (path_scores[i][len(next_tags) :] + end).argmax(1)
            if len(next_tags):
                best_tags = torch.cat([backpointers[i].gather(1, next_tags[:, None])[:, 0], best_tags])
            tags.append(best_tags)
            next_tags = best_tags
        return torch.cat(tags[::-1]).index_select(0, layout.inverse_order)

    def constrained_transitions(self, emissions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return transition, start and end scores in the type of `emissions`, with the constraints added."""
        forbidden = torch.from_numpy(self.forbidden).to(emissions)
        parameters = self.transitions, self.start_transitions, self.end_transitions
        transitions, start, end = (p.to(emissions.dtype) for p in parameters)
        return transitions + forbidden[:-1, :-1], start + forbidden[-1, :-1], end + forbidden[:-1, -1]

    @staticmethod
    def _forward_algorithm(emissions: Tensor, layout: ChainLayout, transitions: Tensor, start: Tensor) -> Tensor:
        """Return the log sum over all sequences that end in each tag of each word, in scan order."""
        scores: list[Tensor] = []
        for emission in emissions.split(layout.batch_sizes):
            previous = (scores[-1][: len(emission), :, None] + transitions).logsumexp(1) if scores else start
            scores.append(emission + previous)
        return torch.cat(scores) if scores else emissions
