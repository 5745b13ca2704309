"""Linear-chain conditional random field over the words of a sentence (Lafferty et al. 2001; Lample et al. 2016).

The score of a tag sequence is the sum of emission and transition scores. Sums over sequences are computed in log space,
for all sentences of a packed batch at once, longest first, so that nothing is padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from polyseme.config import Config
from polyseme.nn.heads.tag_schemes import allowed_transitions

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
    def from_lengths(cls, lengths: Sequence[int], device: str | torch.device = "cpu") -> ChainLayout:
        """Build the layout for sentences of these lengths; empty ones are skipped."""
        nonzero_lengths = np.array([n for n in lengths if n], dtype=np.int64)
        rank = np.argsort(-nonzero_lengths, kind="stable")
        starts, sorted_lengths = (np.cumsum(nonzero_lengths) - nonzero_lengths)[rank], nonzero_lengths[rank]
        batch_sizes = np.searchsorted(-sorted_lengths, -np.arange(sorted_lengths.max(initial=0)))
        step_starts = np.cumsum(batch_sizes) - batch_sizes
        sequence_rank = np.arange(batch_sizes.sum()) - np.repeat(step_starts, batch_sizes)
        step = np.repeat(np.arange(len(batch_sizes)), batch_sizes)
        order = starts[sequence_rank] + step
        inverse_order = np.argsort(order)
        arrays = (
            (step == 0)[inverse_order],
            sequence_rank[inverse_order],
            order,
            inverse_order,
            step_starts[sorted_lengths[sequence_rank] - 1 - step] + sequence_rank,
        )
        last_index = step_starts[sorted_lengths - 1] + np.arange(len(sorted_lengths))
        return cls(batch_sizes.tolist(), *(torch.from_numpy(array).to(device) for array in (*arrays, last_index)))


@dataclass(frozen=True)
class CRFConfig(Config):
    """CRF layer; if `constrained`, only `allowed_transitions` are possible, in training and decoding."""

    constrained: bool = True

    def build(self, labels: Sequence[str]) -> CRF:
        """Build the module."""
        return CRF(self, labels)


class CRF(nn.Module):
    """CRF layer; `transitions[i, j]` is the score of tag j following tag i."""

    zero_init: ClassVar = ("transitions", "start_transitions", "end_transitions")

    def __init__(self, config: CRFConfig, labels: Sequence[str]):
        super().__init__()
        self.config = config
        num_labels = len(labels)
        self.transitions = nn.Parameter(torch.zeros(num_labels, num_labels))
        self.start_transitions, self.end_transitions = (nn.Parameter(torch.zeros(num_labels)) for _ in range(2))
        allowed = (
            allowed_transitions(labels) if config.constrained else np.ones((num_labels + 1, num_labels + 1), dtype=bool)
        )
        self.forbidden = np.where(allowed, 0.0, FORBIDDEN_SCORE)  # a buffer would be lost on the meta device

    def loss(self, emissions: Tensor, chain_layout: ChainLayout, labels: Tensor, ignore_index: int) -> Tensor:
        """Return the summed negative log-likelihood of the true tags; a sentence with an ignored label does not count.

        A true sequence with a forbidden transition has a large but finite loss.
        """
        transitions, start_transitions, end_transitions = self.constrained_transitions(emissions)
        is_ignored = labels == ignore_index
        tags = labels.masked_fill(is_ignored, 0)
        transition_scores = transitions.flatten().index_select(0, tags.roll(1) * len(start_transitions) + tags)
        step_scores = (
            torch.where(chain_layout.is_first, start_transitions.index_select(0, tags), transition_scores)
            + emissions.gather(1, tags[:, None])[:, 0]
        )
        end_scores = end_transitions.index_select(
            0, tags.index_select(0, chain_layout.order.index_select(0, chain_layout.last_index))
        )
        path_scores = end_scores.index_add(0, chain_layout.sequence_index, step_scores)
        num_ignored = torch.zeros_like(end_scores).index_add(
            0, chain_layout.sequence_index, is_ignored.to(end_scores.dtype)
        )
        return torch.where(num_ignored == 0, self.log_partition(emissions, chain_layout) - path_scores, 0.0).sum()

    def log_marginals(self, emissions: Tensor, chain_layout: ChainLayout) -> Tensor:
        """Return the log marginal probability of each tag of each word, [n, tags]."""
        transitions, start_transitions, end_transitions = self.constrained_transitions(emissions)
        scan_emissions = emissions.index_select(0, chain_layout.order)
        forward_scores = self._forward_algorithm(scan_emissions, chain_layout, transitions, start_transitions)
        reversed_emissions = scan_emissions.index_select(0, chain_layout.reversed_order)
        backward_scores = self._forward_algorithm(
            reversed_emissions, chain_layout, transitions.t(), end_transitions
        ).index_select(0, chain_layout.reversed_order)
        joint_scores = forward_scores + backward_scores - scan_emissions
        return (joint_scores - joint_scores.logsumexp(1, keepdim=True)).index_select(0, chain_layout.inverse_order)

    def log_partition(self, emissions: Tensor, chain_layout: ChainLayout) -> Tensor:
        """Return the log partition function of each sentence, longest first."""
        transitions, start_transitions, end_transitions = self.constrained_transitions(emissions)
        forward_scores = self._forward_algorithm(
            emissions.index_select(0, chain_layout.order), chain_layout, transitions, start_transitions
        )
        return (forward_scores.index_select(0, chain_layout.last_index) + end_transitions).logsumexp(1)

    @torch.no_grad()
    def decode(self, emissions: Tensor, chain_layout: ChainLayout) -> Tensor:
        """Return the tags of the best sequence of each sentence (Viterbi 1967), int64 [n]."""
        transitions, start_transitions, end_transitions = self.constrained_transitions(emissions)
        step_emissions = emissions.index_select(0, chain_layout.order).split(chain_layout.batch_sizes)
        if not chain_layout.batch_sizes:
            return emissions.new_zeros(0, dtype=torch.long)
        path_scores, backpointers = [start_transitions + step_emissions[0]], []
        for emission in step_emissions[1:]:
            best_scores, backpointer = (path_scores[-1][: len(emission), :, None] + transitions).max(1)
            path_scores.append(best_scores + emission)
            backpointers.append(backpointer)
        tags: list[Tensor] = []
        next_tags = emissions.new_zeros(0, dtype=torch.long)
        for i in reversed(range(len(step_emissions))):  # sentences that end at this step join here
            best_tags = (path_scores[i][len(next_tags) :] + end_transitions).argmax(1)
            if len(next_tags):
                best_tags = torch.cat([backpointers[i].gather(1, next_tags[:, None])[:, 0], best_tags])
            tags.append(best_tags)
            next_tags = best_tags
        return torch.cat(tags[::-1]).index_select(0, chain_layout.inverse_order)

    def constrained_transitions(self, emissions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return transition, start and end scores in the type of `emissions`, with the constraints added."""
        forbidden = torch.from_numpy(self.forbidden).to(emissions)
        transitions, start_transitions, end_transitions = (
            p.to(emissions.dtype) for p in (self.transitions, self.start_transitions, self.end_transitions)
        )
        return (
            transitions + forbidden[:-1, :-1],
            start_transitions + forbidden[-1, :-1],
            end_transitions + forbidden[:-1, -1],
        )

    @staticmethod
    def _forward_algorithm(
        scan_emissions: Tensor, chain_layout: ChainLayout, transitions: Tensor, start_transitions: Tensor
    ) -> Tensor:
        """Return the log sum over all sequences that end in each tag of each word."""
        forward_scores: list[Tensor] = []
        for emission in scan_emissions.split(chain_layout.batch_sizes):
            forward_scores.append(
                emission + (forward_scores[-1][: len(emission), :, None] + transitions).logsumexp(1)
                if forward_scores
                else emission + start_transitions
            )
        return torch.cat(forward_scores) if forward_scores else scan_emissions
