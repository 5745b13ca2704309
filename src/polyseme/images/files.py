"""Images as arrays of RGB bytes, read by Pillow and written as PNG without it."""

import struct
import zlib
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from polyseme.errors import DataError, require_packages

MAX_PIXELS = 1 << 26
# what `np.load` raises for a damaged file, and for one that is no .npz
NPZ_ERRORS = (OSError, ValueError, KeyError, EOFError, TypeError, NotImplementedError, BadZipFile, zlib.error)


def read_image(path: str | Path) -> np.ndarray:
    """Read an image file as RGB bytes, uint8 [height, width, 3]; an error names the file."""
    require_packages({"PIL": "reading images"})
    from PIL import Image

    path = Path(path)
    if not path.is_file():
        raise DataError(f"there is no image {path}")
    try:
        with Image.open(path) as image:
            if image.width * image.height > MAX_PIXELS:
                raise DataError(f"{path} has {image.width} × {image.height} pixels, more than {MAX_PIXELS:,}")
            return np.asarray(image.convert("RGB"))
    except DataError:
        raise
    except Exception as error:  # Pillow raises many kinds for damaged files
        reason = " ".join(str(error).replace(repr(str(path)), "").split())[:80]
        raise DataError(f"{path} is not an image that can be read ({reason or type(error).__name__})") from None


def read_images(paths: list[Path], height: int, width: int) -> np.ndarray:
    """Read images of one size, uint8 [n, height, width, 3]."""
    images = np.empty((len(paths), height, width, 3), np.uint8)
    for i, path in enumerate(paths):
        image = read_image(path)
        check_size(image, height, width, path)
        images[i] = image
    return images


def check_size(image: np.ndarray, height: int, width: int, path: Path | str) -> None:
    """Raise if an image has another size than expected."""
    if image.shape != (height, width, 3):
        size = f"{image.shape[1]} × {image.shape[0]}"
        raise DataError(f"{path} has {size} pixels, expected {width} × {height}: resize it first")


def encode_png(image: np.ndarray) -> bytes:
    """Encode RGB or RGBA bytes [height, width, 3 or 4] as PNG."""
    height, width, channels = image.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, width * channels)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 6, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body
