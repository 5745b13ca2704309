"""Captions of images, and where a model looked when it wrote each token."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyseme.errors import DataError, UnsupportedError
from polyseme.generation.config import GenerationConfig
from polyseme.generation.session import pack_inputs
from polyseme.generation.text import TextGenerator
from polyseme.images.regions import RegionFormat
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.trunks.image_text import ImageTextConfig
from polyseme.report.notebook import NotebookResult

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
    model = generator.model
    assert isinstance(model, Model)
    grid = region_format(model.config)
    prompts: list[list[int]] = [list(generator.start_ids) for _ in regions]
    captions = []
    for image, beam in zip(regions, generator.search(prompts, list(regions), config)):  # type: ignore[arg-type]
        best = beam.hypotheses[0]
        pieces = tuple(generator.target_tokenizer.display_tokens(best.tokens))
        attention = source_attention(generator, image, best.tokens)
        text = generator.decode([], best.tokens)
        captions.append(
            ImageCaption(text, best.score, best.is_finished, pieces, attention, grid.num_rows, grid.num_columns)
        )
    return captions


def source_attention(generator: TextGenerator, regions: np.ndarray, token_ids: Sequence[int]) -> np.ndarray:
    """Return how each token attended to the regions when it was predicted, [tokens, regions]."""
    model: Any = generator.model
    maps = _attention_maps(model, [*generator.start_ids, *token_ids], regions, "cross")
    return np.mean(maps, axis=0)[: len(token_ids)]


def encoder_attention(model: Model, regions: np.ndarray) -> np.ndarray | None:
    """Return how regions attend to each other, [regions, regions]; None if the encoder has no attention."""
    maps = _attention_maps(model, [0], regions, "encoder")
    return np.mean(maps, axis=0) if maps else None


@torch.inference_mode()
def _attention_maps(model: Model, token_ids: Sequence[int], regions: np.ndarray, layer: str) -> list[np.ndarray]:
    """Return the weights of each layer of this name, the mean over heads."""
    terms = model.trunk.attention_terms(pack_inputs([token_ids], model, [regions]))
    return [each.weights.float().mean(0).cpu().numpy() for name, each in terms if name == layer]
