"""The config of a fine-tuning run."""

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, Self

from polyseme.config import Config
from polyseme.errors import ConfigError
from polyseme.io.limits import MAX_EPOCHS, MAX_STEPS
from polyseme.nn.layer_selection import LayerSelection
from polyseme.nn.layers.frozen_features import JoinPosition
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig


@dataclass(frozen=True)
class FeatureNetworkSettings(Config):
    """The network that is trained over frozen features.

    The name `auto` is a BiLSTM for tagging, BiDAF for extractive question answering, ESIM for multiple choice, and a
    BiLSTM with max pooling otherwise. The `dropout` None is 0.5 for `bilstm` and 0.2 for the others. `layers` is one
    selection for all encoders, or one for each, separated by commas. `join_at` is where features enter the network, and
    `mix_penalty` the λ on the weights of their mix (Peters et al. 2018, §3.2 and 5.2; `between` the first two layers of
    a BiLSTM: Peters et al. 2017, §2.4). A word that occurs twice in the training set, or has a pre-trained vector, gets
    a learned vector of size `word_dim` (None: that of the pre-trained vectors, or 100). It starts at the pre-trained
    one, which stays fixed with `freeze_word_embeddings`. `relu_dim` is the size of a ReLU layer below the BiLSTM; None
    is `lstm_dim` for the biattentive network, which has one in McCann et al. (2017, §5), and no layer for the others.
    `layer_norm` normalizes each layer of the features before it is mixed (Peters et al. 2018, §3.2), for encoders whose
    layers differ in scale.
    """

    name: Literal["auto", "linear", "bilstm", "bilstm_max", "biattentive", "esim", "bidaf"] = "auto"
    layers: str = "scalar_mix"
    join_at: JoinPosition = "input"
    mix_penalty: float = 0.001
    lstm_dim: int = 200
    num_layers: int = 1
    dropout: float | None = None
    relu_dim: int | None = None
    word_dim: int | None = None
    freeze_word_embeddings: bool = False
    use_char_cnn: bool = True
    layer_norm: bool = False

    def __post_init__(self) -> None:
        self.check_range(0, math.inf, "mix_penalty")
        for name in self.layers.split(","):
            LayerSelection.parse(name.strip())


@dataclass(frozen=True)
class CrossViewSettings(Config):
    """Cross-view training on unlabeled text (Clark et al. 2018).

    Labeled steps alternate with steps on `unlabeled_batch_size` unlabeled sentences. There, auxiliary heads that see a
    part of each sentence learn what the task's own head predicts without dropout. They have a hidden layer of
    `view_dim` units (0: those of a direction of the network). Their loss has the weight `unlabeled_weight`, and all
    dropout layers the probability `unlabeled_dropout` while they learn.
    """

    unlabeled_batch_size: int = 64
    unlabeled_weight: float = 1.0
    unlabeled_dropout: float = 0.2
    view_dim: int = 0

    def __post_init__(self) -> None:
        self.check_range(1, 1 << 20, "unlabeled_batch_size")
        self.check_range(0, 1 << 20, "view_dim")
        self.check_range(0, math.inf, "unlabeled_weight")
        self.check_range(0, 1, "unlabeled_dropout")


@dataclass(frozen=True)
class FinetuneConfig(Config):
    """One fine-tuning run. The defaults are among the best settings of BERT (§A.3): 5e-5, batches of 16, 3 epochs.

    The learning rate 0 is chosen by the size of the model: 5e-5 for BERT-base, more for smaller ones (`defaults.py`).
    `steps` overrides `epochs`; `min_steps` is a lower limit, because small sets need more epochs (Mosbach et al. 2021,
    §6). With `patience` (early stopping) the dev examples are evaluated after every epoch, a run ends after that many
    epochs without improvement, and the best epoch is kept. `max_len` 0 is that of the model. The first
    `num_frozen_groups` layer groups from the input (the embeddings are the first) are frozen.

    With `unfreeze_every` (gradual unfreezing) only the new head is trained first; every so many epochs the next group
    below is added and the schedule restarts, and the last phase has the rest of `epochs` (Howard and Ruder 2018, §3.3,
    and their code). With `chunk_size` long texts are read in chunks with memory, and the gradient reaches only the last
    `grad_tokens` tokens (0: all), their BPT3C.

    `lm_loss_weight` is the weight of an auxiliary language-model loss on the same texts (Radford et al. 2018, §3.2,
    with 0.5, learning rate 6.25e-5, batches of 32); None is 0.5 for GPT and tasks with one answer per example,
    otherwise 0. Several tasks are sampled in proportion to size^`sampling_alpha`.
    With `bilstm`, a new BiLSTM of the size of the trunk is trained between the trunk and the task's head (Devlin et al.
    2019, §5.1). `network` is the network over frozen features (`finetuning/frozen.py`), and `cross_view` has the
    settings of cross-view training, whose steps count like those on labeled examples.
    """

    epochs: float = 3.0
    steps: int = 0
    batch_size: int = 16
    max_len: int = 0
    truncate: bool = False
    num_frozen_groups: int = 0
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(lr=0.0))
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    precision: Literal["auto", "float32", "bf16"] = "auto"
    micro_batch_tokens: int = 16384
    lm_loss_weight: float | None = None
    bilstm: bool = False
    unfreeze_every: float = 0.0
    chunk_size: int = 0
    grad_tokens: int = 0
    network: FeatureNetworkSettings | None = None
    cross_view: CrossViewSettings | None = None
    patience: int = 0
    min_steps: int = 0
    sampling_alpha: float = 1.0

    def validate(self) -> Self:
        """Raise `ConfigError` for values out of range; return the config."""
        self.check_range(1, math.inf, "batch_size", "micro_batch_tokens")
        if self.steps < 0 or (not self.steps and self.epochs <= 0):
            raise ConfigError(f"there is nothing to do in {self.steps} steps or {self.epochs:g} epochs")
        self.check_range(0, math.inf, "num_frozen_groups", "max_len", "unfreeze_every")
        if self.lm_loss_weight is not None:
            self.check_range(0, math.inf, "lm_loss_weight")
        self.check_range(0, math.inf, "chunk_size", "grad_tokens", "patience", "min_steps", "sampling_alpha")
        self.check_range(0, MAX_EPOCHS, "epochs")
        self.check_range(0, MAX_STEPS, "steps", "min_steps")
        supported = ("adamw", "stable_adamw", "lamb", "muon", "adafactor")
        if self.optimizer.name not in supported:
            raise ConfigError(f"optimizer.name is {self.optimizer.name!r}: fine-tuning supports {', '.join(supported)}")
        return self

    def memory_advice(self) -> str:
        """Say what to change if the run does not fit into memory."""
        smaller = max(self.micro_batch_tokens // 2, 1)
        length = f"from {self.max_len} to {self.max_len // 2}" if self.max_len else "to half of the model's"
        advice = f"lower `micro_batch_tokens` from {self.micro_batch_tokens} to {smaller}, or `max_len` {length}"
        return f"{advice}, and start in another folder"

    def total_steps(self, num_examples: int) -> int:
        """Return the number of steps for a training set of this size."""
        epoch_steps = math.ceil(self.epochs * math.ceil(num_examples / self.batch_size))
        return self.steps or max(epoch_steps, self.min_steps, 1)

    def unfreezing_phases(self, num_examples: int, num_groups: int) -> list[tuple[int, int, int]]:
        """Return the phases as (first step, end, number of frozen groups)."""
        total = self.total_steps(num_examples)
        if not self.unfreeze_every:
            return [(0, total, self.num_frozen_groups)]
        steps_per_phase = self.unfreeze_every * math.ceil(num_examples / self.batch_size)
        boundaries = [round(i * steps_per_phase) for i in range(num_groups - self.num_frozen_groups + 1)]
        if boundaries[-1] >= total:
            raise ConfigError(
                f"{total} steps end before all {num_groups} groups are unfrozen, at step {boundaries[-1]}: "
                "use more epochs, a smaller unfreeze_every, or a larger num_frozen_groups"
            )
        return [(a, b, num_groups - i) for i, (a, b) in enumerate(pairwise([*boundaries, total])) if a < b]
