"""SqueezeNet v1.0 (Iandola et al. 2016) as a frozen extractor of image features, from an `.npz` file of its weights.

Conventions are those of Caffe, in which it was trained: BGR minus the mean color, 227 × 227 pixels, pooling that rounds
sizes up.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polyseme.errors import DataError
from polyseme.images.files import NPZ_ERRORS, read_image
from polyseme.io.atomic import atomic_write, ensure_new_file
from polyseme.progress import progress

INPUT_SIZE = 227
GRID, FEATURE_DIM = 13, 512
MEAN_BGR = (104.0, 117.0, 123.0)
_FIRES = tuple(range(2, 10))
_POOLED_AFTER = (4, 8)  # fire modules that max-pooling follows
BATCH_IMAGES = 16


class SqueezeNet:
    """The network up to its features, [images, 512, 13, 13], and its classes."""

    def __init__(self, weights: dict[str, Tensor]):
        self.weights = weights

    @classmethod
    def load(cls, path: Path | str) -> "SqueezeNet":
        """Read the weights: `conv1`, `fire2` to `fire9` and `conv_final`, each with weight and bias."""
        path = Path(path)
        if not path.is_file():
            raise DataError(f"there is no file {path} with the weights of SqueezeNet")
        try:
            with np.load(path, allow_pickle=False) as arrays:
                weights = {name: torch.from_numpy(arrays[name].astype(np.float32)) for name in arrays.files}
        except NPZ_ERRORS as error:
            raise DataError(f"{path} is not an .npz file of arrays ({' '.join(str(error).split())[:80]})") from None
        for name, shape in _expected_shapes().items():
            if name not in weights:
                raise DataError(f"{path} has no array {name!r}: it does not hold the weights of SqueezeNet v1.0")
            if tuple(weights[name].shape) != shape:
                raise DataError(f"{path}: {name} is {tuple(weights[name].shape)}, expected {shape}")
        return cls(weights)

    def _conv(self, x: Tensor, name: str, **options: Any) -> Tensor:
        return F.relu(F.conv2d(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], **options))

    @torch.inference_mode()
    def features(self, images: np.ndarray) -> Tensor:
        """Return the features of RGB images, uint8 [n, height, width, 3], resized to the network's input."""
        x = torch.tensor(images).permute(0, 3, 1, 2).float()
        x = F.interpolate(x, (INPUT_SIZE, INPUT_SIZE), mode="bilinear", align_corners=False, antialias=True)
        x = x.flip(1) - torch.tensor(MEAN_BGR)[:, None, None]  # [n, 3, 227, 227]
        x = _pool(self._conv(x, "conv1", stride=2))  # [n, 96, 55, 55]
        for number in _FIRES:
            squeezed = self._conv(x, f"fire{number}.conv1x1_1")
            parts = [("conv1x1_2", 0), ("conv3x3_2", 1)]
            x = torch.cat([self._conv(squeezed, f"fire{number}.{name}", padding=pad) for name, pad in parts], dim=1)
            if number in _POOLED_AFTER:
                x = _pool(x)  # [n, 256, 27, 27], then [n, 512, 13, 13]
        return x

    @torch.inference_mode()
    def classify(self, images: np.ndarray) -> Tensor:
        """Return the probabilities of ImageNet's 1,000 classes, [n, 1000]."""
        return self._conv(self.features(images), "conv_final", padding=1).mean((2, 3)).softmax(-1)


def _pool(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, stride=2, ceil_mode=True)


def _expected_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"conv1": (96, 3, 7, 7), "conv_final": (1000, FEATURE_DIM, 1, 1)}
    num_inputs = 96
    for number in _FIRES:
        squeeze = 16 * (number // 2)
        shapes |= {
            f"fire{number}.conv1x1_1": (squeeze, num_inputs, 1, 1),
            f"fire{number}.conv1x1_2": (4 * squeeze, squeeze, 1, 1),
            f"fire{number}.conv3x3_2": (4 * squeeze, squeeze, 3, 3),
        }
        num_inputs = 8 * squeeze
    return {f"{name}.{part}": size for name, shape in shapes.items() for part, size in _parts(shape)}


def _parts(shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    return [("weight", shape), ("bias", shape[:1])]


def extract_features(network: SqueezeNet, paths: Sequence[Path], grid: int = GRID) -> Iterator[np.ndarray]:
    """Yield the features of image files of any size, float16 [grid², 512]; a smaller grid averages neighbors."""
    with progress("features", len(paths), "images", len(paths) > 50) as bar:
        for start in range(0, len(paths), BATCH_IMAGES):
            images = [read_image(path) for path in paths[start : start + BATCH_IMAGES]]
            same_size = len({image.shape for image in images}) == 1
            batches = [np.stack(images)] if same_size else [image[None] for image in images]
            for batch in batches:
                x = network.features(batch)
                x = x if grid == GRID else F.adaptive_avg_pool2d(x, grid)
                yield from x.flatten(2).transpose(1, 2).half().numpy()
            bar.advance(len(images))


def write_features(weights: Path, paths: Sequence[Path], out: Path, grid: int = GRID) -> tuple[int, ...]:
    """Write the features of image files to a new `.npz` file, and return their shape, [images, regions, 512].

    Images are stored under their file names, or under their paths if two have the same name.
    """
    if out.suffix != ".npz":
        raise DataError(f"{out}: features are written to a file whose name ends in .npz")
    if not 1 <= grid <= GRID:
        raise DataError(f"grid is {grid}, expected 1 to {GRID}: SqueezeNet has {GRID} × {GRID} regions")
    if not paths:
        raise DataError("there are no images to extract features of")
    ensure_new_file(out)
    features = np.stack(list(extract_features(SqueezeNet.load(weights), paths, grid)))
    names = [path.name for path in paths]
    names = names if len(set(names)) == len(names) else [str(path) for path in paths]

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            np.savez(file, features=features, names=np.array(names), grid=np.array([grid, grid]))

    atomic_write(out, write)
    return features.shape
