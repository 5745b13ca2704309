"""What a study consists of: arms that are pre-trained, metrics, and questions with the sign that a paper predicts."""

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from polyseme.config import Config
from polyseme.errors import ConfigError, suggest
from polyseme.io.json import read_json

Transfer = Literal["finetune", "features", "none"]


@dataclass(frozen=True)
class Arm(Config):
    """One model of a study: a recipe with overrides, and how it is transferred to tasks.

    `overrides` are those of `polyseme.pretrain` and `transfer_options` those of `polyseme.finetune`. An empty
    `tokenizer` means the corpus of the study; another kind is prepared from the same sources. An arm `from_arm` trains
    no model: it evaluates that of another arm by its own `transfer`.
    """

    name: str
    recipe: str = ""
    overrides: dict[str, Any] = field(default_factory=dict)
    transfer: Transfer = "finetune"
    transfer_options: dict[str, Any] = field(default_factory=dict)
    tokenizer: str = ""
    from_arm: str = ""
    note: str = ""  # what differs from the paper; printed below the table


@dataclass(frozen=True)
class Question(Config):
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
class Study(Config):
    """Arms that differ in one respect, the metrics of all of them, and the questions that they decide."""

    name: str
    title: str
    source: str  # paper and table
    arms: tuple[Arm, ...]
    metrics: tuple[str, ...]  # names of `polyseme.studies.metrics.METRICS`
    questions: tuple[Question, ...]
    lr_factors: tuple[float, ...] = (0.5, 1.0, 2.0)  # of each recipe's learning rate, tried on text that no result uses

    def to_plain(self) -> dict[str, Any]:
        """Return the study as plain JSON values, which `from_json` reads."""
        return dict(json.loads(json.dumps(asdict(self))))

    def find_arm(self, name: str) -> Arm:
        """Return the arm of this name."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise ConfigError(
            f"the study {self.name} has no arm {name!r}; {suggest(name, [arm.name for arm in self.arms])}"
        )

    def check(self) -> "Study":
        """Return the study, or raise `ConfigError` if its arms and questions do not fit together."""
        names = [arm.name for arm in self.arms]
        if not names or not self.metrics:
            raise ConfigError(f"the study {self.name} needs at least one arm and one metric")
        if not self.lr_factors or min(self.lr_factors) <= 0:
            raise ConfigError(f"lr_factors of the study {self.name} is {list(self.lr_factors)}, not above 0")
        for arm in self.arms:
            if re.fullmatch(r"\w[\w.+-]*", arm.name) is None or names.count(arm.name) > 1:
                raise ConfigError(f"the study {self.name}: {arm.name!r} is no name of an arm, or that of two")
            if bool(arm.recipe) == bool(arm.from_arm):
                raise ConfigError(f"the arm {arm.name} needs either a recipe or the arm whose model it uses (from_arm)")
            if arm.from_arm and (arm.overrides or arm.tokenizer):
                raise ConfigError(
                    f"the arm {arm.name} uses the model of {arm.from_arm}: no overrides or tokenizer apply"
                )
            if arm.from_arm and self.find_arm(arm.from_arm).from_arm:
                raise ConfigError(f"the arm {arm.name} uses the model of {arm.from_arm}, which has no model of its own")
        for question in self.questions:
            self.find_arm(question.arm), self.find_arm(question.reference)
            if question.arm == question.reference:
                raise ConfigError(f"a question compares the arm {question.arm} with itself: choose another reference")
            if question.metric not in self.metrics:
                raise ConfigError(f"a question is about {question.metric!r}; {suggest(question.metric, self.metrics)}")
        return self

    def asked_metrics(self, arm: str) -> list[str]:
        """Return the metrics that the questions compare this arm by."""
        asked = {question.metric for question in self.questions if arm in (question.arm, question.reference)}
        return [name for name in self.metrics if name in asked]

    def select_metrics(self, names: tuple[str, ...]) -> "Study":
        """Return the study with some of its metrics, or others, and the questions about them."""
        questions = tuple(question for question in self.questions if question.metric in names)
        return self.replace(metrics=names, questions=questions)


def load_study(name: str | Path | Study) -> Study:
    """Return the study of this name, or that of a JSON file."""
    if isinstance(name, Study):
        return name.check()
    if str(name).endswith(".json"):
        return Study.from_json(read_json(Path(name)), str(name)).check()
    studies = list_studies()
    if str(name) not in studies:
        raise ConfigError(f"there is no study {str(name)!r}; {suggest(str(name), studies)}")
    return studies[str(name)].check()


def list_studies() -> dict[str, Study]:
    """Return the studies of the papers by name."""
    from polyseme.studies.catalog import STUDIES

    return dict(STUDIES)
