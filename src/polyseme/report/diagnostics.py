"""What a fine-tuned model gets right and wrong on its dev examples: the content of `diagnostics.json`."""

from dataclasses import dataclass, field
from pathlib import Path

from polyseme.config import Config
from polyseme.errors import DataError
from polyseme.io.json import read_json, write_json

DIAGNOSTICS_NAME = "diagnostics.json"


@dataclass(frozen=True)
class Confusion(Config):
    """How often each gold label (row) was predicted as each label (column).

    Of many labels these are the ones with the most errors; the last row and column are then all others together.
    """

    labels: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class LabelScore(Config):
    """The scores of one label; `support` is its count in the dev examples, `num_train` in the training examples."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int
    num_predicted: int
    num_train: int


@dataclass(frozen=True)
class CalibrationBin(Config):
    """The predictions whose probability lies in a bin: their number, mean probability and accuracy."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Calibration(Config):
    """Whether probabilities are right: the expected calibration error and its bins (Guo et al. 2017, §2)."""

    ece: float
    confidence: float
    accuracy: float
    bins: tuple[CalibrationBin, ...]


@dataclass(frozen=True)
class RegressionFit(Config):
    """Predicted numbers against gold ones: at most 500 points, the mean residual, and the mean absolute error."""

    gold: tuple[float, ...]
    predicted: tuple[float, ...]
    bias: float
    mean_absolute_error: float


@dataclass(frozen=True)
class ErrorCase(Config):
    """A wrong prediction: the shortened text (with the question, if there is one), the answers, and the example.

    `words` are those of the text with `weights`, which `Diagnostics.weights_meaning` explains; empty if there are none.
    """

    index: int
    location: str
    text: str
    gold: str
    predicted: str
    probability: float | None = None
    words: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    question: str = ""


@dataclass(frozen=True)
class GroupScore(Config):
    """The metrics of a group of dev examples."""

    name: str
    count: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class Diagnostics(Config):
    """What a model gets right and wrong on the dev examples; parts that do not apply to a task are empty.

    `unit` is what labels are counted in: examples, words or entities. `groups` are scores of parts of the dev examples,
    by what divides them. `errors` are wrong predictions, the most confident first.
    """

    num_examples: int
    unit: str = "examples"
    confusion: Confusion | None = None
    labels: tuple[LabelScore, ...] = ()
    calibration: Calibration | None = None
    fit: RegressionFit | None = None
    groups: dict[str, tuple[GroupScore, ...]] = field(default_factory=dict)
    errors: tuple[ErrorCase, ...] = ()
    num_errors: int = 0
    weights_meaning: str = ""

    def write(self, folder: Path) -> None:
        """Write `diagnostics.json` of a run folder."""
        write_json(folder / DIAGNOSTICS_NAME, self.to_json())

    @classmethod
    def read(cls, folder: Path) -> "Diagnostics":
        """Read `diagnostics.json` of a run folder."""
        path = folder / DIAGNOSTICS_NAME
        if not path.is_file():
            raise DataError(f"{folder} has no {DIAGNOSTICS_NAME}: fine-tune again to write one")
        return cls.from_json(read_json(path), str(path))
