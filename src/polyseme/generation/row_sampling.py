"""The tokens of a step for rows that differ in temperature, top_k, top_p, repetition penalty and seed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyseme.generation.config import SamplingConfig
from polyseme.generation.sample import draw_tokens, keep_likely, keep_nucleus
from polyseme.rng import RandomStream, random_bits, uniform

RowIndex = slice | Tensor  # all rows, which need no copy, or some


class RowSampler:
    """Chooses a token for each row by its own config; what it chooses does not depend on the other rows.

    Its tensors hold one parameter per row, so that a step costs the same for rows that are alike and for those that are
    not; sorting for `top_p` is limited to the rows that need it.
    """

    def __init__(self, configs: Sequence[SamplingConfig], keys: Sequence[np.uint64], scores: Tensor):
        """`keys` are the random keys of the texts; `scores` are those of a step, for their shape and device."""
        self.device, vocab_size = scores.device, scores.shape[-1]
        sampled = [row for row, config in enumerate(configs) if config.temperature]
        drawn = [configs[row] for row in sampled]
        self.has_greedy_rows, self.sampled_rows = len(sampled) < len(configs), sampled
        self.sampled = self._index(sampled, len(configs))
        self.keys = np.array([keys[row] for row in sampled], dtype=np.uint64)
        self.temperatures = self._column([config.temperature for config in drawn])
        self.limited_rows = [i for i, config in enumerate(drawn) if 0 < config.top_k < vocab_size]
        self.limited = self._index(self.limited_rows, len(drawn))
        self.top_k = [drawn[i].top_k for i in self.limited_rows]
        self.last_ranks = torch.tensor([[k - 1] for k in self.top_k], dtype=torch.int64, device=self.device)
        self.nucleus_rows = [i for i, config in enumerate(drawn) if config.top_p < 1]
        self.nucleus = self._index(self.nucleus_rows, len(drawn))
        self.top_p = self._column([drawn[i].top_p for i in self.nucleus_rows])
        self.penalized_rows = [row for row, config in enumerate(configs) if config.repetition_penalty != 1]
        self.penalized = self._index(self.penalized_rows, len(configs))
        self.penalties = self._column([configs[row].repetition_penalty for row in self.penalized_rows]).to(scores.dtype)

    def _index(self, rows: Sequence[int], num_rows: int) -> RowIndex:
        if len(rows) == num_rows:
            return slice(None)
        return torch.tensor(rows, dtype=torch.int64, device=self.device)

    def _column(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=self.device)[:, None]

    def __call__(self, scores: Tensor, steps: np.ndarray, seen_tokens: Sequence[Tensor | None]) -> Tensor:
        """Choose tokens by scores [rows, vocabulary], which are modified.

        `steps` counts the tokens of each row so far; `seen_tokens` are the tokens that the text of each row contains,
        bool [vocabulary], where its config has a penalty for repetition; the new ones are added.
        """
        seen: list[Any] = [seen_tokens[row] for row in self.penalized_rows]
        if seen:
            chosen = scores[self.penalized]
            penalized = torch.where(chosen > 0, chosen / self.penalties, chosen * self.penalties)
            scores[self.penalized] = torch.where(torch.stack(seen), penalized, chosen)
        if self.has_greedy_rows:
            tokens = scores.argmax(-1)
        else:
            tokens = torch.empty(len(scores), dtype=torch.int64, device=self.device)
        if self.sampled_rows:
            tokens[self.sampled] = self._draw(scores[self.sampled], steps[self.sampled_rows])
        for row, row_tokens in zip(self.penalized_rows, seen):
            row_tokens[tokens[row]] = True
        return tokens

    def _draw(self, scores: Tensor, steps: np.ndarray) -> Tensor:
        """Sample as `sample_tokens` does, with parameters for each row."""
        probs = (scores.double() / self.temperatures).softmax(-1)
        if self.limited_rows:
            chosen = probs[self.limited]
            threshold = chosen.topk(max(self.top_k)).values.gather(1, self.last_ranks)
            probs[self.limited] = keep_likely(chosen, threshold)
        if self.nucleus_rows:
            probs[self.nucleus] = keep_nucleus(probs[self.nucleus], self.top_p)
        bits = random_bits(self.keys, steps, RandomStream.GENERATION)
        return draw_tokens(probs, torch.from_numpy(uniform(bits)).to(self.device))
