"""What a study consists of: arms that are pre-trained, metrics, and questions with the sign that a paper predicts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Transfer = Literal["finetune", "features", "prompt", "none"]


@dataclass(frozen=True)
class Arm:
    """One model of a study: a recipe with overrides, and how it is transferred to tasks.

    `overrides` are those of `polyseme.pretrain` and `transfer_options` those of `polyseme.finetune`. An empty
    `tokenizer` means the corpus of the study; another kind is prepared from the same sources. An arm `from_arm` trains
    no model: it evaluates that of another arm by its own `transfer`.
    """

    name: str
    recipe: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    transfer: Transfer = "finetune"
    transfer_options: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str = ""
    from_arm: str = ""
    note: str = ""  # what differs from the paper; printed below the table


@dataclass(frozen=True)
class Question:
    """A comparison that a paper reports: `arm` minus `reference` in `metric`, and the sign that it predicts.

    `published` is the difference that the source prints, in points of its own metric.
    """

    text: str
    arm: str
    reference: str
    metric: str
    predicted: Literal["higher", "lower"]
    source: str
    published: float | None = None


@dataclass(frozen=True)
class Study:
    """Arms that differ in one respect, the metrics of all of them, and the questions that they decide."""

    name: str
    title: str
    source: str  # paper and table
    arms: tuple[Arm, ...]
    metrics: tuple[str, ...]  # names of `polyseme.studies.metrics.METRICS`
    questions: tuple[Question, ...]
    lr_factors: tuple[float, ...] = (0.5, 1.0, 2.0)  # of each recipe's learning rate, tried on text that no result uses
