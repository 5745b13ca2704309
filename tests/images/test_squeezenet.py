"""SqueezeNet against a convolution written in numpy, and on a photograph."""

from pathlib import Path

import numpy as np
import pytest
import torch

from polyseme.errors import DataError
from polyseme.images.files import encode_png
from polyseme.images.regions import RegionFile
from polyseme.images.squeezenet import MEAN_BGR, SqueezeNet, _expected_shapes, write_features

WEIGHTS = Path(__file__).parents[3] / "shared/vision/squeezenet_v1.0.npz"
if not WEIGHTS.exists():
    WEIGHTS = Path(__file__).parents[4] / "shared/vision/squeezenet_v1.0.npz"


def random_weights(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = _expected_shapes()
    return {
        name: (rng.normal(size=s) * np.sqrt(2 / np.prod(s[1:] or (100,)))).astype(np.float32)
        for name, s in shapes.items()
    }


def conv(x, weight, bias, stride=1, padding=0):
    """Convolve [channels, height, width] in numpy, and rectify."""
    size = weight.shape[-1]
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))[:, ::stride, ::stride]
    return np.maximum(np.einsum("cyxhw,ochw->oyx", windows, weight, optimize=True) + bias[:, None, None], 0)


def pool(x):
    """Pool 3 × 3 with stride 2, the last window cut at the border."""
    size = -(-(x.shape[1] - 3) // 2) + 1
    return np.stack(
        [[x[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max((1, 2)) for j in range(size)] for i in range(size)]
    ).transpose(2, 0, 1)


def numpy_features(image, w):
    x = image.astype(np.float32)[:, :, ::-1].transpose(2, 0, 1) - np.array(MEAN_BGR)[:, None, None]
    x = pool(conv(x, w["conv1.weight"], w["conv1.bias"], stride=2))
    for number in range(2, 10):
        p = f"fire{number}."
        s = conv(x, w[p + "conv1x1_1.weight"], w[p + "conv1x1_1.bias"])
        a = conv(s, w[p + "conv1x1_2.weight"], w[p + "conv1x1_2.bias"])
        b = conv(s, w[p + "conv3x3_2.weight"], w[p + "conv3x3_2.bias"], padding=1)
        x = np.concatenate([a, b])
        x = pool(x) if number in (4, 8) else x
    return x


def test_features_equal_those_in_numpy():
    weights = random_weights()
    image = np.random.default_rng(1).integers(0, 256, (227, 227, 3), np.uint8)
    network = SqueezeNet({name: torch.from_numpy(array) for name, array in weights.items()})
    features = network.features(image[None])[0].numpy()
    expected = numpy_features(image, weights)
    assert features.shape == expected.shape == (512, 13, 13)
    np.testing.assert_allclose(features, expected, atol=1e-3 * expected.max())
    assert expected.max() > 0.1


@pytest.mark.skipif(not WEIGHTS.exists(), reason="the weights are not here")
def test_a_photograph_of_a_temple_is_a_temple():
    """scikit-learn's china.jpg: the five likeliest of 1,000 classes include monastery (663) and stupa (832)."""
    from sklearn.datasets import load_sample_image

    image = load_sample_image("china.jpg")
    side = min(image.shape[:2])
    top, left = (image.shape[0] - side) // 2, (image.shape[1] - side) // 2
    crop = image[None, top : top + side, left : left + side]
    best = SqueezeNet.load(WEIGHTS).classify(crop)[0].topk(5).indices.tolist()
    assert {663, 832} <= set(best)


def test_files(tmp_path):
    weights = random_weights()
    np.savez(tmp_path / "weights.npz", **weights)
    images = np.random.default_rng(0).integers(0, 256, (2, 20, 30, 3), np.uint8)
    for i, image in enumerate(images):
        (tmp_path / f"{i}.png").write_bytes(encode_png(image))
    paths = [tmp_path / "0.png", tmp_path / "1.png"]
    assert write_features(tmp_path / "weights.npz", paths, tmp_path / "f.npz", grid=4) == (2, 16, 512)
    regions = RegionFile.open(tmp_path / "f.npz")
    assert (regions.format.num_rows, regions.format.num_columns, regions.format.feature_dim) == (4, 4, 512)
    alone = write_features(tmp_path / "weights.npz", paths[1:], tmp_path / "g.npz", grid=4)
    assert alone == (1, 16, 512)
    np.testing.assert_allclose(regions.get("1.png"), RegionFile.open(tmp_path / "g.npz").get(paths[1]), atol=1e-2)
    with pytest.raises(DataError, match="has no regions of 7"):
        regions.get("7.png")

    weights["fire3.conv1x1_1.bias"] = np.zeros(5, np.float32)
    np.savez(tmp_path / "wrong.npz", **weights)
    with pytest.raises(DataError, match=r"fire3.conv1x1_1.bias is \(5,\), expected \(16,\)"):
        SqueezeNet.load(tmp_path / "wrong.npz")
    del weights["conv1.weight"]
    np.savez(tmp_path / "less.npz", **weights)
    with pytest.raises(DataError, match=r"has no array 'conv1\.weight'"):
        SqueezeNet.load(tmp_path / "less.npz")
    (tmp_path / "text.npz").write_text("no arrays")
    with pytest.raises(DataError, match=r"is not an \.npz file of arrays"):
        SqueezeNet.load(tmp_path / "text.npz")


@pytest.mark.parametrize(
    "arrays,message",
    [
        ({"names": ["a"]}, "has no array 'features'"),
        ({"features": np.ones((1, 4, 2))}, "has no array 'names'"),
        ({"features": np.ones((1, 4)), "names": ["a"]}, r"expected floats \[images, regions, dim\]"),
        ({"features": np.ones((1, 4, 2), int), "names": ["a"]}, "features is int64"),
        ({"features": np.ones((1, 0, 2)), "names": ["a"]}, "expected floats"),
        ({"features": np.ones((2, 4, 2)), "names": ["a", "a"]}, "need as many different names"),
        ({"features": np.ones((1, 5, 2)), "names": ["a"]}, "5 regions are no grid of 2 × 2"),
        ({"features": np.ones((1, 4, 2)), "names": ["a"], "grid": [4]}, r"grid is \[4\], expected the numbers of rows"),
        ({"features": np.full((1, 4, 2), np.nan), "names": ["a"]}, "not finite"),
        ({"features": np.ones((1, 4, 2)), "names": ["a"], "boxes": np.ones((1, 3, 4))}, r"boxes is \(1, 3, 4\)"),
    ],
)
def test_wrong_arrays_of_regions(arrays, message, tmp_path):
    np.savez(tmp_path / "regions.npz", **arrays)
    with pytest.raises(DataError, match=message) as error:
        RegionFile.open(tmp_path / "regions.npz")
    assert "regions.npz" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("open_file", [RegionFile.open, SqueezeNet.load])
@pytest.mark.parametrize("damage", ["cut", "changed", "array"])
def test_damaged_files_of_arrays(open_file, damage, tmp_path):
    path = tmp_path / "arrays.npz"
    np.savez_compressed(path, features=np.random.default_rng(0).normal(size=(1, 4, 200)), names=["a"])
    content = path.read_bytes()
    if damage == "array":
        with open(path, "wb") as file:
            np.save(file, np.ones(3))
    else:
        path.write_bytes(content[:3000] if damage == "cut" else content[:200] + b"\xff" * 50 + content[250:])
    with pytest.raises(DataError, match=r"arrays\.npz is not an \.npz file of arrays"):
        open_file(path)
