"""Batches: the inputs of a trunk and the targets of each loss term."""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from polyseme.nn.heads.base import IGNORE_INDEX as IGNORE_INDEX
from polyseme.nn.memory import Memory
from polyseme.nn.model import Model, SparseBatch
from polyseme.nn.packing import Inputs, tree_map
from polyseme.nn.trunks.base import TrunkConfig, TrunkOutput, forward_chunked


@dataclass(frozen=True, eq=False)
class Targets:
    """The rows that a loss term predicts, and their labels.

    `rows` index tokens, or sequences for a term about whole sequences; the head defines what several columns mean.
    `count` is the number of labels that count, known before the forward pass. `weight` is the factor of the term in
    the loss. Where a softmax is over rows and not over labels, `groups` number the rows of each, -1 in filler.
    """

    rows: Tensor  # int64 [n] or [n, columns]
    labels: Tensor  # int64 [n] or [n, 2], IGNORE_INDEX in filler; float32 for regression, NaN in filler
    count: int
    weight: float = 1.0
    label_smoothing: float = 0.0  # in training
    groups: Tensor | None = None  # int64 [n]


class BatchExtra:
    """How an objective runs the trunk on its batches. This one makes one plain call; subclasses do more."""

    supports_cuda_graphs: ClassVar[bool] = True
    num_extra_forwards: ClassVar[int] = 0  # forward passes in a training step beyond the first

    def forward(self, model: Model, inputs: Inputs, layers: tuple[int, ...] = ()) -> TrunkOutput:
        """Run the trunk."""
        output: TrunkOutput = model.trunk(inputs, layers=layers)
        return output

    @property
    def has_plain_forward(self) -> bool:
        """Whether `forward` is one plain call of the trunk."""
        return type(self).forward is BatchExtra.forward

    def prepare(self, model: Model, batch: "Batch") -> "Batch":
        """Change a batch before a training step."""
        return batch

    @property
    def memory(self) -> Memory | None:
        """The memory that the trunk continues from."""
        return None

    def with_memory(self, memory: Memory | None) -> "BatchExtra":
        """Return a copy that continues from this memory, for a forward pass that is captured or recomputed."""
        return self

    def store_memory(self, memory: Memory) -> None:
        """Keep the memory for the next batch."""


NO_EXTRA = BatchExtra()


class _Movable:
    """Copies of a batch on a device or in pinned memory."""

    def to(self, device: str | torch.device) -> Self:
        """Copy the batch to a device."""
        return tree_map(self, lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        """Copy the batch to pinned memory, from which a GPU copies asynchronously."""
        return tree_map(self, lambda tensor: tensor.pin_memory())


@dataclass(frozen=True, eq=False)
class Batch(_Movable):
    """One micro-batch: the inputs of the trunk, the targets of each term, and what the objective adds.

    `num_tokens` does not count filler and counts the tokens of sources. `lr_scale` is a factor on the learning rate of
    the step.
    """

    inputs: Inputs
    targets: dict[str, Targets] = field(default_factory=dict)
    num_tokens: int = 0
    lr_scale: float = field(default=1.0, metadata={"host_only": True})
    extra: BatchExtra = NO_EXTRA

    def counts(self) -> dict[str, int]:
        """Return the number of labels of each term."""
        return {name: targets.count for name, targets in self.targets.items()}

    def for_trunk(self, trunk: TrunkConfig) -> Self:
        """Return the batch without the inputs that a trunk does not take."""
        inputs = trunk.omit_unsupported(self.inputs)
        return self if inputs is self.inputs else replace(self, inputs=inputs)

    def forward(self, model: Model, layers: tuple[int, ...] = ()) -> TrunkOutput:
        """Run the trunk of a model on the batch."""
        return self.extra.forward(model, self.inputs, layers)

    def forward_for_head(self, model: Model, head: str) -> tuple[Tensor, Self]:
        """Compute the states that one head reads; return them, and the batch with their layout and rows."""
        inputs, targets = self.inputs, self.targets[head]
        selections = model.select_rows({head: targets.rows}, inputs.layout)
        if selections is None:
            return model.trunk(inputs).hidden, self
        state_rows, layout, rows = selections[head]
        batch = replace(self, inputs=replace(inputs, layout=layout), targets={head: replace(targets, rows=rows)})
        return model.trunk(replace(inputs, rows=state_rows)).hidden, batch


@dataclass(frozen=True, eq=False)
class SparseUpdateBatch(_Movable):
    """One micro-batch of word2vec or GloVe, whose heads compute the gradients of table rows without running a trunk."""

    term: str
    examples: SparseBatch
    count: int  # of predicted words
    num_tokens: int
    lr_scale: ClassVar[float] = 1.0

    def counts(self) -> dict[str, int]:
        """Return the number of predictions of its term."""
        return {self.term: self.count}


AnyBatch = Batch | SparseUpdateBatch


class SegmentState:
    """The memory that consecutive batches pass on. Not a dataclass: copies of a batch share it."""

    def __init__(self, memory: Memory | None = None):
        self.memory = memory


@dataclass(frozen=True, eq=False)
class SegmentExtra(BatchExtra):
    """The batch continues the one before it, from the memory in `state`, unless it `starts_fresh`."""

    state: SegmentState
    starts_fresh: bool = False

    def forward(self, model: Model, inputs: Inputs, layers: tuple[int, ...] = ()) -> TrunkOutput:
        output: TrunkOutput = model.trunk(inputs, memory=self.memory, layers=layers, return_memory=True)
        assert output.memory is not None
        self.state.memory = output.memory.detach()
        return output

    @property
    def memory(self) -> Memory | None:
        return None if self.starts_fresh else self.state.memory

    def with_memory(self, memory: Memory | None) -> "SegmentExtra":
        return SegmentExtra(SegmentState(memory))

    def store_memory(self, memory: Memory) -> None:
        self.state.memory = memory


@dataclass(frozen=True, eq=False)
class ChunkedExtra(BatchExtra):
    """Sequences are processed `chunk_size` tokens at a time; the last `grad_tokens` have gradients (0: all)."""

    chunk_size: int
    grad_tokens: int = 0
    supports_cuda_graphs: ClassVar[bool] = False

    def forward(self, model: Model, inputs: Inputs, layers: tuple[int, ...] = ()) -> TrunkOutput:
        assert not layers, "chunked processing returns the last layer only"
        return TrunkOutput(forward_chunked(model.trunk, inputs, self.chunk_size, self.grad_tokens), {})


@dataclass(frozen=True, eq=False)
class RecomputedExtra(BatchExtra):
    """Sequences are processed in parts of at most `max_tokens` tokens, whose activations the backward pass recomputes.

    So a loss can compare all sequences of a large batch (in-batch negatives) in the memory of one part and the last
    states of all. The gradients are exact, and dropout is the same in both passes (Gao et al. 2021, GradCache).
    """

    max_tokens: int
    supports_cuda_graphs: ClassVar[bool] = False
    num_extra_forwards: ClassVar[int] = 1

    def forward(self, model: Model, inputs: Inputs, layers: tuple[int, ...] = ()) -> TrunkOutput:
        assert not layers, "recomputed parts return the last layer only"

        def hidden_states(part: Inputs) -> Tensor:
            hidden: Tensor = model.trunk(part).hidden
            return hidden

        parts = [checkpoint(hidden_states, part, use_reentrant=False) for part in inputs.split(self.max_tokens)]
        return TrunkOutput(torch.cat(parts), {})


@dataclass(frozen=True, eq=False)
class WordDropoutExtra(BatchExtra):
    """In training, masked tokens are read as another token (Bowman et al. 2016, §3.1)."""

    mask: Tensor  # bool [T]
    token_id: int

    def prepare(self, model: Model, batch: Batch) -> Batch:
        tokens = batch.inputs.tokens.masked_fill(self.mask, self.token_id)
        return replace(batch, inputs=replace(batch.inputs, tokens=tokens))


@dataclass(frozen=True, eq=False)
class ScheduledSamplingExtra(BatchExtra):
    """In training, masked tokens are replaced by what the model predicts there (Bengio et al. 2015).

    The predictions are those of one forward pass over the true target (Mihaylova and Martins 2019, §3).
    """

    mask: Tensor  # bool [T]
    num_extra_forwards: ClassVar[int] = 1

    @torch.no_grad()
    def prepare(self, model: Model, batch: Batch) -> Batch:
        (term,) = batch.targets
        inputs = batch.inputs
        predicted_ids = model.predict(term, batch.forward(model).hidden, inputs.layout).argmax(-1)
        tokens = torch.where(self.mask, predicted_ids.roll(1), inputs.tokens)
        return replace(batch, inputs=replace(inputs, tokens=tokens))
