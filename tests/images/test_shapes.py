"""Generated images: their captions and boxes are true, and held-out pairs are held out."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from polyseme.images.files import encode_png, read_image
from polyseme.images.shapes import COLORS, SHAPES, generate_images, unseen_pairs, write_shapes


def test_each_image_depends_on_its_number_alone():
    five, three = list(generate_images(5)), list(generate_images(3))
    for a, b in zip(five, three):
        assert a.caption == b.caption and np.array_equal(a.pixels, b.pixels)
    assert [image.caption for image in generate_images(5, seed=1)] != [image.caption for image in five]


def test_unseen_pairs_are_in_the_test_images_alone():
    held_out = unseen_pairs()
    assert {color for color, _ in held_out} == set(COLORS) and {shape for _, shape in held_out} == set(SHAPES)
    for image in generate_images(300):
        assert not {(each.color, each.shape) for each in image.objects} & held_out
    for image in generate_images(100, unseen=True):
        assert {(each.color, each.shape) for each in image.objects} & held_out


def test_boxes_hold_the_objects():
    """Many pixels of a box have the color of its object, and captions name objects in their order."""
    for image in generate_images(100):
        for each in image.objects:
            left, top, right, bottom = each.box
            pixels = image.pixels[top:bottom, left:right].reshape(-1, 1, 3).astype(int)
            nearest = np.abs(pixels - np.array(list(COLORS.values()))).sum(-1).argmin(-1)
            assert (nearest == list(COLORS).index(each.color)).mean() > 0.15
        words = image.caption.split()
        for word in image.words():
            assert words[word["position"]] == word["word"] in (*COLORS, *SHAPES)
        if len(image.objects) == 2:
            axis = 0 if "left of" in image.caption else 1
            first, second = (each.center[axis] for each in image.objects)
            assert first < second
            assert abs(first - second) > abs(np.subtract(*(each.center[1 - axis] for each in image.objects)))


def test_png_is_what_pillow_reads(tmp_path):
    pixels = next(generate_images(1)).pixels
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(encode_png(pixels)))), pixels)
    with_alpha = np.concatenate([pixels, pixels[..., :1]], axis=-1)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(encode_png(with_alpha)))), with_alpha)
    (tmp_path / "a.png").write_bytes(encode_png(pixels))
    assert np.array_equal(read_image(tmp_path / "a.png"), pixels)


def test_the_folder(tmp_path):
    assert write_shapes(tmp_path / "shapes", 3, 2) == {"train": 3, "valid": 2, "test": 2}
    rows = [json.loads(line) for line in (tmp_path / "shapes/train.jsonl").read_text().splitlines()]
    assert len(rows) == 3 and read_image(tmp_path / "shapes" / rows[2]["image"]).shape == (64, 64, 3)
    with pytest.raises(Exception, match="already exists"):
        write_shapes(tmp_path / "shapes", 3, 2)
