"""Classification head: labels of sequences or tokens, numbers, spans and choices."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from polyseme.nn.heads.base import IGNORE_INDEX, Head, HeadConfig, HeadPooling, PoolFn, RowSelection
from polyseme.nn.heads.crf import CRFConfig
from polyseme.nn.layers.block import ACTIVATIONS, ActivationName, AnyNormConfig, NoNormConfig
from polyseme.nn.packing import PackedLayout
from polyseme.nn.trunks.base import pool_final_states
from polyseme.nn.trunks.feature_network import BiLSTM


@dataclass(frozen=True)
class ClassificationHeadConfig(HeadConfig):
    """A linear layer over labels, for each token (tagging) or one pooled vector per sequence (classification).

    Some families have a `dense` layer (of `hidden_dim` features; 0 keeps the size), an activation and a norm before
    it, and some a norm and dropout before those. Without labels the output is a number (regression); a single label is
    the score of one candidate (multiple choice). With a `crf`, the labels of a sequence are decoded together. With a
    `bilstm_dim`, a BiLSTM with that many units in each direction reads the trunk's states (Devlin et al. 2019, §5.1);
    the head reads its states, and its final states in place of the pooled vector.
    """

    labels: tuple[str, ...]
    pooling: HeadPooling = "pooled"
    dropout: float = 0.0
    bias: bool = True
    dense: bool = False
    dense_bias: bool = True
    activation: ActivationName = "tanh"
    norm: AnyNormConfig = field(default_factory=NoNormConfig)
    input_dropout: float = 0.0
    input_norm: AnyNormConfig = field(default_factory=NoNormConfig)
    hidden_dim: int = 0
    crf: CRFConfig | None = None
    bilstm_dim: int = 0

    def __post_init__(self) -> None:
        self.check_range(0, 1 << 20, "bilstm_dim")

    @property
    def is_published(self) -> bool:
        return not self.bilstm_dim

    def layer_dims(self, dim: int) -> tuple[int, int, int]:
        """Return the input sizes of the first and of the last layer, and the number of outputs."""
        dim = 2 * self.bilstm_dim or dim
        input_dim = 3 * dim if self.pooling == "concat" else dim
        return input_dim, self.hidden_dim if self.dense and self.hidden_dim else input_dim, len(self.labels) or 1

    def token_params(self, dim: int) -> int:
        return 8 * self.bilstm_dim * (dim + self.bilstm_dim)

    def matmul_params(self, dim: int) -> int:
        input_dim, hidden_dim, num_outputs = self.layer_dims(dim)
        return hidden_dim * num_outputs + (input_dim * hidden_dim if self.dense else 0)

    def build(self, dim: int) -> Head:
        return ClassificationHead(self, dim)


class ClassificationHead(Head):
    """Linear classifier of tokens or sequences, with optional layers before it."""

    def __init__(self, config: ClassificationHeadConfig, dim: int):
        super().__init__(config)
        self.bilstm = BiLSTM(dim, config.bilstm_dim) if config.bilstm_dim else None
        self.needs_host_sync = config.bilstm_dim > 0  # for the order of its steps, which depends on the lengths
        input_dim, hidden_dim, num_outputs = config.layer_dims(dim)
        self.input_norm = config.input_norm.build(input_dim)
        self.dense = nn.Linear(input_dim, hidden_dim, bias=config.dense_bias) if config.dense else None
        self.input_dropout = nn.Dropout(config.input_dropout)
        self.norm = config.norm.build(hidden_dim)
        self.dropout = nn.Dropout(config.dropout)
        self.linear = nn.Linear(hidden_dim, num_outputs, bias=config.bias)
        self.crf = config.crf.build(config.labels) if config.crf else None

    def select_states(self, hidden: Tensor, layout: PackedLayout, rows: Tensor | None, pool: PoolFn) -> Any:
        if self.bilstm is not None:
            hidden, pool = self.bilstm(hidden, layout), pool_final_states
        return super().select_states(hidden, layout, rows, pool)

    def select_rows(self, layout: PackedLayout, rows: Tensor, pooling: str) -> RowSelection | None:
        own_pooling = pooling if self.config.pooling == "pooled" else self.config.pooling
        if own_pooling not in ("first", "last") or self.bilstm is not None:
            return None
        state_rows = layout.first_indices if own_pooling == "first" else layout.last_indices
        return RowSelection(state_rows, layout.one_per_slot(), rows)

    def forward(self, states: Tensor, token_embeddings: Tensor) -> Tensor:
        states = self.input_dropout(self.input_norm(states))
        if self.dense is not None:
            states = ACTIVATIONS[self.config.activation](self.dense(states))
        return self.linear(self.dropout(self.norm(states)))

    def loss(self, states: Any, token_embeddings: Any, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Return the summed cross entropy; for regression the summed squared error, where a label of NaN is ignored.

        Labels of two columns are the rows where spans start and end: each output is a softmax over rows, and the loss
        is the mean of the two (Devlin et al. 2019, §4.2).
        """
        if labels.ndim == 1 and len(self.config.labels) > 1:
            return super().loss(states, token_embeddings, labels, label_smoothing)
        outputs = self(states, token_embeddings).float()  # [rows, outputs]
        if labels.ndim == 2:
            columns = zip(outputs.unbind(1), labels.unbind(1))
            return torch.stack([_choice_loss(logits, target) for logits, target in columns]).mean()
        if self.config.labels:
            return _choice_loss(outputs.squeeze(-1), labels)
        return (outputs.squeeze(-1) - labels).masked_fill(labels.isnan(), 0.0).square().sum()


def _choice_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the summed cross entropy of softmaxes over groups of rows.

    Rows with the same label are the candidates of one question, and the label is the row of the right one. A row
    without a label is a group of its own, whose loss is 0.
    """
    indices = torch.arange(len(logits), device=logits.device)
    targets = torch.where(labels == IGNORE_INDEX, indices, labels)
    group_max = logits.detach().scatter_reduce(0, targets, logits.detach(), "amax")  # keeps the sums within range
    group_sums = torch.zeros_like(logits).index_add(0, targets, (logits - group_max.index_select(0, targets)).exp())
    is_correct = targets == indices
    return torch.where(is_correct, group_max + torch.where(is_correct, group_sums, 1.0).log() - logits, 0.0).sum()
