"""Optimizers and learning rate schedules."""

from polyseme.train.optimizer.asgd import NTASGD, swap_averaged_weights
from polyseme.train.optimizer.config import OptimizerConfig
from polyseme.train.optimizer.muon import NS_COEFFICIENTS, newton_schulz
from polyseme.train.optimizer.schedule import ScheduleConfig, set_lr
from polyseme.train.optimizer.state import load_optimizer_state_dict, optimizer_state_dict

__all__ = [
    "NS_COEFFICIENTS",
    "NTASGD",
    "OptimizerConfig",
    "ScheduleConfig",
    "load_optimizer_state_dict",
    "newton_schulz",
    "optimizer_state_dict",
    "set_lr",
    "swap_averaged_weights",
]
