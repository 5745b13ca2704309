"""Generated images of colored shapes with captions and boxes, to score attention against the truth.

Every draw is a hash of the seed and the number of the image. Some pairs of a color and a shape are held out: they occur
in images of unseen pairs only.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from polyseme.images.files import encode_png
from polyseme.io.atomic import atomic_directory, ensure_new_directory, write_text
from polyseme.io.lock import locks_folder
from polyseme.rng import RandomStream, derive_sample_keys, integers, random_bits, uniform

SIZE = 64
COLORS = {
    "red": (215, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 215),
    "yellow": (235, 205, 40),
    "purple": (130, 50, 170),
    "brown": (115, 72, 38),
    "cyan": (50, 200, 210),
    "pink": (245, 130, 190),
    "black": (25, 25, 25),
    "white": (245, 245, 245),
}
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "star", "ring", "moon", "heart", "arrow")
MIN_RADIUS, MAX_RADIUS = 9, 14  # half of the width in pixels
MIN_DIFFERENCE = 6  # between the distances along the two axes, so that one relation is right
SUPERSAMPLING = 4
_GOLDEN_ANGLE = np.pi / 5


def unseen_pairs() -> frozenset[tuple[str, str]]:
    """Return the pairs of a color and a shape that are held out: one of each color, and one of each shape."""
    return frozenset((color, SHAPES[(3 * i + 1) % len(SHAPES)]) for i, color in enumerate(COLORS))


@dataclass(frozen=True)
class ShapeObject:
    """A shape in an image; `box` is its left, top, right and bottom in pixels, exclusive at the end."""

    color: str
    shape: str
    box: tuple[int, int, int, int]

    @property
    def center(self) -> tuple[float, float]:
        """The column and row of its center."""
        return (self.box[0] + self.box[2]) / 2, (self.box[1] + self.box[3]) / 2


@dataclass(frozen=True)
class ShapeImage:
    """Pixels [64, 64, 3], the caption, and the objects in the order in which it names them."""

    pixels: np.ndarray
    caption: str
    objects: tuple[ShapeObject, ...]

    def words(self) -> list[dict[str, object]]:
        """Return the position of each color and each noun among the words of the caption, with the object's box."""
        positions = [1, 2] if len(self.objects) == 1 else [1, 2, len(self.caption.split()) - 2, -1]
        words = self.caption.split()
        boxes = [each.box for each in self.objects for _ in range(2)]
        return [
            {"word": words[p], "position": p % len(words), "box": list(box)}
            for p, box in zip(positions, boxes, strict=True)
        ]


def generate_images(num_images: int, seed: int = 0, unseen: bool = False) -> Iterator[ShapeImage]:
    """Yield images of one or two shapes; with `unseen`, at least one is a pair that is otherwise held out."""
    for number in range(num_images):
        yield _generate_image(number, seed + 2**32 * unseen, unseen)


class _Draws:
    """Uniform draws of one image: the n-th is a hash of seed, image and n."""

    def __init__(self, seed: int, number: int):
        self.keys, self.count = derive_sample_keys(seed, 0, np.array([number])), 0

    def bits(self) -> np.ndarray:
        self.count += 1
        return random_bits(self.keys, self.count, RandomStream.SHAPE_IMAGES)

    def below(self, n: int) -> int:
        return int(integers(self.bits(), n)[0])

    def noise(self, *shape: int) -> np.ndarray:
        """Return uniform noise in ± 1."""
        self.count += 1
        size = int(np.prod(shape))
        bits = random_bits(self.keys, (self.count << 20) + np.arange(size), RandomStream.SHAPE_IMAGES)
        return 2 * uniform(bits).reshape(shape) - 1


def _generate_image(number: int, seed: int, unseen: bool) -> ShapeImage:
    draws = _Draws(seed, number)
    seen_pairs, held_out = _pairs()
    num_objects = 1 if draws.below(4) == 0 else 2
    which_unseen = draws.below(num_objects)
    pairs = []
    for i in range(num_objects):
        pool = held_out if unseen and i == which_unseen else seen_pairs
        pairs.append(pool[draws.below(len(pool))])
    objects = _place(pairs, draws)
    caption, objects = _describe(objects)
    return ShapeImage(_draw(objects, draws), caption, objects)


@cache
def _pairs() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the pairs of training images, and those that are held out."""
    every, held_out = [(color, shape) for color in COLORS for shape in SHAPES], unseen_pairs()
    return [pair for pair in every if pair not in held_out], sorted(held_out)


def _place(pairs: list[tuple[str, str]], draws: _Draws) -> tuple[ShapeObject, ...]:
    """Place shapes that do not touch, with a clear relation between them."""
    while True:
        objects = []
        for color, shape in pairs:
            radius = MIN_RADIUS + draws.below(MAX_RADIUS - MIN_RADIUS + 1)
            x, y = (draws.below(SIZE - 2 * radius + 1) for _ in range(2))
            objects.append(ShapeObject(color, shape, (x, y, x + 2 * radius, y + 2 * radius)))
        if len(objects) == 1 or _is_clear(*objects):
            return tuple(objects)


def _is_clear(first: ShapeObject, second: ShapeObject) -> bool:
    a, b = first.box, second.box
    is_apart = a[2] < b[0] or b[2] < a[0] or a[3] < b[1] or b[3] < a[1]
    dx, dy = (abs(p - q) for p, q in zip(first.center, second.center))
    return is_apart and abs(dx - dy) >= MIN_DIFFERENCE


def _describe(objects: tuple[ShapeObject, ...]) -> tuple[str, tuple[ShapeObject, ...]]:
    """Return the caption, and the objects from left to right or from top to bottom, where they differ most."""
    if len(objects) == 1:
        return f"a {objects[0].color} {objects[0].shape}", objects
    dx, dy = (abs(p - q) for p, q in zip(objects[0].center, objects[1].center))
    axis, relation = (0, "left of") if dx > dy else (1, "above")
    first, second = sorted(objects, key=lambda each: each.center[axis])
    return f"a {first.color} {first.shape} {relation} a {second.color} {second.shape}", (first, second)


def _draw(objects: tuple[ShapeObject, ...], draws: _Draws) -> np.ndarray:
    background = 145 + 40 * draws.noise(1, 1, 1) + 20 * draws.noise(1, 1, 3)
    image = background + 10 * draws.noise(SIZE, SIZE, 3)
    for each in objects:
        left, top, right, bottom = each.box
        coverage = _coverage(each.shape, right - left)[:, :, None]  # [height, width, 1]
        color = np.array(COLORS[each.color]) * (0.98 + 0.14 * draws.noise(1)) + 12 * draws.noise(3)
        color += (color.mean() - color) * (0.08 + 0.08 * draws.noise(1))  # less saturated
        area = image[top:bottom, left:right]
        area += coverage * (color + 6 * draws.noise(*area.shape) - area)
    return image.clip(0, 255).round().astype(np.uint8)


@cache
def _coverage(shape: str, size: int) -> np.ndarray:
    """Return the part of each pixel that a shape covers, [size, size]."""
    steps = (np.arange(size * SUPERSAMPLING) + 0.5) * 2 / (size * SUPERSAMPLING) - 1
    inside = _INSIDE[shape](steps[None, :], steps[:, None]).astype(np.float64)
    return inside.reshape(size, SUPERSAMPLING, size, SUPERSAMPLING).mean((1, 3))


def _is_in_star(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return whether points are in a star of five points, one of them at the top."""
    angles = np.abs((np.arctan2(x, -y) + _GOLDEN_ANGLE) % (2 * _GOLDEN_ANGLE) - _GOLDEN_ANGLE)  # to the next point
    radii, inner = np.hypot(x, y), 0.42
    px, py = radii * np.cos(angles), radii * np.sin(angles)
    qx, qy = inner * np.cos(_GOLDEN_ANGLE), inner * np.sin(_GOLDEN_ANGLE)
    return (qx - 1) * py - qy * (px - 1) >= 0


_INSIDE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "circle": lambda x, y: x**2 + y**2 <= 1,
    "square": lambda x, y: np.maximum(abs(x), abs(y)) <= 0.9,
    "triangle": lambda x, y: (y <= 0.9) & (2 * abs(x) <= (y + 1)),
    "diamond": lambda x, y: abs(x) + abs(y) <= 1,
    "cross": lambda x, y: np.minimum(abs(x), abs(y)) <= 0.32,
    "star": _is_in_star,
    "ring": lambda x, y: (x**2 + y**2 <= 1) & (x**2 + y**2 >= 0.36),
    "moon": lambda x, y: (x**2 + y**2 <= 1) & ((x - 0.5) ** 2 + y**2 >= 0.64),
    "heart": lambda x, y: (
        ((abs(x) - 0.48) ** 2 + (y + 0.42) ** 2 <= 0.27) | ((y >= -0.42) & (y <= 0.95) & (abs(x) <= 0.72 * (0.95 - y)))
    ),
    "arrow": lambda x, y: ((x <= 0.1) & (abs(y) <= 0.3)) | ((x >= 0) & (abs(y) <= 0.95 * (1 - x))),
}


SPLITS = ("train", "valid", "test")


@locks_folder("shapes")
def write_shapes(out: Path, num_train: int = 10_000, num_eval: int = 1_000, seed: int = 0) -> dict[str, int]:
    """Write PNG images with captions and boxes to a new folder, and return the number of images of each split.

    `train.jsonl` and `valid.jsonl` have the same pairs of color and shape, `test.jsonl` has unseen ones. A row has
    `image`, `caption`, and `words`: the position of each color and noun in the caption, with its box in pixels.
    """
    ensure_new_directory(out)
    sizes = dict(zip(SPLITS, (num_train, num_eval, num_eval)))
    with atomic_directory(out) as folder:
        for number, (split, size) in enumerate(sizes.items()):
            (folder / split).mkdir()
            rows = []
            for i, image in enumerate(generate_images(size, len(SPLITS) * seed + number, split == "test")):
                name = f"{split}/{i:06d}.png"
                (folder / name).write_bytes(encode_png(image.pixels))
                rows.append(json.dumps({"image": name, "caption": image.caption, "words": image.words()}) + "\n")
            write_text(folder / f"{split}.jsonl", "".join(rows))
    return sizes
