"""Tiny models and folders of images."""

import json
from pathlib import Path

import numpy as np
import torch

from polyseme.corpus.captions import prepare_captions
from polyseme.families import IMAGE_FAMILIES
from polyseme.images.shapes import write_shapes
from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout
from polyseme.text.tokenizer import Tokenizer

REGION_SIZES = {
    "pixels": {"num_rows": 2, "num_columns": 3, "patch_size": 4, "feature_dim": 0, "conv_dim": 2},
    "linear patches": {"num_rows": 2, "num_columns": 3, "patch_size": 4, "feature_dim": 0, "conv_dim": 0},
    "features": {"num_rows": 2, "num_columns": 3, "patch_size": 0, "feature_dim": 5},
    "boxes": {"num_rows": 1, "num_columns": 6, "patch_size": 0, "feature_dim": 5, "has_boxes": True},
}
SIZES = {
    "show_attend_tell": {"dim": 8},
    "image_transformer": {"dim": 8, "num_layers": 2, "num_heads": 2},
}
VOCAB = 11


def tiny_image_model(family: str, regions: str = "pixels", dtype=torch.float64, **changes):
    """Return a model without dropout."""
    sizes = {**SIZES[family], **REGION_SIZES[regions], "vocab_size": VOCAB, "max_len": 20, "dropout": 0.0, **changes}
    return IMAGE_FAMILIES[family].model_config(**sizes).build(3).to(dtype).eval()


def random_regions(model, num_images: int, seed: int = 0) -> list[torch.Tensor]:
    """Return regions of images as a model reads them; with boxes, their number differs."""
    config = model.config.trunk.regions
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, config.max_len + 1, num_images) if config.has_boxes else [config.max_len] * num_images
    scale = 255 if config.patch_size else 1
    return [torch.from_numpy(scale * rng.random((int(n), config.input_dim))) for n in sizes]


def read(model, images: list[torch.Tensor], texts: list[torch.Tensor], **options):
    """Run the trunk on texts about images."""
    source = EncoderInput(torch.cat(images), layout_of(images))
    return model.trunk(Inputs(torch.cat(texts), layout_of(texts), source=source), **options)


def layout_of(rows) -> PackedLayout:
    return PackedLayout.from_lengths([len(row) for row in rows])


def write_corpus(folder: Path, num_images: int = 40) -> Path:
    """Write images of shapes to `shapes`, and their corpus to `corpus`, which is returned."""
    write_shapes(folder / "shapes", num_images, 8)
    rows = (folder / "shapes/train.jsonl").read_text().splitlines()
    texts = [json.loads(row)["caption"] for row in rows] + ["is there a shape what color no yes?"] * 2
    tokenizer = Tokenizer.train("words", texts, vocab_size=100)
    prepare_captions([str(folder / "shapes/train.jsonl")], tokenizer, folder / "corpus")
    return folder / "corpus"
