"""Packed batches of token sequences, and a model that reads them.

On a GPU, a thread packs the next batches, if there are several, while one is computed, and results are copied to the
host meanwhile.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from polyseme.errors import ConfigError, TextError, TextTooLongError, is_out_of_memory
from polyseme.families import text_start_id
from polyseme.generation.text import first_id
from polyseme.inference.results import TextScore
from polyseme.nn.attention.relative import QueryStream
from polyseme.nn.model import Model
from polyseme.nn.packing import Inputs, PackedLayout, token_budget_batches, tree_map
from polyseme.progress import progress
from polyseme.text.cached_encoder import concat_ranges
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.loop import prefetch
from polyseme.weights.pooling import TextPooling

T = TypeVar("T")
MAX_BATCH_TOKENS = {"cuda": 65536, "cpu": 2048}
MAX_COPIES_IN_FLIGHT = 3
ROWS_PER_SOFTMAX = 1024  # bounds the memory of [rows, vocabulary]


def select_device(name: object = None) -> torch.device:
    """Return the device of a name, by default a GPU if there is one; raise `ConfigError` if there is no such device."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)  # type: ignore[call-overload]
        torch.empty(1, device=device).cpu()
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:  # torch has no common class of such errors
        if is_out_of_memory(error):
            raise
        available = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        problem = f"`device` is {name!r}, which cannot be used on this machine"
        raise ConfigError(f"{problem}; valid: {', '.join(available)}") from None
    return device


class PackedBatch(NamedTuple):
    """The indices of some sequences, and the sequences as the inputs of a trunk."""

    indices: np.ndarray
    inputs: Inputs


def packed_batches(
    ids: Sequence[np.ndarray], segments: Sequence[np.ndarray] | None, max_batch_tokens: int, device: torch.device
) -> Iterator[PackedBatch]:
    """Pack sequences into batches of about `max_batch_tokens` tokens on a device, shortest first.

    The last batch, whose copy to the host nothing hides, thus has the fewest results.
    """
    lengths = np.array([len(row) for row in ids], dtype=np.int64)
    if not len(lengths):
        return iter(())
    flat_segments = None if segments is None else np.concatenate(segments)
    return split_packed(np.concatenate(ids), flat_segments, lengths, max_batch_tokens, device)


def split_packed(
    ids: np.ndarray, segments: np.ndarray | None, lengths: np.ndarray, max_batch_tokens: int, device: torch.device
) -> Iterator[PackedBatch]:
    """Split concatenated sequences of these lengths into the batches of `packed_batches`."""
    starts = np.cumsum(lengths) - lengths

    def build(index: np.ndarray) -> Inputs:
        rows = concat_ranges(starts[index], lengths[index])

        def take(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array[rows].astype(np.int64, copy=False))

        segment_ids = None if segments is None else take(segments)
        return Inputs(take(ids), PackedLayout.from_lengths(lengths[index]), segment_ids)

    for index, inputs in device_batches(build, lengths, max_batch_tokens, device):
        yield PackedBatch(index, inputs)


def device_batches(
    build: Callable[[np.ndarray], T], lengths: np.ndarray, max_batch_tokens: int, device: torch.device
) -> Iterator[tuple[np.ndarray, T]]:
    """Build batches of sequences of these lengths from their indices, shortest first, and copy them to a device."""
    is_cuda, total = device.type == "cuda", int(lengths.sum())
    indices = list(token_budget_batches(lengths, max_batch_tokens))[::-1]

    def host_batches() -> Iterator[tuple[np.ndarray, T]]:
        for index in indices:
            batch = build(index)
            yield index, tree_map(batch, Tensor.pin_memory) if is_cuda else batch

    is_ahead = is_cuda and len(indices) > 1  # for a single batch, a thread would only cost time
    with progress("read", total, "tokens", show=total > 20 * max_batch_tokens) as bar:
        for index, batch in prefetch(host_batches()) if is_ahead else host_batches():
            yield index, tree_map(batch, lambda tensor: tensor.to(device, non_blocking=True))
            bar.advance(int(lengths[index].sum()))


def mean_pool(hidden: Tensor, layout: PackedLayout) -> Tensor:
    """Return the mean over each sequence's tokens in float32."""
    if hidden.is_cuda:
        lengths = layout.cu_seqlens[: len(layout.lengths) + 1].diff().long()
        # unsafe: without a check of the lengths, for which the host would wait
        return torch.segment_reduce(hidden.float(), "mean", lengths=lengths, axis=0, unsafe=True)
    runs = hidden.split([n * length for n, length in layout.equal_length_runs])
    shapes = layout.equal_length_runs
    return torch.cat([run.view(*shape, *run.shape[1:]).float().mean(1) for shape, run in zip(shapes, runs)])


def inputs_for_head(
    model: Model, head: str, inputs: Inputs, rows: Tensor, masked: Tensor | None = None
) -> tuple[Inputs, Tensor]:
    """Return the inputs with which a language-model head predicts the tokens at `rows`, and the rows of its states.

    The query stream of a masked head (XLNet) sees neither the tokens that it predicts nor those at `masked`. A hybrid
    trunk (GPT-BERT) reads left to right for the next token.
    """
    layout, device = inputs.layout, rows.device
    if head == "masked" and model.config.trunk.has_query_stream:
        order = torch.full_like(inputs.tokens, -1)
        order = (order if masked is None else order.index_fill(0, masked, 1)).index_fill(0, rows, 0)
        counts = np.histogram(rows.cpu().numpy(), layout.cu_seqlens.cpu().numpy())[0]
        inputs = replace(
            inputs, query_stream=QueryStream(order, rows, PackedLayout.from_lengths(counts, device=device))
        )
        rows = layout.num_tokens + torch.arange(len(rows), device=device)
    if head == "next" and model.config.trunk.is_hybrid:
        inputs = replace(inputs, layout=layout.as_causal())
    return inputs, rows


def to_host_async(results: Iterator[tuple[np.ndarray, Tensor]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Copy the results of batches to the host, from a GPU while the next ones are computed."""
    in_flight: deque[tuple[np.ndarray, Tensor, torch.cuda.Event]] = deque()

    def pop_oldest() -> tuple[np.ndarray, np.ndarray]:
        index, host, event = in_flight.popleft()
        event.synchronize()
        return index, host.numpy()

    for index, device_tensor in results:
        if not device_tensor.is_cuda:
            yield index, device_tensor.numpy()
            continue
        host = torch.empty(device_tensor.shape, dtype=device_tensor.dtype, pin_memory=True)
        host.copy_(device_tensor, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        in_flight.append((index, host, event))
        if len(in_flight) > MAX_COPIES_IN_FLIGHT:
            yield pop_oldest()
    while in_flight:
        yield pop_oldest()


@dataclass(frozen=True, eq=False)
class PackedModel:
    """A model, its tokenizer, and the number of tokens that it reads at once."""

    model: Model
    tokenizer: Tokenizer
    device: torch.device
    max_batch_tokens: int
    pooling: TextPooling

    @property
    def max_len(self) -> int:
        """The longest sequence that the model reads, in tokens."""
        return self.model.config.trunk.embeddings.max_len

    @property
    def bos_ids(self) -> list[int]:
        """The token before a text for a causal model; GPT (2018) has none, so its first token is not predicted."""
        boundaries = self.tokenizer.special_token_ids.text_boundaries
        return list(first_id(text_start_id(self.model.config.family, boundaries)))

    @property
    def eos_ids(self) -> list[int]:
        """The token after a text for a model that reads backward."""
        special_ids = self.tokenizer.special_token_ids
        return list(first_id(special_ids.text_boundaries[1], special_ids.bos))

    @property
    def max_pooled_len(self) -> int:
        """The longest text, in tokens with special ones, that a vector is computed of."""
        return min(self.pooling.max_len or self.max_len, self.max_len)

    def check_length(self, length: int, text: str, max_len: int = 0) -> None:
        """Raise `DataError` if a text has more tokens than the model reads, or than `max_len`."""
        max_len = max_len or self.max_len
        if length > max_len:
            excerpt = re.sub(r"\s+", " ", text[:40])
            raise TextTooLongError(
                f"a text of {length} tokens is longer than the model reads ({max_len}): {excerpt!r}…", text
            )

    def encode_sequence(self, text: str, pair: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Encode a text or a pair with its special tokens; returns token ids and segment ids."""
        first = self.tokenizer.encode(text)
        second = None if pair is None else self.tokenizer.encode(pair)
        if not first or second == []:
            raise TextError(f"the text has no tokens: {(text if not first else pair)!r}", text)
        ids, segments = self.tokenizer.build_inputs_with_special_tokens(first, second)
        self.check_length(len(ids), text)
        return np.array(ids), np.array(segments)

    def batches(self, ids: Sequence[np.ndarray], segments: Sequence[np.ndarray] | None = None) -> Iterator[PackedBatch]:
        """Pack sequences into batches on the model's device, without segments if the model has none."""
        used_segments = segments if self.model.config.trunk.num_segments else None
        return packed_batches(ids, used_segments, self.max_batch_tokens, self.device)

    def split(self, ids: np.ndarray, segments: np.ndarray, lengths: np.ndarray) -> Iterator[PackedBatch]:
        """Split concatenated sequences of these lengths into the batches of `batches`."""
        used_segments = segments if self.model.config.trunk.num_segments else None
        return split_packed(ids, used_segments, lengths, self.max_batch_tokens, self.device)

    def log_probs(self, head: str, inputs: Inputs, rows: Tensor, masked: Tensor | None = None) -> Iterator[Tensor]:
        """Yield the log-probabilities of a language-model head at the given rows, [rows, vocabulary], in chunks."""
        layout = inputs.layout
        inputs, rows = inputs_for_head(self.model, head, inputs, rows.to(self.device, non_blocking=True), masked)
        if (selections := self.model.select_rows({head: rows}, layout)) is not None:
            inputs, layout, rows = replace(inputs, rows=selections[head].state_rows), *selections[head][1:]
        hidden = self.model.trunk(inputs).hidden
        for chunk in rows.split(ROWS_PER_SOFTMAX):
            yield self.model.predict(head, hidden, layout, chunk).float().log_softmax(-1)

    def token_log_probs(
        self, head: str, inputs: Inputs, rows: Tensor, targets: Tensor, masked: Tensor | None = None
    ) -> Tensor:
        """Return the log-probability of the target token at each row, float64 [rows]; `masked` tokens are not read."""
        chunks = zip(self.log_probs(head, inputs, rows, masked), targets.split(ROWS_PER_SOFTMAX))
        return torch.cat([chunk.gather(1, chunk_ids[:, None])[:, 0].double() for chunk, chunk_ids in chunks])

    def score_positions(
        self,
        head: str,
        ids: Sequence[np.ndarray],
        positions: Sequence[np.ndarray],
        targets: Sequence[np.ndarray],
        segments: Sequence[np.ndarray] | None = None,
    ) -> list[tuple[TextScore, bool]]:
        """Score the target tokens at some positions of each sequence; also whether each is the most likely one."""
        scores: list[tuple[TextScore, bool]] = [(TextScore(0.0, 0), False)] * len(ids)
        for index, inputs in self.batches(ids, segments):
            starts = np.cumsum([0, *inputs.layout.lengths])
            rows = torch.from_numpy(np.concatenate([start + positions[i] for start, i in zip(starts, index)]))
            target_ids = torch.from_numpy(np.concatenate([targets[i] for i in index])).to(self.device)
            log_probs, is_best = [], []
            for chunk, chunk_ids in zip(self.log_probs(head, inputs, rows), target_ids.split(ROWS_PER_SOFTMAX)):
                log_probs.append(chunk.gather(1, chunk_ids[:, None])[:, 0].double())
                is_best.append(chunk.argmax(-1) == chunk_ids)
            sizes = [len(targets[i]) for i in index]
            parts = zip(torch.cat(log_probs).cpu().split(sizes), torch.cat(is_best).cpu().split(sizes))
            for i, (part, is_part_best) in zip(index, parts):
                scores[i] = TextScore(float(part.sum()), len(part)), bool(is_part_best.all())
        return scores
