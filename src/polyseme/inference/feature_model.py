"""`FeatureModel`: a loaded task model over frozen features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyseme.errors import UnsupportedError
from polyseme.inference.base import LanguageModel

if TYPE_CHECKING:
    from polyseme.finetuning.frozen import FeatureModelFolder
    from polyseme.text.tokenizer import Tokenizer


class FeatureModel(LanguageModel):
    """A task model over the frozen features of one or several models, or over word vectors."""

    def __init__(self, path: Path, folder: FeatureModelFolder):
        super().__init__(path)
        self.folder, self.model, self.task = folder, folder.model, folder.task

    @classmethod
    def load(cls, path: str | Path) -> FeatureModel:
        """Load a folder and the models that its features come from, which must not have changed."""
        from polyseme.finetuning.frozen import load_feature_model

        return cls(Path(path), load_feature_model(Path(path)))

    @staticmethod
    def is_folder(path: Path) -> bool:
        """Whether a folder holds a task model over features."""
        from polyseme.finetuning.frozen import is_feature_model

        return is_feature_model(path)

    @property
    def tokenizer(self) -> Tokenizer:
        raise UnsupportedError(f"{self.path} has no tokenizer: it is {self.description}, which reads words")

    @property
    def description(self) -> str:
        return f"a {self.task.task_type} model over frozen features"

    @property
    def capabilities(self) -> tuple[str, ...]:
        return ("predict", "answer") if self.task.answers_questions else ("predict",)

    def _predict(self, examples: Sequence[Any]) -> list[Any]:
        return self.folder.predict(self.task.read(examples, needs_labels=False))

    def _answer(self, context: str, question: str) -> Any:
        return self._predict([(context, question)])[0]
