"""The settings of fine-tuning."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from polyseme.config import Config
from polyseme.errors import ConfigError
from polyseme.nn.layers.frozen_features import JoinPosition
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.schedule import ScheduleConfig


@dataclass(frozen=True)
class FeatureNetworkSettings(Config):
    """The network that is trained over frozen features.

    The name `auto` is a BiLSTM for tagging, ESIM for pairs, BiDAF for extractive question answering, and the
    biattentive network otherwise. `layers` is one selection for all encoders, or one for each, separated by commas.
    `join_at` is where features enter the network, and `mix_penalty` the λ on the weights of their mix (Peters et al.
    2018, §3.2 and 5.2; `between` the first two layers of a BiLSTM: Peters et al. 2017, §2.4). A word that occurs twice
    in the training set, or has a pre-trained vector, gets a learned vector of size `word_dim` (None: that of the
    pre-trained vectors, or 100). It starts at the pre-trained one, which stays fixed with `freeze_word_embeddings`.
    """

    name: Literal["auto", "linear", "bilstm", "biattentive", "esim", "bidaf"] = "auto"
    layers: str = "scalar_mix"
    join_at: JoinPosition = "input"
    mix_penalty: float = 0.001
    lstm_dim: int = 200
    num_layers: int = 1
    dropout: float = 0.5
    word_dim: int | None = None
    freeze_word_embeddings: bool = False
    use_char_cnn: bool = True


@dataclass(frozen=True)
class FinetuneConfig(Config):
    """One fine-tuning run. The defaults are those of BERT (§A.3), which has 5e-5, 16 and 3 among its best.

    `steps` overrides `epochs`; there are never fewer than `min_steps`, because small sets need more epochs (Mosbach et
    al. 2021, §6). With `patience` the dev examples are evaluated after every epoch, a run ends when that many in a row
    were no better than the best before, and the best is kept. `max_len` 0 is the model's. The first `num_frozen_groups`
    parameter groups from the input (the embeddings are the first) stay as they are. A step is read in micro-batches of
    at most `micro_batch_tokens`.

    With `unfreeze_every` the new head is trained alone at first, and after that many epochs each the next group below
    joins; the schedule begins anew each time, and the last phase has what is left of `epochs` (Howard and Ruder 2018,
    §3.3, and their code). With `chunk_size` long texts are read in chunks with memory, the gradient reaching into the
    last `grad_tokens` tokens alone (0 is all): their BPT3C.

    `lm_loss_weight` is the weight of the language model's own loss on the same texts (Radford et al. 2018, §3.2; its
    settings: 0.5, learning rate 6.25e-5, batches of 32). Of several tasks each is drawn in proportion to its size to
    the power `sampling_alpha`: 1 is as often as alone, 0 as often as any other. A `network` is trained over frozen
    features (`finetuning/frozen.py`).
    """

    epochs: float = 3.0
    steps: int = 0
    batch_size: int = 16
    max_len: int = 0
    truncate: bool = False
    num_frozen_groups: int = 0
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(lr=5e-5))
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    precision: Literal["auto", "float32", "bf16"] = "auto"
    micro_batch_tokens: int = 16384
    lm_loss_weight: float = 0.0
    unfreeze_every: float = 0.0
    chunk_size: int = 0
    grad_tokens: int = 0
    network: FeatureNetworkSettings | None = None
    patience: int = 0
    min_steps: int = 0
    sampling_alpha: float = 1.0

    def validate(self) -> FinetuneConfig:
        self.check_range(1, math.inf, "batch_size", "micro_batch_tokens")
        if self.steps < 0 or (not self.steps and self.epochs <= 0):
            raise ConfigError(f"there is nothing to do in {self.steps} steps or {self.epochs:g} epochs")
        self.check_range(
            0, math.inf, "num_frozen_groups", "max_len", "lm_loss_weight", "unfreeze_every", "chunk_size", "grad_tokens"
        )
        self.check_range(0, math.inf, "patience", "min_steps", "sampling_alpha")
        if self.optimizer.name not in ("adamw", "muon"):
            raise ConfigError(f"optimizer.name is {self.optimizer.name!r}: tasks are learned by adamw or muon")
        return self

    def total_steps(self, num_examples: int) -> int:
        epoch_steps = math.ceil(self.epochs * math.ceil(num_examples / self.batch_size))
        return self.steps or max(epoch_steps, self.min_steps, 1)

    def unfreezing_phases(self, num_examples: int, num_groups: int) -> list[tuple[int, int, int]]:
        """Runs of steps and how many groups are frozen in each: (first step, behind the last, frozen)."""
        total, steps_per_phase = (
            self.total_steps(num_examples),
            self.unfreeze_every * math.ceil(num_examples / self.batch_size),
        )
        if not self.unfreeze_every:
            return [(0, total, self.num_frozen_groups)]
        boundaries = [round(i * steps_per_phase) for i in range(num_groups - self.num_frozen_groups + 1)]
        if boundaries[-1] >= total:
            raise ConfigError(
                f"{total} steps end before all {num_groups} groups are unfrozen, at step {boundaries[-1]}: "
                "more epochs, a smaller unfreeze_every, or freeze some for good"
            )
        return [(a, b, num_groups - i) for i, (a, b) in enumerate(pairwise([*boundaries, total])) if a < b]
