"""`FeatureModel`: a loaded task model over frozen features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyseme.errors import UnsupportedError
from polyseme.inference.base import LanguageModel

if TYPE_CHECKING:
    from polyseme.finetuning.frozen import FeatureModelFolder
    from polyseme.tasks.spans import SpanAnswer
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
        return ("predict", "answer") if self.task.task_type in ("span", "extractive_qa") else ("predict",)

    def _predict(self, examples: Sequence[Any]) -> list[Any]:
        from polyseme.evaluation.predict import to_examples

        return self.folder.predict(to_examples(examples, self.model, self.folder.metadata))

    def _answer(self, context: str, question: str) -> SpanAnswer:
        (prediction,) = self._predict([(context, question)])
        return prediction.span
