"""Captions of images, and where a model looked when it wrote each token."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyseme.errors import DataError, UnsupportedError
from polyseme.generation.config import GenerationConfig
from polyseme.generation.session import pack_inputs
from polyseme.generation.text import TextGenerator, check_single_result
from polyseme.images.regions import RegionFormat
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.trunks.image_text import ImageTextConfig
from polyseme.nn.trunks.recurrent import RecurrentDecoderConfig
from polyseme.report.notebook import NotebookResult

BATCH_IMAGES = 64
ImageLike = str | Path | np.ndarray


@dataclass(frozen=True)
class ImageCaption(NotebookResult):
    """A caption of an image, its log-probability, and whether the model ended it.

    `attention` [pieces, regions] has the weights by which each piece attended to the regions, a grid in reading order:
    the mean over heads and layers.
    """

    text: str
    score: float
    is_finished: bool
    pieces: tuple[str, ...]
    attention: np.ndarray = field(repr=False, compare=False)
    num_rows: int = 0
    num_columns: int = 0


def region_format(config: ModelConfig) -> RegionFormat:
    """Return the regions that a model reads."""
    trunk = config.trunk
    if not isinstance(trunk, ImageTextConfig):
        raise UnsupportedError(f"{config.family} reads text, not images")
    return RegionFormat.of_model(trunk.regions)


def read_regions(config: ModelConfig, images: Sequence[ImageLike], features: Path | None = None) -> list[np.ndarray]:
    """Return the regions of images: files, or arrays of pixels or of features; `features` has those of files."""
    expected = region_format(config)
    region_file = None if features is None else expected.open_file(features)
    regions = []
    for i, image in enumerate(images, 1):
        if isinstance(image, np.ndarray):
            shape = (expected.height, expected.width, 3) if expected.patch_size else None
            if shape is not None and (image.shape != shape or image.dtype != np.uint8):
                raise DataError(f"image {i} is {image.dtype} {image.shape}, but the model reads uint8 {shape}")
            regions.append(expected.to_regions(image))
        else:
            regions.append(expected.read(image, region_file))
    return regions


@torch.inference_mode()
def caption_images(
    generator: TextGenerator, regions: Sequence[np.ndarray], config: GenerationConfig
) -> list[ImageCaption]:
    """Write a caption for each image."""
    check_single_result(config, "an image has one caption")
    model = generator.model
    assert isinstance(model, Model)
    grid = region_format(model.config)
    prompts: list[list[int]] = [list(generator.start_ids) for _ in regions]
    beams = generator.search(prompts, list(regions), config)  # type: ignore[arg-type]
    best = [beam.hypotheses[0] for beam in beams]
    captions = []
    for each, attention in zip(best, source_attention(generator, regions, [each.tokens for each in best])):
        pieces = tuple(generator.target_tokenizer.display_tokens(each.tokens))
        text, places = generator.decode([], each.tokens), (grid.num_rows, grid.num_columns)
        captions.append(ImageCaption(text, each.score, each.is_finished, pieces, attention, *places))
    return captions


def source_attention(
    generator: TextGenerator, regions: Sequence[np.ndarray], token_ids: Sequence[Sequence[int]]
) -> Iterator[np.ndarray]:
    """Yield how the tokens of each text attended to its regions when they were predicted, [tokens, regions]."""
    model: Any = generator.model
    texts = [[*generator.start_ids, *ids] for ids in token_ids]
    for start in range(0, len(texts), BATCH_IMAGES):
        part = slice(start, start + BATCH_IMAGES)
        weights = None
        if isinstance(model.config.trunk.decoder, RecurrentDecoderConfig):
            weights = model.trunk(pack_inputs(texts[part], model, regions[part])).source_attention
        if weights is not None:  # a recurrent decoder returns its weights
            rows = weights.float().cpu().split([len(text) for text in texts[part]])
            maps = [each[:, : len(image)].numpy() for each, image in zip(rows, regions[part])]
        else:
            pairs = zip(texts[part], regions[part])
            maps = [np.mean(_attention_maps(model, text, image, "cross"), axis=0) for text, image in pairs]
        yield from (each[: len(ids)] for each, ids in zip(maps, token_ids[part]))


def encoder_attention(model: Model, regions: np.ndarray) -> np.ndarray | None:
    """Return how regions attend to each other, [regions, regions]; None if the encoder has no attention."""
    maps = _attention_maps(model, [0], regions, "encoder")
    return np.mean(maps, axis=0) if maps else None


@torch.inference_mode()
def _attention_maps(model: Model, token_ids: Sequence[int], regions: np.ndarray, layer: str) -> list[np.ndarray]:
    """Return the weights of each layer of this name, the mean over heads."""
    terms = model.trunk.attention_terms(pack_inputs([token_ids], model, [regions]))
    return [each.weights.float().mean(0).cpu().numpy() for name, each in terms if name == layer]
