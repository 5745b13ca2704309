"""Next-token prediction over consecutive segments, for models with memory (Dai et al. 2019, §3.2)."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch

from polyseme.corpus.sampling import SampleTable
from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError, DataError
from polyseme.nn.model import ModelConfig
from polyseme.objectives.base import Objective
from polyseme.objectives.batch import Batch, Targets
from polyseme.objectives.packing import SpecialIds, StaticShape, StreamingBatchBuilder, pack
from polyseme.rng import RandomStream, bernoulli, derive_sample_keys, normal, random_bits

HALF_LENGTH_PROB = 0.05  # of steps whose segments have half the length
MIN_SEGMENT_LEN = 5


@dataclass(frozen=True)
class StreamingCausalLM(Objective):
    """The corpus as one stream, with `<eos>` before and after each document, in segments of `max_len` tokens.

    A step processes the next segment of many parallel lanes with the memory of each lane: truncated back-propagation
    through time, across document borders too, as in the paper's code. An epoch starts without memory.

    With `bptt_std`, the length of a step's segments is drawn from a normal distribution around `max_len` (in one step
    of twenty, around half of it), and the learning rate of the step is proportional to it, so that gradients are not
    always cut at the same tokens (Merity et al. 2018, §4.1). With `direction` "backward", the stream is processed from
    its end, and a token predicts the one before it. `activation_reg` is the weight of the mean square of the states,
    `temporal_activation_reg` that of their change from token to token before dropout (§4.6, AR and TAR, with α = 2 and
    β = 1).
    """

    has_static_shapes: ClassVar[bool] = True
    needs_bounded_memory: ClassVar[bool] = True
    bptt_std: float = 0.0
    direction: Literal["forward", "backward"] = "forward"
    activation_reg: float = 0.0
    temporal_activation_reg: float = 0.0

    def __post_init__(self) -> None:
        self.check_range(0, 1e6, "bptt_std", "activation_reg", "temporal_activation_reg")

    def max_input_len(self, max_len: int) -> int:
        """Return the maximum length of a segment: draws are clipped at six standard deviations."""
        return int(max_len + 6 * self.bptt_std)

    def check(self, model: ModelConfig, max_len: int) -> None:
        super().check(model, max_len)
        if self.direction == "forward" and not model.trunk.causal:
            raise ConfigError(f"{type(self).__name__} needs a causal trunk, and that of {model.family} is not")

    @property
    def terms(self) -> tuple[str, ...]:
        return ("next",) if self.direction == "forward" else ("previous",)

    def bind(self, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int = 0) -> StreamingBatchBuilder:
        return _StreamingCausalLMBatchBuilder(self, corpus, special_ids, max_len, seed)


class _StreamingCausalLMBatchBuilder(StreamingBatchBuilder):
    def __init__(self, config: StreamingCausalLM, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int):
        self.config, self.corpus, self.seed = config, corpus, seed
        self.eos = special_ids.require_bos_eos("StreamingCausalLM")[1]
        borders = np.unique(np.asarray(corpus.sentence_offsets)[np.asarray(corpus.document_offsets)])
        self.eos_positions = borders + np.arange(len(borders))  # in the stream
        self.stream_end = int(self.eos_positions[-1]) // max_len * max_len  # a whole number of segments
        if not self.stream_end:
            stream = f"the text has {self.eos_positions[-1]} tokens with the ends of documents"
            raise DataError(f"{stream}, fewer than max_len, {max_len}: use more text, or set a smaller max_len")
        starts = np.arange(0, self.stream_end, max_len)
        numbers, sizes = np.arange(len(starts)), np.full(len(starts), max_len)
        super().__init__(SampleTable(starts, sizes, numbers, np.append(starts, 0), numbers, sizes), max_len)

    def batch(self, ids: np.ndarray, epoch: int, shape: StaticShape | None = None) -> Batch:
        return self.segment_batch(self.samples.starts[ids], self.max_len)

    def cuts(self, length: int, epoch: int) -> np.ndarray:
        if not self.config.bptt_std:
            return super().cuts(length, epoch)
        max_segment_len = self.config.max_input_len(self.max_len)
        steps = np.arange(-(-length // min(MIN_SEGMENT_LEN, max_segment_len)))  # an upper bound
        step_keys = derive_sample_keys(self.seed, epoch, steps)
        is_short = bernoulli(random_bits(step_keys, 0, RandomStream.BPTT_IS_SHORT), HALF_LENGTH_PROB)
        noise = normal(*(random_bits(step_keys, i, RandomStream.BPTT_LENGTH) for i in (0, 1)))
        lengths = np.where(is_short, self.max_len / 2, self.max_len) + self.config.bptt_std * noise
        ends = np.cumsum(np.clip(lengths.astype(np.int64), MIN_SEGMENT_LEN, max_segment_len))
        return np.concatenate([[0], ends[ends < length], [length]])

    def segment_batch(self, offsets: np.ndarray, length: int) -> Batch:
        is_backward = self.config.direction == "backward"
        starts = self.stream_end - offsets - length if is_backward else offsets
        # one token longer than the segment: forward, the input is all but its last token, the labels all but its first
        positions = (starts[:, None] + np.arange(length + 1)).ravel()
        num_eos_before = np.searchsorted(self.eos_positions, positions, side="right")
        is_text = self.eos_positions[num_eos_before - 1] != positions
        extended = np.full(len(positions), self.eos)
        token_offsets = (positions - num_eos_before)[is_text]
        starts_run = np.diff(num_eos_before[is_text], prepend=-1) | (np.diff(token_offsets, prepend=-2) != 1)
        run_starts = np.flatnonzero(starts_run)
        if len(run_starts):
            run_lengths = np.diff(run_starts, append=len(token_offsets))
            extended[is_text] = self.corpus.gather_tokens(token_offsets[run_starts], run_lengths)
        lanes = extended.reshape(len(starts), length + 1)
        tokens, labels = lanes[:, :-1].ravel(), lanes[:, 1:].ravel()
        if is_backward:
            tokens, labels = labels, tokens
        token_labels = {self.config.terms[0]: (np.arange(len(tokens)), labels)}
        batch = pack(tokens, np.full(len(starts), length), None, token_labels)
        targets = batch.targets | self._regularizer_targets(len(tokens), len(starts))
        return replace(batch, targets=targets, lr_scale=length / self.max_len if self.config.bptt_std else 1.0)

    def _regularizer_targets(self, num_tokens: int, num_lanes: int) -> dict[str, Targets]:
        """Return targets of the terms about the states, which have no labels, for their counts."""
        empty = torch.zeros(0, dtype=torch.int64)
        counts = {"activation_reg": num_tokens, "temporal_activation_reg": num_tokens - num_lanes}
        weights = {name: getattr(self.config, name) for name in counts}
        return {name: Targets(empty, empty, counts[name], weight) for name, weight in weights.items() if weight}
