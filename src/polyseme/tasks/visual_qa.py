"""Visual question answering: the answer to a question about an image, one of those in the training set."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch

from polyseme.errors import DataError, UnsupportedError
from polyseme.images.regions import RegionFormat
from polyseme.nn.packing import EncoderInput, PackedLayout
from polyseme.nn.trunks.image_text import ImageTextConfig
from polyseme.objectives.batch import Batch
from polyseme.tasks.base import BaselineFn
from polyseme.tasks.baselines.texts import linear_classifier, majority_label
from polyseme.tasks.classification import LabelTask
from polyseme.tasks.encoded import Encoded, EncodedExample
from polyseme.tasks.readers import rows
from polyseme.tasks.sequence import TextExample
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import read_model_config


@dataclass(frozen=True)
class ImageQuestion(TextExample):
    """A question (`text`) about an image file, and its answer (`label`)."""

    image: str = ""


@dataclass(frozen=True)
class VisualQATask(LabelTask):
    """The tokens of a question attend to the regions of an image; the last state is classified.

    `regions` are those that the model reads. `region_file` has the features of images, if it does not read pixels.
    """

    task_type = "visual_qa"
    example_type = ImageQuestion
    pipeline_tag = "visual-question-answering"
    supports_attribution = False
    usage_example: ClassVar[Any] = {"image": "image.png", "question": "what shape is in the image?"}

    regions: RegionFormat | None = field(default=None, kw_only=True)
    region_file: str = field(default="", kw_only=True)

    @classmethod
    def row_format(cls, columns: rows.Columns, needs_labels: bool) -> rows.RowFormat:
        names = {"image": "image", "text": columns.text or "question", "label": columns.label or "answer"}

        def build(location: str, values: dict[str, Any]) -> ImageQuestion:
            question = rows.parse_text(values["text"], location, names["text"])
            label = rows.parse_label(values.get("label"), location, names["label"], needs_labels)
            image = rows.parse_text(values["image"], location, "image")
            folder = Path(location.rpartition(":")[0]).parent  # that of the file, if there is one
            return ImageQuestion(location, question, None, label, image=str(folder / image))

        return rows.RowFormat(names, () if needs_labels else ("label",), build)

    @classmethod
    def parse_value(cls, value: Any, location: str) -> ImageQuestion:
        if isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(each, str | Path) for each in value):
            return ImageQuestion(location, str(value[1]), image=str(value[0]))
        raise DataError(f"{location} is {str(value)[:40]!r}: an image and a question are needed")

    def select_usage_example(self, train: Sequence[Any]) -> Any:
        return self.usage_example

    def fit_model(self, folder: Path) -> Self:
        config = read_model_config(folder)[0]
        if not isinstance(config.trunk, ImageTextConfig):
            raise UnsupportedError(
                f"visual_qa needs a model that reads images, and {folder} ({config.family}) does not"
            )
        return self.replace(regions=RegionFormat.of_model(config.trunk.regions))

    def encode_truncated(
        self, examples: Sequence[Any], targets: Sequence[Any], tokenizer: Tokenizer, max_len: int
    ) -> Iterator[tuple[EncodedExample, int]]:
        if self.regions is None:
            raise UnsupportedError("visual_qa needs a model that reads images: fine-tune one for it first")
        region_file = self.regions.open_file(self.region_file) if self.region_file else None
        images: dict[str, np.ndarray] = {}
        for example, (encoded, length) in zip(
            examples, super().encode_truncated(examples, targets, tokenizer, max_len)
        ):
            if example.image not in images:
                images[example.image] = self.regions.read(example.image, region_file)
            yield replace(encoded, regions=images[example.image]), length

    def collate(self, encoded: Encoded) -> tuple[Batch, list[int]]:
        batch, order = super().collate(encoded)
        regions = [encoded[i].regions for i in order]
        layout = PackedLayout.from_lengths([len(each) for each in regions])  # type: ignore[arg-type]
        source = EncoderInput(torch.from_numpy(np.concatenate(regions)), layout)  # type: ignore[arg-type]
        inputs = replace(batch.inputs, source=source)
        return replace(batch, inputs=inputs, num_tokens=batch.num_tokens + layout.num_tokens), order

    def num_tokens(self, encoded: EncodedExample) -> int:
        return len(encoded.ids) + len(encoded.regions)  # type: ignore[arg-type]

    def baselines(self) -> dict[str, BaselineFn]:
        return {"majority": majority_label, "question_only": linear_classifier}
