"""The config of all optimizers, which builds one with its parameter groups."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from polyseme.config import Config
from polyseme.nn.attention.multihead import BucketedRelativeBias, MultiHeadAttention
from polyseme.nn.heads.lm import LMHeadConfig
from polyseme.nn.model import Model
from polyseme.nn.trunks.transformer import Transformer
from polyseme.train.optimizer.adafactor import Adafactor, Adagrad, second_moment_shapes
from polyseme.train.optimizer.asgd import NTASGD
from polyseme.train.optimizer.muon import Muon
from polyseme.train.optimizer.scaled_adam import LAMB, ScaledAdam, StableAdamW
from polyseme.train.optimizer.tensorwise import split_fused

SCALED_ADAMS: dict[str, type[ScaledAdam]] = {"lamb": LAMB, "stable_adamw": StableAdamW}


@dataclass(frozen=True)
class OptimizerConfig(Config):
    """AdamW, StableAdamW, LAMB; Muon for the matrices of blocks; Adafactor; Adagrad; NT-ASGD; or sparse updates.

    Weight decay applies to matrices only, not to biases and norms (BERT, appendix A.2). With `layer_decay` below 1,
    each layer has that fraction of the learning rate of the layer above it (ULMFiT's discriminative rates: 1/2.6).
    Parameters in no layer, which are those of heads, have `head_lr_scale` times the rate: a new head on a pre-trained
    encoder may learn faster (coreference: 1e-5 and 2e-4; Joshi et al. 2019, §3).
    """

    name_field: ClassVar[str] = "name"
    lr: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    layer_decay: float = 1.0
    head_lr_scale: float = 1.0
    name: Literal[
        "adamw", "stable_adamw", "lamb", "muon", "adafactor", "adagrad", "nt_asgd", "sparse_sgd", "sparse_adagrad"
    ] = "adamw"
    momentum: float = 0.95  # of Muon
    patience: int = 5  # of NT-ASGD, in validations
    initial_sum: float = 0.0  # of Adagrad: the sum of squared gradients before the first step
    words_per_update: int = 1024  # of sparse updates: words whose gradients are summed before the tables are updated
    count_damping: float = 0.0  # of sparse SGD: how much less than their sum many gradients of one row count

    def __post_init__(self) -> None:
        self.check_range(0, math.inf, "lr", "eps", "weight_decay", "max_grad_norm", "layer_decay")
        self.check_range(0, math.inf, "head_lr_scale", "patience", "count_damping", "initial_sum")
        self.check_range(0, 1, "beta1", "beta2", "momentum")
        self.check_range(1, math.inf, "words_per_update")

    @property
    def is_sparse(self) -> bool:
        """Whether a step updates rows of tables from sparse gradients, instead of all weights."""
        return self.name in ("sparse_sgd", "sparse_adagrad")

    def count_state(self, model: Model) -> int:
        """Return how many numbers the optimizer keeps for a model, which may be on the meta device."""
        num_params = sum(p.numel() for p in model.parameters())
        if self.name == "muon":
            return 2 * num_params - sum(p.numel() for p, _ in model.trunk.hidden_matrices())
        if self.name == "adafactor":
            fused_counts = self._fused_counts(model)
            shapes = [split_fused(p, fused_counts.get(id(p), 0)).shape for p in model.parameters()]
            return sum(part.numel() for shape in shapes for part in second_moment_shapes(shape).values())
        moments = {"adagrad": 1, "nt_asgd": 1, "sparse_sgd": 0, "sparse_adagrad": 1}
        return moments.get(self.name, 2) * num_params

    def _fused_counts(self, model: Model) -> dict[int, int]:
        """Return how many matrices are stacked in each weight of the blocks, if the optimizer treats them apart."""
        if self.name not in ("muon", "adafactor", *SCALED_ADAMS):
            return {}
        return {id(p): n for p, n in model.trunk.hidden_matrices()}

    def _lr_scales_by_size(self, model: Model) -> dict[int, float]:
        """Return factors on the rates of weights that are larger or smaller than usual; of fused ones, on the queries.

        Updates of Muon and AdamW have the same size whatever that of the weights is. T5 scales neither embeddings nor
        scores: its embeddings are larger, its queries smaller. A score bias, its only position, has to change as fast
        as the scores that it is added to: sums of head_dim products.
        """
        if self.name != "muon":
            return {}
        tied_heads = [h for h in model.config.heads.values() if isinstance(h, LMHeadConfig) and h.tie_word_embeddings]
        lr_scales = {id(model.trunk.token_embeddings): 1 / head.scale for head in tied_heads}
        for module in model.modules():
            if isinstance(module, MultiHeadAttention):
                lr_scales[id(module.qkv.weight)] = module.query_scale
            elif isinstance(module, Transformer) and isinstance(module.position_bias, BucketedRelativeBias):
                attention: Any = module.blocks[0].attention
                lr_scales[id(module.position_bias.positions.weight)] = attention.inner_dim / attention.config.num_heads
        return lr_scales

    def build(self, model: Model, layer_groups: list[list[nn.Parameter]]) -> torch.optim.Optimizer:
        """Build the optimizer; `layer_groups` are the trunk's, from input to output."""
        if self.is_sparse:
            return torch.optim.SGD(model.parameters(), lr=self.lr)  # holds the learning rate and the state of rows
        layer_index = {id(p): i for i, group in enumerate(layer_groups) for p in group}
        num_layers = len(layer_groups)
        fused_counts, lr_scales_by_size = self._fused_counts(model), self._lr_scales_by_size(model)
        params_by_settings: dict[tuple[Any, ...], list[nn.Parameter]] = {}
        for p in model.parameters():
            if p.requires_grad:
                layer = num_layers if self.layer_decay == 1.0 else layer_index.get(id(p), num_layers)
                lr_scale = 1.0 if id(p) in layer_index else self.head_lr_scale
                lr_scale *= self.layer_decay ** (num_layers - layer)
                fused_count = fused_counts.get(id(p), 0)
                size_scale = lr_scales_by_size.get(id(p), 1.0)
                shape = tuple(p.shape) if fused_count else ()
                settings = (layer, lr_scale, p.ndim >= 2, fused_count, shape, size_scale)
                params_by_settings.setdefault(settings, []).append(p)
        is_cuda = any(p.is_cuda for p in model.parameters())
        param_groups = [
            {
                "params": group,
                # decay does not depend on the size of weights
                "weight_decay": self.weight_decay / (1.0 if fused_count else size_scale) if has_decay else 0.0,
                "lr_scale": lr_scale * (1.0 if fused_count else size_scale),
                "query_lr_scale": size_scale if fused_count else 1.0,
                "fused_count": fused_count,
                "momentum": self.momentum,
                # a tensor where steps may be captured, so that each replay reads the current rate
                "lr": torch.tensor(self.lr, device=group[0].device) if is_cuda else self.lr,
            }
            for (_, lr_scale, has_decay, fused_count, _, size_scale), group in params_by_settings.items()
        ]
        if self.name == "nt_asgd":
            return NTASGD(param_groups, self.patience)
        if self.name == "adafactor":
            return Adafactor(param_groups)
        if self.name == "adagrad":
            return Adagrad(param_groups, self.initial_sum)
        if self.name in SCALED_ADAMS:
            return SCALED_ADAMS[self.name](param_groups, (self.beta1, self.beta2), self.eps)
        adam: type[torch.optim.AdamW] = Muon if self.name == "muon" else torch.optim.AdamW
        fused = True if is_cuda or torch.get_default_dtype() == torch.float32 else None
        return adam(param_groups, betas=(self.beta1, self.beta2), eps=self.eps, fused=fused, capturable=is_cuda)
