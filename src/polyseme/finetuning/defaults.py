"""Defaults that depend on the model: the learning rate by its size."""

from collections.abc import Mapping
from typing import Any

from polyseme.finetuning.config import FinetuneConfig
from polyseme.nn.trunks.base import TrunkConfig

# Hidden sizes up to which each learning rate is the default; measured in docs/results/finetuning-defaults.md.
LR_BY_DIM = ((192, 1e-3), (256, 5e-4), (448, 2e-4), (640, 1e-4))
BASE_LR = 5e-5  # of BERT-base and larger models (Devlin et al. 2019, §A.3: 5e-5, 3e-5 or 2e-5)


def default_lr(trunk: TrunkConfig) -> float:
    """Return the default learning rate of fine-tuning: that of BERT's paper, and more for a smaller model."""
    return next((lr for max_dim, lr in LR_BY_DIM if trunk.dim <= max_dim), BASE_LR)


def choose_settings(
    config: FinetuneConfig, trunk: TrunkConfig, metadata: Mapping[str, Any]
) -> tuple[FinetuneConfig, dict[str, Any]]:
    """Return the config with a learning rate, and what was chosen: the value and the reason of each setting.

    The learning rate is the one that the metadata of the model recommends, `finetuning_lr`, or depends on its size.
    """
    if config.optimizer.lr:
        return config, {}
    lr, reason = default_lr(trunk), f"the default for a hidden size of {trunk.dim}"
    recommended = metadata.get("finetuning_lr")
    if isinstance(recommended, float) and 0 < recommended < 1:
        lr, reason = recommended, "recommended by the model"
    return config.replace(optimizer=config.optimizer.replace(lr=lr)), {"lr": {"value": lr, "reason": reason}}
