"""The speedrun ledger: dated measurements of what trains best in a given time, and the best row of each budget.

`benchmarks/speedrun.py` adds rows to `ledger.json`, from which docs/results/speedrun.md and the recipe `best` follow.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from polyseme.config import Config
from polyseme.errors import ConfigError
from polyseme.io.json import read_json_object
from polyseme.objectives.base import Objective
from polyseme.objectives.causal_lm import CausalLM
from polyseme.objectives.hybrid_lm import HybridLM
from polyseme.objectives.masked_lm import MaskedLM
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
from polyseme.train.recipe import Recipe

LEDGER = Path(__file__).with_name("ledger.json")
DeviceKind = Literal["cpu", "gpu"]
CPU_THREAD = "one CPU thread"
GPU_START_SECONDS = 40  # of imports and compilation, which rows with a fixed number of steps do not count (2026-11-16)
THREAD_EXPONENT = 0.63  # two threads have 1.55 times the speed of one (docs/log.md, 2026-11-15)


@dataclass(frozen=True)
class SpeedrunSettings(Config):
    """What may differ between the rows of the ledger; the defaults are those of the arm `base`."""

    size: str = "8x512"  # layers x dim
    vocab: str = "wp16384"  # name of the vocabulary
    family: str = "modernbert"
    mask: float = 0.2
    unit: Literal["token", "word"] = "token"  # what is masked
    causal: float = 0.0  # share of the batches that a hybrid model (gpt-bert) reads left to right
    replace_prob: float = 0.2  # of the masked tokens: half become random tokens, half stay
    max_len: int = 128
    batch: int = 131_072  # tokens per step
    lr: float = 2e-3
    warmup: float = 0.06
    weight_decay: float = 0.01
    optimizer: Literal["muon", "adamw"] = "muon"
    dropout: float = 0.0
    init_std: float = 0.0  # 0 for that of the family
    compile: bool = True  # on a GPU

    @property
    def shape(self) -> tuple[int, int]:
        """Number of layers, and their width."""
        layers, _, dim = self.size.partition("x")
        if not (layers.isdecimal() and dim.isdecimal()):
            raise ConfigError(f"size is {self.size!r}, expected layers and width such as 8x512")
        return int(layers), int(dim)

    @property
    def is_encoder(self) -> bool:
        """Whether the model reads texts in both directions: trained as a masked language model, at least in part."""
        return self.family in ("bert", "modernbert", "roberta", "gpt-bert")

    @property
    def objective(self) -> Objective:
        """The objective of the family."""
        replaced = self.replace_prob / 2
        masking: dict[str, Any] = {"mask_prob": self.mask, "mask_unit": self.unit}
        masking |= {"random_token_prob": replaced, "keep_token_prob": replaced}
        if self.family == "gpt-bert":
            return HybridLM(**masking, causal_fraction=self.causal)
        return MaskedLM(**masking) if self.is_encoder else CausalLM()

    def __str__(self) -> str:
        """Describe the settings in a line."""
        model = "{} layers of {}".format(*self.shape) + f" ({self.family}), dropout {self.dropout:g}"
        objective = f"{100 * self.mask:g} % masked, " if self.is_encoder else ""
        objective += f"{100 * self.causal:g} % of the batches left to right, " if self.causal else ""
        batches = f"sequences of {self.max_len}, {self.batch:,} tokens per step"
        return f"{model}, {objective}{batches}, {self.optimizer} at {self.lr:g}"

    def build_recipe(self, name: str, is_gpu: bool, **fields: Any) -> Recipe:
        """Return the recipe of these settings; `fields` are more fields of it."""
        (num_layers, dim), objective = self.shape, self.objective
        model: dict[str, Any] = {"num_layers": num_layers, "dim": dim, "num_heads": max(dim // 64, 2), "max_len": 512}
        model |= {"dropout": self.dropout, "attention_dropout": self.dropout}
        model |= {"init_std": self.init_std} if self.init_std else {}
        optimizer = OptimizerConfig(lr=self.lr, beta2=0.98, name=self.optimizer, weight_decay=self.weight_decay)
        recipe = Recipe(
            name, self.family, model=model, objective=objective, max_len=self.max_len,
            batch_tokens=self.batch, micro_batch_tokens=min(self.batch // objective.min_micro_batches, 65_536),
            optimizer=optimizer, schedule=ScheduleConfig("linear", warmup=self.warmup), compile=self.compile and is_gpu,
        )  # fmt: skip
        return recipe.replace(**fields)


@dataclass(frozen=True)
class LedgerEntry:
    """Settings that were measured at one budget, with the means of their seeds."""

    minutes: float  # for a CPU: of one thread
    settings: SpeedrunSettings
    device: str
    date: str
    num_seeds: int
    tokens: float
    blimp: float
    bits_per_character: float

    @property
    def kind(self) -> DeviceKind:
        """The kind of device."""
        return "cpu" if self.device == CPU_THREAD else "gpu"

    @classmethod
    def from_rows(cls, minutes: float, settings: SpeedrunSettings, rows: list[Mapping[str, Any]]) -> Self:
        """From the rows of one arm, which differ in their seeds."""
        names = ("tokens", "blimp", "held_out_bits_per_character")
        means = [statistics.fmean(row[name] for row in rows) for name in names]
        device, date = rows[0]["device"], max(row["date"] for row in rows)
        return cls(minutes, settings, CPU_THREAD if device == "cpu" else device, date, len(rows), *means)

    def __str__(self) -> str:
        """Say when, where and how well this did."""
        seeds = f"{self.num_seeds} seed{'s' if self.num_seeds > 1 else ''}"
        scores = f"BLiMP {100 * self.blimp:.1f}, {self.bits_per_character:.3f} bits per character"
        return f"the best measured for {self.minutes:.3g} min of {self.device} ({self.date}, {seeds}): {scores}"


def read_measurements(kind: DeviceKind, ledger: Path = LEDGER) -> dict[float, list[LedgerEntry]]:
    """Return the measured encoders of a kind of device by their minutes, shortest first, and best first for each.

    The best has the highest BLiMP on a GPU, which is comparable between vocabularies. On a CPU, where BLiMP is close
    to chance after minutes, it has the fewest bits per character of held-out text, and all rows have one vocabulary.
    Rows with a `constraint`, such as a limit of the model's size, are not compared with the others.
    """
    arms: defaultdict[tuple[float, SpeedrunSettings], list[Mapping[str, Any]]] = defaultdict(list)
    for row in read_rows(ledger):
        settings = SpeedrunSettings.from_json(row["settings"], f"{ledger}: settings")
        minutes, is_cpu = count_minutes(row), row["device"] == "cpu"
        if minutes and "constraint" not in row and settings.is_encoder and is_cpu == (kind == "cpu"):
            arms[minutes, settings].append(row)
    measurements: dict[float, list[LedgerEntry]] = {minutes: [] for minutes, _ in sorted(arms, key=lambda key: key[0])}
    for (minutes, settings), rows in arms.items():
        measurements[minutes].append(LedgerEntry.from_rows(minutes, settings, rows))
    for candidates in measurements.values():
        candidates.sort(key=lambda m: -m.blimp if kind == "gpu" else m.bits_per_character)
    return measurements


def read_rows(ledger: Path = LEDGER) -> list[dict[str, Any]]:
    """Return the rows of pre-training runs in the ledger."""
    groups = read_json_object(ledger)["groups"]
    return [row for group in groups if group["kind"] == "arms" for row in group["rows"]]


def count_minutes(row: Mapping[str, Any]) -> float:
    """Return the time of a row, alone on its GPU or of one CPU thread; 0 if it shared a GPU for a fixed time."""
    value, unit = row["budget"].split(" ", 1)
    if row["device"] == "cpu":
        return float(value) / (1 if unit == "min" else 60) * row["threads"] ** THREAD_EXPONENT
    if unit == "min":
        return float(value) if row["jobs"] == 1 else 0.0
    return (float(value) + GPU_START_SECONDS) / 60  # steps that fit into these seconds alone
