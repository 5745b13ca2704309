"""Corpora of captioned images: each document is a caption, and the regions of all images are in one array.

`regions.npy` has an image in each row, pixels or features; `regions.index.npy` has the image of each caption. Both are
listed with their hashes among the files of the first shard.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.corpus.build.parallel import TextPair, read_pairs, save_tokenizer, write_shard
from polyseme.corpus.card import write_corpus_card
from polyseme.corpus.store import FORMAT, Corpus, describe_files, manifest_hash, memmap_array, token_dtype
from polyseme.errors import ConfigError, DataError
from polyseme.images.files import read_image, read_images
from polyseme.images.regions import RegionFile, RegionFormat
from polyseme.io.atomic import atomic_directory, ensure_new_directory, sha256, write_array
from polyseme.io.json import write_json
from polyseme.io.lock import locks_folder
from polyseme.io.specs import split_spec
from polyseme.text.tokenizer import Tokenizer

REGIONS_FILE, INDEX_FILE = "regions.npy", "regions.index.npy"
DEFAULT_KEYS = ("image", "caption")
DEFAULT_PATCH_SIZE = 8


@locks_folder("captions")
def prepare_captions(
    sources: Sequence[str],
    tokenizer: Tokenizer,
    out: Path,
    keys: tuple[str, str] = DEFAULT_KEYS,
    patch_size: int = DEFAULT_PATCH_SIZE,
    features: Path | None = None,
) -> dict[str, Any]:
    """Write a corpus of images and their captions atomically, and return its manifest.

    `sources` are tables with the columns or keys `keys`: the image file, relative to the table, and a caption. Images
    have one size and are divided into patches of `patch_size` pixels, or their regions are in the file `features`.
    """
    out = Path(out)
    ensure_new_directory(out)
    if patch_size < 1:
        raise ConfigError(f"patch_size is {patch_size}, expected 1 or more")
    captions = read_captions(sources, keys)
    image_numbers = {path: i for i, path in enumerate(dict.fromkeys(pair.source for pair in captions))}
    paths = [Path(path) for path in image_numbers]
    if features is None:
        region_format = RegionFormat.of_pixels(read_image(paths[0]), patch_size, paths[0])
        regions = read_images(paths, region_format.height, region_format.width)
    else:
        region_file = RegionFile.open(features)
        region_format = region_file.format
        regions = np.stack([region_file.get(path) for path in paths])
    encoded = tokenizer.encode_corpus([pair.target for pair in captions])
    if len(empty := np.flatnonzero(encoded.lengths == 0)):
        raise DataError(f"{captions[empty[0]].location}: the caption is empty")
    index = np.array([image_numbers[pair.source] for pair in captions], dtype=np.int64)
    with atomic_directory(out) as folder:
        shard = write_shard(folder, 0, [encoded], np.arange(len(captions)), token_dtype(tokenizer.vocab_size))
        write_array(folder / REGIONS_FILE, [regions], regions.dtype)
        write_array(folder / INDEX_FILE, [index], index.dtype)
        shard["files"] |= describe_files(folder, [REGIONS_FILE, INDEX_FILE])
        names = save_tokenizer(folder, "tokenizer", tokenizer)
        files = [Path(split_spec(str(source), ("text", "pair", "format"))[0]) for source in sources]
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "images": {"count": len(paths), **region_format.to_json()},
            "settings": {"features": "" if features is None else sha256(Path(features))},
            "tokenizer_hash": tokenizer.hash,
            "vocab_size": tokenizer.vocab_size,
            "sources": [{"path": ", ".join(map(str, sources)), "weight": 1.0, "lang": "", "counts": shard["counts"]}],
            "source_files": [{"path": str(path), "sha256": sha256(path)} for path in files],
            "languages": {},
            "removed": {},
            "shards": [shard],
            "counts": shard["counts"],
            "tokenizer_files": describe_files(folder, names),
        }
        manifest["hash"] = manifest_hash(manifest)
        write_json(folder / "manifest.json", manifest)
        write_corpus_card(folder, manifest)
    return manifest


def read_captions(sources: Sequence[str], keys: tuple[str, str] = DEFAULT_KEYS) -> list[TextPair]:
    """Read the image, as a path, and the caption of each row of tables."""
    captions = []
    for source in sources:
        folder = Path(split_spec(str(source), ("text", "pair", "format"))[0]).parent
        for pair in read_pairs([str(source)], keys):
            if not pair.source.strip():
                raise DataError(f"{pair.location}: the image ({keys[0]}) is missing")
            captions.append(TextPair(str(folder / pair.source), " ".join(pair.target.split()), pair.location))
    if not captions:
        raise DataError(f"there are no captions in {', '.join(map(str, sources))}")
    return captions


def region_format(corpus: Corpus) -> RegionFormat | None:
    """Return what the regions of a corpus of images are; None if it is a corpus of text."""
    images = corpus.manifest.get("images")
    if images is None:
        return None
    return RegionFormat.from_json({name: value for name, value in images.items() if name != "count"}, "manifest.images")


def open_regions(corpus: Corpus) -> tuple[RegionFormat, np.ndarray, np.ndarray]:
    """Return what regions are, the memory-mapped regions of all images, and the image of each document."""
    images = region_format(corpus)
    if images is None:
        raise DataError(
            f"{corpus.path} is a corpus of text, without images: prepare one with `polyseme images prepare`"
        )
    regions, index = (memmap_array(corpus.path / name) for name in (REGIONS_FILE, INDEX_FILE))
    return images, regions, index[corpus.document_ids]
