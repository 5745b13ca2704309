"""Task networks over frozen features, as used before 2018: linear, BiLSTM, BiLSTM-max, biattentive, ESIM, BiDAF."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from polyseme.errors import ConfigError
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.layers.frozen_features import FrozenFeatures, FrozenFeaturesConfig
from polyseme.nn.layers.rnn import RecurrentLayer, time_major_of
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.nn.trunks.base import PoolerConfig, Trunk, TrunkConfig, TrunkOutput, derived
from polyseme.nn.trunks.recurrent import RecurrentTrunkConfig


@dataclass(frozen=True)
class FeatureNetworkConfig(TrunkConfig):
    """A network over frozen features.

    "linear" is the features themselves; "bilstm" is a BiLSTM over them (Lample et al. 2016, §4). "bilstm_max"
    takes the maximum of its states over each text and compares the vectors of two texts, or of a text and itself
    (Conneau et al. 2017, §3; the baseline of GLUE, Wang et al. 2019, §5). In "biattentive" they attend to each other
    (McCann et al. 2017, §5; one maxout layer without batch norm); "esim" compares two texts (Chen et al. 2017, §3).
    These three return one vector per sequence, at its first token.
    "bidaf" reads the first text (a context) with the second (a question) and returns a vector for each of its words
    (Seo et al. 2017, §2, without highway layers). With a `relu_dim`, the BiLSTM reads the features through a ReLU layer
    of that size (McCann et al. 2017, §5).
    """

    features: FrozenFeaturesConfig
    network: Literal["linear", "bilstm", "bilstm_max", "biattentive", "esim", "bidaf"] = "bilstm"
    lstm_dim: int = 256  # of a direction
    num_layers: int = 1
    dropout: float = 0.5
    relu_dim: int = 0
    init: InitConfig = field(default_factory=lambda: InitConfig(1.0, scale_by_fan_in=True))

    causal = False
    has_features = True
    num_segments = 2
    has_directions = derived(lambda self: self.network == "bilstm" and not self.features.sources)

    def __post_init__(self) -> None:
        self.check_range(0, 1, "dropout")
        self.check_range(1, 1 << 20, "lstm_dim")
        self.check_range(1, 100, "num_layers")
        self.check_range(0, 1 << 20, "relu_dim")
        if self.relu_dim and self.network == "linear":
            raise ConfigError(f"relu_dim is {self.relu_dim}, expected 0: the linear network has no BiLSTM")
        if self.features.join_dim("between") and (self.network != "bilstm" or self.num_layers < 2):
            actual = f"{self.network} with num_layers {self.num_layers}"
            raise ConfigError(f"features join between layers only in a bilstm with num_layers ≥ 2, not in {actual}")

    embeddings = derived(lambda self: self.features, doc="The input layer.")
    dim = derived(lambda self: self.hidden_dim + self.features.join_dim("output"))

    @property
    def hidden_dim(self) -> int:
        """Size of the network's states, before features are concatenated to them."""
        hidden_dims = {"linear": self.features.input_dim, "bilstm": 2 * self.lstm_dim, "bidaf": 12 * self.lstm_dim}
        return hidden_dims.get(self.network, self.lstm_dim)

    @derived
    def matmul_params(self) -> int:
        input_dim, lstm_dim = self.encoder_input_dim, self.lstm_dim
        relu_params = self.features.input_dim * self.relu_dim
        lstm_params = 4 * lstm_dim * (input_dim + lstm_dim + self.features.join_dim("between"))
        lstm_params += (self.num_layers - 1) * 12 * lstm_dim * lstm_dim
        factors = {"bilstm_max": 8, "bidaf": 8 * (9 + 3 + 3)}
        extra_params = factors.get(self.network, 32) * lstm_dim * lstm_dim
        network_params = {"linear": 0, "bilstm": 2 * lstm_params}.get(self.network, 2 * lstm_params + extra_params)
        return relu_params + network_params

    @property
    def encoder_input_dim(self) -> int:
        """Size of what the BiLSTM reads."""
        return self.relu_dim or self.features.input_dim

    @derived
    def pooler(self) -> PoolerConfig:
        """The mean, or the first token's state where a network returns one vector per sequence."""
        return PoolerConfig("mean" if self.network in ("linear", "bilstm") else "first")

    def build(self) -> Trunk:
        return FeatureNetwork(self)


class BiLSTM(nn.Module):
    """Bidirectional LSTM layers with dropout between them; the second reads `extra_dim` more features."""

    def __init__(self, input_dim: int, hidden_dim: int, num_layers: int = 1, dropout: float = 0.0, extra_dim: int = 0):
        super().__init__()
        input_dims = [input_dim, 2 * hidden_dim + extra_dim, *[2 * hidden_dim] * num_layers][:num_layers]
        settings: Any = {"direction": "bidirectional", "forget_bias": 1.0}
        configs = [RecurrentTrunkConfig(EmbeddingsConfig(1, n, 1), (hidden_dim,), **settings) for n in input_dims]
        self.layers = nn.ModuleList(RecurrentLayer(config, config.stack_directions[0], 1) for config in configs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, layout: PackedLayout, extra_features: Tensor | None = None) -> Tensor:
        """Return the states of the last layer, [T, 2 hidden_dim], the forward direction first."""
        return self.layer_states(x, layout, (len(self.layers),), extra_features)[len(self.layers)]

    def layer_states(
        self, x: Tensor, layout: PackedLayout, layers: Iterable[int], extra_features: Tensor | None = None
    ) -> dict[int, Tensor]:
        """Return the states of some layers, counted from 1, before the dropout between layers."""
        order = time_major_of(layout)
        y, states = order.to_time_major(x), {}
        for depth, layer in enumerate(self.layers, start=1):
            y = self.dropout(y) if depth > 1 else y
            if depth == 2 and extra_features is not None:
                y = torch.cat([y, order.to_time_major(extra_features)], dim=-1)
            y = layer(y, order, layer.initial_states(order.num_sequences, x))[0]  # type: ignore[operator]
            if depth in layers:
                states[depth] = order.from_time_major(y)
        return states


def cross_align(a: Tensor, layout_a: PackedLayout, b: Tensor, layout_b: PackedLayout) -> tuple[Tensor, Tensor]:
    """Attend from each row of a to the rows of its partner b with weights softmax(a·b), and from b to a."""
    padded_a, padded_b = layout_a.pad(a), layout_b.pad(b)
    mask_a, mask_b = layout_a.attention_mask(), layout_b.attention_mask()
    scores = padded_a @ padded_b.transpose(1, 2)
    aligned_to_a = scores.masked_fill(~mask_b[:, None], -torch.inf).softmax(2) @ padded_b
    aligned_to_b = scores.transpose(1, 2).masked_fill(~mask_a[:, None], -torch.inf).softmax(2) @ padded_a
    return layout_a.unpad(aligned_to_a), layout_b.unpad(aligned_to_b)


class Biattention(nn.Module):
    """Biattentive classification network after its encoder; both texts share all weights."""

    def __init__(self, hidden_dim: int, dropout: float):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.integrate = BiLSTM(6 * hidden_dim, hidden_dim)
        self.pooling_score = nn.Linear(2 * hidden_dim, 1)
        self.maxout = nn.Linear(16 * hidden_dim, 4 * hidden_dim)

    def forward(self, a: Tensor, layout_a: PackedLayout, b: Tensor, layout_b: PackedLayout) -> Tensor:
        aligned = cross_align(a, layout_a, b, layout_b)
        pooled = [self._pool(x, y, layout) for x, y, layout in zip((a, b), aligned, (layout_a, layout_b))]
        return self.maxout(self.dropout(torch.cat(pooled, dim=-1))).unflatten(-1, (4, -1)).amax(1)

    def _pool(self, x: Tensor, aligned: Tensor, layout: PackedLayout) -> Tensor:
        x = self.integrate(self.dropout(torch.cat([x, x - aligned, x * aligned], dim=-1)), layout)
        weights = layout.pad(self.pooling_score(x), -torch.inf).softmax(1)
        self_attentive_pooled = (weights * layout.pad(x)).sum(1)
        min_pooled, max_pooled = layout.pad(x, torch.inf).amin(1), layout.pad(x, -torch.inf).amax(1)
        return torch.cat([max_pooled, layout.mean_pool(x), min_pooled, self_attentive_pooled], dim=-1)


class MaxPooledPair(nn.Module):
    """Vectors of two texts after their encoder, the maximum over states, and a hidden layer that compares them."""

    def __init__(self, hidden_dim: int, dropout: float):
        super().__init__()
        self.final, self.dropout = nn.Linear(8 * hidden_dim, hidden_dim), nn.Dropout(dropout)

    def forward(self, a: Tensor, layout_a: PackedLayout, b: Tensor, layout_b: PackedLayout) -> Tensor:
        u, v = (layout.pad(x, -torch.inf).amax(1) for x, layout in ((a, layout_a), (b, layout_b)))  # [B, 2 hidden_dim]
        return self.final(self.dropout(torch.cat([u, v, (u - v).abs(), u * v], dim=-1))).tanh()


class ESIM(nn.Module):
    """Enhanced sequential inference after its encoder: comparison, composition, mean and maximum."""

    def __init__(self, hidden_dim: int, dropout: float):
        super().__init__()
        self.project, self.dropout = nn.Linear(8 * hidden_dim, hidden_dim), nn.Dropout(dropout)
        self.compose = BiLSTM(hidden_dim, hidden_dim)
        self.final = nn.Linear(8 * hidden_dim, hidden_dim)

    def forward(self, a: Tensor, layout_a: PackedLayout, b: Tensor, layout_b: PackedLayout) -> Tensor:
        pooled = []
        for x, aligned, layout in zip((a, b), cross_align(a, layout_a, b, layout_b), (layout_a, layout_b)):
            comparison = torch.cat([x, aligned, x - aligned, x * aligned], dim=-1)
            y = self.compose(self.dropout(self.project(comparison).relu()), layout)
            pooled += [layout.mean_pool(y), layout.pad(y, -torch.inf).amax(1)]
        return self.final(self.dropout(torch.cat(pooled, dim=-1))).tanh()


def attention_flow(h: Tensor, layout_h: PackedLayout, u: Tensor, layout_u: PackedLayout, w: Tensor) -> Tensor:
    """Return G of Seo et al. 2017, §2 (4), [rows of h, 4 dim], from similarities w·[h; u; h∘u] of context and question.

    Each word of the context attends to the question (ũ), and the question attends to the context by the best similarity
    of each word (h̃): [h; ũ; h∘ũ; h∘h̃].
    """
    context, question, (w_h, w_u, w_hu) = layout_h.pad(h), layout_u.pad(u), w.chunk(3)
    scores = (context @ w_h)[:, :, None] + (question @ w_u)[:, None] + (context * w_hu) @ question.transpose(1, 2)
    scores = scores.masked_fill(~layout_u.attention_mask()[:, None], -torch.inf)
    attended_question = layout_h.unpad(scores.softmax(2) @ question)
    weights = scores.amax(2).masked_fill(~layout_h.attention_mask(), -torch.inf).softmax(1)
    attended_context = layout_h.unpad((weights[:, None] @ context).expand_as(context))
    return torch.cat([h, attended_question, h * attended_question, h * attended_context], dim=-1)


class BiDAF(nn.Module):
    """Bidirectional attention flow after its encoder: attention, two modeling layers, and one more for the end.

    A word's state is [G; M; M²], from which a head scores it as a start and as an end (in the paper a start does not
    use M², an end does not use M). All other rows have the state `no_answer`, so that "no answer" has a score of its
    own (Levy et al. 2017, §4).
    """

    constant_init: ClassVar = {"no_answer": 0.0}

    def __init__(self, hidden_dim: int, dropout: float):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.similarity = nn.Linear(6 * hidden_dim, 1, bias=False)
        self.modeling = BiLSTM(8 * hidden_dim, hidden_dim, 2, dropout)
        self.end_encoder = BiLSTM(2 * hidden_dim, hidden_dim)
        self.no_answer = nn.Parameter(torch.zeros(12 * hidden_dim))

    def forward(self, h: Tensor, layout_h: PackedLayout, u: Tensor, layout_u: PackedLayout) -> Tensor:
        flow = attention_flow(h, layout_h, u, layout_u, self.similarity.weight[0])
        modeling_states = self.modeling(self.dropout(flow), layout_h)
        end_states = self.end_encoder(self.dropout(modeling_states), layout_h)
        return self.dropout(torch.cat([flow, modeling_states, end_states], dim=-1))


PAIR_NETWORKS: dict[str, type[nn.Module]] = {
    "bilstm_max": MaxPooledPair,
    "biattentive": Biattention,
    "esim": ESIM,
    "bidaf": BiDAF,
}


class FeatureNetwork(Trunk):
    """A network over frozen features; its tokens index a feature store."""

    embeddings = None  # no head can share the features

    def __init__(self, config: FeatureNetworkConfig):
        super().__init__(config)
        self.features: FrozenFeatures = config.features.build()
        is_recurrent = config.network != "linear"
        self.relu_layer = nn.Linear(config.features.input_dim, config.relu_dim) if config.relu_dim else None
        encoder_dims = config.encoder_input_dim, config.lstm_dim, config.num_layers
        self.encoder = (
            BiLSTM(*encoder_dims, config.dropout, config.features.join_dim("between")) if is_recurrent else None
        )
        pair_network = PAIR_NETWORKS.get(config.network)
        self.pair_network = pair_network(config.lstm_dim, config.dropout) if pair_network else None
        self.dropout = nn.Dropout(config.dropout if is_recurrent else 0.0)
        self.pooler = config.pooler.build(config.dim)

    def _forward(self, inputs: Inputs, memory: Any, layers: frozenset[int], return_memory: bool) -> TrunkOutput:
        layout, segments = inputs.layout, inputs.segments
        assert inputs.features is not None, "a network over features needs a feature store"
        x, late_features = self.features(inputs.tokens, inputs.features, segments)
        if self.relu_layer is not None:
            x = self.relu_layer(x).relu()  # [T, relu_dim]
        layer_states = {0: x}
        if self.encoder is not None and self.pair_network is None:
            between = late_features if self.config.features.join_dim("between") else None
            last = self.config.num_layers
            layer_states |= self.encoder.layer_states(x, layout, {*layers, last}, between)
            x = self.dropout(layer_states[last])
        elif self.pair_network is not None:
            x = self._compare(x, layout, segments)
        if late_features is not None and self.config.features.join_dim("output"):
            x = torch.cat([x, late_features], dim=-1)
        return TrunkOutput(x, {depth: layer_states[depth] for depth in layers})

    def _compare(self, x: Tensor, layout: PackedLayout, segments: Tensor | None) -> Tensor:
        """Compare the two texts of each sequence, or a text with itself.

        The output is at the first token of a sequence or, for BiDAF, at every token of the first text.
        """
        assert self.encoder is not None and self.pair_network is not None
        is_second = torch.zeros(len(x), dtype=torch.bool, device=x.device) if segments is None else segments > 0
        rows_per_side = [rows for rows in ((~is_second).nonzero()[:, 0], is_second.nonzero()[:, 0]) if len(rows)]
        sides: list[Any] = []
        for rows in rows_per_side:
            side_layout = PackedLayout.from_lengths(layout.count_per_sequence(rows), device=x.device)
            sides += [self.encoder(x.index_select(0, rows), side_layout), side_layout]
        outputs = self.pair_network(*sides, *(sides if len(rows_per_side) == 1 else []))
        if isinstance(self.pair_network, BiDAF):
            return self.pair_network.no_answer.expand(len(x), -1).index_copy(0, rows_per_side[0], outputs)
        return x.new_zeros(len(x), outputs.shape[1]).index_copy(0, layout.first_indices[: len(outputs)], outputs)
