"""Defaults that depend on the model: the learning rate by its size, GPT's auxiliary loss and pairs in both orders."""

from collections.abc import Mapping, Sequence
from typing import Any

from polyseme.datasets.catalog import DATASETS
from polyseme.families import Family
from polyseme.finetuning.config import FinetuneConfig
from polyseme.nn.trunks.base import TrunkConfig
from polyseme.tasks.base import TaskConfig

# Hidden sizes up to which each learning rate is the default; measured in docs/results/finetuning-defaults.md.
LR_BY_DIM = ((192, 1e-3), (256, 5e-4), (448, 2e-4), (640, 1e-4))
BASE_LR = 5e-5  # of BERT-base and larger models (Devlin et al. 2019, §A.3: 5e-5, 3e-5 or 2e-5)


def default_lr(trunk: TrunkConfig) -> float:
    """Return the default learning rate of fine-tuning: that of BERT's paper, and more for a smaller model."""
    return next((lr for max_dim, lr in LR_BY_DIM if trunk.dim <= max_dim), BASE_LR)


def choose_settings(
    config: FinetuneConfig, trunk: TrunkConfig, metadata: Mapping[str, Any], lm_loss_weight: float = 0.0
) -> tuple[FinetuneConfig, dict[str, Any]]:
    """Return the config with a learning rate and a weight of the LM loss, and what was chosen, with reasons.

    The learning rate is the one that the metadata of the model recommends, `finetuning_lr`, or depends on its size.
    `lm_loss_weight` is the default for the model and its tasks.
    """
    chosen: dict[str, Any] = {}
    if config.lm_loss_weight is None:
        config = config.replace(lm_loss_weight=lm_loss_weight)
        if lm_loss_weight:
            chosen["lm_loss_weight"] = {"value": lm_loss_weight, "reason": "that of the paper of this family"}
    if config.optimizer.lr:
        return config, chosen
    lr, reason = default_lr(trunk), f"the default for a hidden size of {trunk.dim}"
    recommended = metadata.get("finetuning_lr")
    if isinstance(recommended, float) and 0 < recommended < 1:
        lr, reason = recommended, "recommended by the model"
    chosen["lr"] = {"value": lr, "reason": reason}
    return config.replace(optimizer=config.optimizer.replace(lr=lr)), chosen


def default_lm_loss_weight(family: Family, tasks: Sequence[TaskConfig]) -> float:
    """Return the weight of the LM loss that a family's paper has in tasks of these kinds (GPT: 0.5), otherwise 0."""
    return family.finetune_lm_loss_weight if all(task.allows_lm_loss for task in tasks) else 0.0


def choose_pair_order(task: TaskConfig, family: Family, dataset_name: str, train: Sequence[Any]) -> TaskConfig:
    """Return the task with `symmetric_pairs` set, where it is not: true for GPT and pairs that have no order.

    Those are the pairs of data sets that say so, and pairs with a number for their similarity.
    """
    dataset = DATASETS.get(dataset_name)
    has_no_order = (dataset is not None and dataset.has_symmetric_pairs) or task.compares_pairs(train)
    return task.with_pair_order(family.reads_pairs_in_both_orders and has_no_order)
