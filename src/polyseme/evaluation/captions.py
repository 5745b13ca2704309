"""Metrics of captions: exact match, and whether the model looked at what each word names (pointing accuracy)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyseme.errors import DataError
from polyseme.generation.captions import ImageCaption
from polyseme.images.files import read_image
from polyseme.inference.base import LanguageModel
from polyseme.io.json import parse_json_object
from polyseme.io.lines import raise_errors, read_lines


@dataclass(frozen=True)
class CaptionedImage:
    """An image file, its true caption, and the words whose box is known."""

    image: Path
    caption: str
    words: tuple[Mapping[str, Any], ...] = ()


def read_captioned_images(path: Path) -> list[CaptionedImage]:
    """Read JSON lines with `image`, relative to the file, `caption` and, for pointing, `words`."""
    rows = []
    for number, line in raise_errors(read_lines(path, str(path))):
        if not line.strip():
            continue
        location = f"{path} line {number}"
        row = parse_json_object(line, location)
        for key in ("image", "caption"):
            if not isinstance(row.get(key), str):
                raise DataError(f"{location}: there is no {key}")
        words = row.get("words", [])
        is_valid = isinstance(words, list) and all(
            isinstance(word, dict) and isinstance(word.get("position"), int) and len(word.get("box", ())) == 4
            for word in words
        )
        if not is_valid:
            raise DataError(f"{location}: words is no list of objects with `position` and `box`")
        rows.append(CaptionedImage(path.parent / row["image"], row["caption"], tuple(words)))
    if not rows:
        raise DataError(f"{path} has no captions")
    return rows


def caption_metrics(
    examples: Sequence[CaptionedImage], captions: Sequence[ImageCaption], size: tuple[int, int] | None = None
) -> dict[str, float]:
    """Return the share of captions that are right in every word, and the pointing accuracy where boxes are known.

    A word points right if it is right and the center of the region with the largest weight is in its box. Boxes are in
    pixels of images of `size` (width, height). Captions are compared by words.
    """
    exact = [caption.text.split() == example.caption.split() for example, caption in zip(examples, captions)]
    metrics = {"exact_match": sum(exact) / len(exact), "images": float(len(exact))}
    hits = [
        _points_right(word, caption, size)
        for example, caption in zip(examples, captions)
        for word in (example.words if size is not None else ())
    ]
    if hits:
        metrics |= {"pointing_accuracy": sum(hits) / len(hits), "words": float(len(hits))}
    return metrics


def _points_right(word: Mapping[str, Any], caption: ImageCaption, size: tuple[int, int] | None) -> bool:
    assert size is not None
    position, words = word["position"], caption.text.split()
    if len(words) != len(caption.pieces) or position >= len(words) or words[position] != word.get("word"):
        return False
    row, column = divmod(int(caption.attention[position].argmax()), caption.num_columns)
    x = (column + 0.5) * size[0] / caption.num_columns
    y = (row + 0.5) * size[1] / caption.num_rows
    left, top, right, bottom = word["box"]
    return bool(left <= x < right and top <= y < bottom)


def evaluate_captions(model: LanguageModel, path: Path | str, **options: Any) -> dict[str, float]:
    """Caption the images of a file and return the metrics; `options` are those of `LanguageModel.caption`."""
    examples = read_captioned_images(Path(path))
    captions = model.caption([str(example.image) for example in examples], **options)
    has_boxes = any(example.words for example in examples)
    size = read_image(examples[0].image).shape[1::-1] if has_boxes else None
    return caption_metrics(examples, captions, size)
