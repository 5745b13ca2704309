"""Regions of images as the input of a trunk: patches of pixels or feature vectors, with their positions."""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Config
from polyseme.errors import ConfigError
from polyseme.nn.packing import Inputs

NUM_BOX_FREQUENCIES = 6


@dataclass(frozen=True)
class RegionEmbeddingsConfig(Config):
    """Embeddings of the regions of an image, a grid of `num_rows` × `num_columns` in reading order.

    With a `patch_size`, a region is a patch of RGB pixels, `patch_size`² · 3 bytes. Convolutions of 3 × 3 with stride
    2, one for each of `conv_dims`, reduce the image to the grid, and `num_grid_convs` residual ones let each region see
    its neighbors; without them, a linear layer embeds each patch (Dosovitskiy et al. 2021, §3.1). With a `feature_dim`,
    a region is a vector of another network.

    Each region gets the sum of an embedding of its row and one of its column. With `has_boxes`, regions are not on a
    grid: there are up to `num_rows` · `num_columns`, and the last four numbers of each are its box (left, top, right,
    bottom, from 0 to 1). A `hidden_dim` adds a feed-forward layer, which relates content and position.
    """

    dim: int
    num_rows: int
    num_columns: int
    patch_size: int = 0
    feature_dim: int = 0
    conv_dims: tuple[int, ...] = ()
    num_grid_convs: int = 0
    hidden_dim: int = 0
    has_boxes: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        self.check_range(1, math.inf, "dim", "num_rows", "num_columns")
        self.check_range(0, math.inf, "patch_size", "feature_dim", "hidden_dim", "num_grid_convs")
        self.check_range(0, 1, "dropout")
        if bool(self.patch_size) == bool(self.feature_dim):
            sizes = f"patch_size is {self.patch_size} and feature_dim {self.feature_dim}"
            raise ConfigError(f"{sizes}: a region is a patch of pixels or a vector, so one of them must be 0")
        if self.conv_dims and 2 ** len(self.conv_dims) != self.patch_size:
            expected = f"{len(self.conv_dims)} convolutions reduce patches of {2 ** len(self.conv_dims)} pixels"
            raise ConfigError(f"patch_size is {self.patch_size}, but {expected} to one region")
        if self.num_grid_convs and not self.conv_dims:
            raise ConfigError(f"num_grid_convs is {self.num_grid_convs}, but there are no conv_dims before them")
        if self.has_boxes and self.patch_size:
            raise ConfigError("has_boxes is true, but patches of pixels are on a grid: set it to false")

    vocab_size = 0  # regions are not tokens
    num_segments = 0
    embedding_dim = 0

    @property
    def max_len(self) -> int:
        """The maximum number of regions of an image."""
        return self.num_rows * self.num_columns

    @property
    def input_dim(self) -> int:
        """The number of values of a region in a batch."""
        return 3 * self.patch_size**2 if self.patch_size else self.feature_dim + 4 * self.has_boxes

    @property
    def matmul_params(self) -> int:
        """The number of multiplications for each region."""
        channels = (3, *self.conv_dims)
        num_pixels = [4 ** (len(self.conv_dims) - i) for i in range(1, len(channels))]  # per region, of each output
        convs = sum(9 * a * b * n for a, b, n in zip(channels, channels[1:], num_pixels))
        last_dim = self.conv_dims[-1] if self.conv_dims else 3 * self.patch_size**2 or self.feature_dim
        return convs + 9 * last_dim**2 * self.num_grid_convs + last_dim * self.dim + 2 * self.dim * self.hidden_dim

    def build(self) -> nn.Module:
        return RegionEmbeddings(self)


class RegionEmbeddings(nn.Module):
    """Embeds packed regions; images do not influence each other."""

    def __init__(self, config: RegionEmbeddingsConfig):
        super().__init__()
        self.config = config
        channels = (3, *config.conv_dims)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise(channels))
        last_dim = config.conv_dims[-1] if config.conv_dims else config.input_dim - 4 * config.has_boxes
        self.grid_convs = nn.ModuleList(
            nn.Conv2d(last_dim, last_dim, 3, padding=1) for _ in range(config.num_grid_convs)
        )
        self.projection = nn.Linear(last_dim, config.dim)
        self.rows = None if config.has_boxes else nn.Embedding(config.num_rows, config.dim)
        self.columns = None if config.has_boxes else nn.Embedding(config.num_columns, config.dim)
        self.boxes = nn.Linear(8 * NUM_BOX_FREQUENCIES, config.dim) if config.has_boxes else None
        self.up = nn.Linear(config.dim, config.hidden_dim) if config.hidden_dim else None
        self.down = nn.Linear(config.hidden_dim, config.dim) if config.hidden_dim else None
        self.norm = nn.LayerNorm(config.dim)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, inputs: Inputs, positions: Tensor | None = None, max_seqlen: int | None = None) -> Tensor:
        """Return the embeddings of packed regions, [S, dim]; `inputs.tokens` are their values, [S, input_dim]."""
        config, dtype = self.config, self.projection.weight.dtype
        values = inputs.tokens.to(dtype)  # [S, input_dim]
        if config.has_boxes:
            values, boxes = values[:, :-4], values[:, -4:]
            frequencies = math.pi * 2.0 ** torch.arange(NUM_BOX_FREQUENCIES, device=values.device)
            angles = (boxes[:, :, None] * frequencies).flatten(1)  # [S, 4 · frequencies]
            position = self.boxes(torch.cat([angles.sin(), angles.cos()], dim=-1).to(dtype))  # type: ignore[misc]
        else:
            index = inputs.layout.positions
            position = self.rows(index // config.num_columns) + self.columns(index % config.num_columns)  # type: ignore[misc]
        if config.patch_size:
            values = values / 127.5 - 1
        if len(self.convs):
            values = self._convolve(values)  # [S, conv_dims[-1]]
        x = self.projection(values) + position  # [S, dim]
        if self.up is not None and self.down is not None:
            x = x + self.down(F.relu(self.up(x)))
        return self.dropout(self.norm(x))

    def _convolve(self, patches: Tensor) -> Tensor:
        """Put the patches [S, patch_size² · 3] of each image together, and reduce it to its grid again."""
        config = self.config
        grid = patches.view(-1, config.num_rows, config.num_columns, config.patch_size, config.patch_size, 3)
        pixels = grid.transpose(2, 3).flatten(3, 4).flatten(1, 2)  # [images, height, width, 3]
        x = pixels.permute(0, 3, 1, 2)  # [images, 3, height, width], the channels last in memory
        for conv in self.convs:
            x = F.relu(conv(x))
        for conv in self.grid_convs:
            x = x + F.relu(conv(x))
        return x.permute(0, 2, 3, 1).flatten(0, 2)
