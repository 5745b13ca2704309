"""Regions: an image as a list of vectors, patches of its pixels or features of another network."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np

from polyseme.config import Config
from polyseme.errors import DataError
from polyseme.images.files import NPZ_ERRORS, check_size, read_image


@dataclass(frozen=True)
class RegionFormat(Config):
    """What the regions of an image are; the fields are those of a model that reads them.

    A grid of patches of `patch_size` pixels on each side, or vectors of `feature_dim` numbers. With `has_boxes`, the
    last four numbers of a vector are the box of its region, and `num_rows` · `num_columns` is the maximum number.
    """

    num_rows: int
    num_columns: int
    patch_size: int = 0
    feature_dim: int = 0
    has_boxes: bool = False

    def __str__(self) -> str:
        if self.patch_size:
            return f"images of {self.width} × {self.height} pixels"
        place = "with boxes" if self.has_boxes else f"on a grid of {self.num_rows} × {self.num_columns}"
        return f"{self.num_regions} vectors of {self.feature_dim} {place}"

    @classmethod
    def of_model(cls, embeddings: Any) -> Self:
        """Return the format that the embeddings of a model's regions have."""
        return cls(**{each.name: getattr(embeddings, each.name) for each in fields(cls)})

    @property
    def num_regions(self) -> int:
        """The number of regions of an image, or the maximum."""
        return self.num_rows * self.num_columns

    @property
    def height(self) -> int:
        """The height of an image in pixels, if regions are patches."""
        return self.num_rows * self.patch_size

    @property
    def width(self) -> int:
        """The width of an image in pixels, if regions are patches."""
        return self.num_columns * self.patch_size

    def to_regions(self, image: np.ndarray) -> np.ndarray:
        """Return the regions of an array as it is stored: patches of pixels, [regions, patch_size² · 3], or itself."""
        if not self.patch_size:
            return image
        size = self.patch_size
        grid = image.reshape(self.num_rows, size, self.num_columns, size, 3)
        return grid.transpose(0, 2, 1, 3, 4).reshape(self.num_regions, 3 * size * size)

    def open_file(self, path: Path | str) -> "RegionFile":
        """Open a file of features, which must be of this format."""
        region_file = RegionFile.open(path)
        if region_file.format != self:
            raise DataError(f"{path} has {region_file.format}, but the model reads {self}")
        return region_file

    def read(self, path: Path | str, region_file: "RegionFile | None" = None) -> np.ndarray:
        """Read the regions of an image file, or those that another file has of it."""
        if region_file is not None:
            return region_file.get(path)
        if not self.patch_size:
            raise DataError(f"the model reads {self}, not pixels: pass a file with those of {path}")
        image = read_image(path)
        check_size(image, self.height, self.width, path)
        return self.to_regions(image)

    @classmethod
    def of_pixels(cls, image: np.ndarray, patch_size: int, path: Path | str) -> Self:
        """Return the format of an image divided into patches."""
        height, width = image.shape[:2]
        if height % patch_size or width % patch_size:
            size = f"{width} × {height}"
            raise DataError(f"{path} has {size} pixels, which patches of {patch_size} × {patch_size} do not divide")
        return cls(height // patch_size, width // patch_size, patch_size)


@dataclass(frozen=True, eq=False)
class RegionFile:
    """Features of the regions of images, from an `.npz` file; images are known by name."""

    path: Path
    format: RegionFormat
    features: np.ndarray  # [images, regions, feature_dim + 4 with boxes]
    index: dict[str, int]

    def get(self, image: Path | str) -> np.ndarray:
        """Return the regions of an image: that of this path, or else of this file name."""
        name = next((n for n in (str(image), Path(image).name) if n in self.index), None)
        if name is None:
            raise DataError(f"{self.path} has no regions of {image}")
        return self.features[self.index[name]]

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Read a file with `features` [images, regions, dim] and `names` [images].

        `grid` [2] is the number of rows and columns, by default a square. Without a grid, `boxes` [images, regions, 4]
        are the left, top, right and bottom of each region as parts of the image.
        """
        path = Path(path)
        if not path.is_file():
            raise DataError(f"there is no file of regions {path}")
        try:
            with np.load(path, allow_pickle=False) as arrays:
                contents = {name: arrays[name] for name in ("features", "names", "grid", "boxes") if name in arrays}
        except NPZ_ERRORS as error:
            raise DataError(f"{path} is not an .npz file of arrays ({' '.join(str(error).split())[:80]})") from None
        features, names = (contents.get(name) for name in ("features", "names"))
        if features is None or names is None:
            missing = "features" if features is None else "names"
            raise DataError(f"{path} has no array {missing!r}; it needs `features` [images, regions, dim] and `names`")
        if features.ndim != 3 or features.dtype.kind != "f" or 0 in features.shape[1:] or not len(features):
            shape = " × ".join(map(str, features.shape))
            raise DataError(f"{path}: features is {features.dtype} {shape}, expected floats [images, regions, dim]")
        if len(names) != len(features) or len(set(names.tolist())) != len(names):
            raise DataError(f"{path}: {len(features)} features need as many different names, not {len(names)}")
        if not np.isfinite(features).all():
            raise DataError(f"{path}: features has values that are not finite")
        if (boxes := contents.get("boxes")) is not None:
            if boxes.shape != (*features.shape[:2], 4):
                raise DataError(f"{path}: boxes is {boxes.shape}, expected {(*features.shape[:2], 4)}")
            features = np.concatenate([features, boxes.astype(features.dtype)], axis=-1)
        grid = _grid_of(contents.get("grid"), features.shape[1], boxes is not None, path)
        region_format = RegionFormat(*grid, 0, features.shape[2] - 4 * (boxes is not None), boxes is not None)
        return cls(path, region_format, features, {str(name): i for i, name in enumerate(names.tolist())})


def _grid_of(grid: np.ndarray | None, num_regions: int, has_boxes: bool, path: Path) -> tuple[int, int]:
    if has_boxes:
        return 1, num_regions
    if grid is not None and (grid.size != 2 or grid.dtype.kind not in "iu"):
        raise DataError(f"{path}: grid is {grid.tolist()}, expected the numbers of rows and columns")
    side = round(num_regions**0.5)
    rows, columns = (side, side) if grid is None else (int(n) for n in np.ravel(grid)[:2])
    if rows * columns != num_regions:
        raise DataError(f"{path}: {num_regions} regions are no grid of {rows} × {columns}; it needs `grid` or `boxes`")
    return rows, columns
