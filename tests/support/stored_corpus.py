"""Write corpora for tests, with chosen documents, shard boundaries and manifest fields."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.corpus.clean.sentences import split_sentences
from polyseme.corpus.store import FORMAT, Corpus, manifest_hash, shard_filename, token_dtype
from polyseme.io.atomic import sha256
from polyseme.io.json import write_json
from polyseme.text.tokenizer import Tokenizer


def store(
    folder: Path,
    tokenizer: Tokenizer,
    documents: Sequence[str],
    per_shard: int = 5,
    manifest_fields: dict[str, Any] | None = None,
) -> Corpus:
    """Write and open a corpus; `manifest_fields` are added to its manifest."""
    tokenizer.save(folder / "tokenizer")
    shards = []
    for number, first in enumerate(range(0, len(documents), per_shard)):
        texts = documents[first : first + per_shard]
        sentences = [split_sentences(text) for text in texts]
        encoded = tokenizer.encode_corpus([sentence for part in sentences for sentence in part])
        assert encoded.lengths.all(), "every sentence must have a token"
        arrays = {
            "tokens": encoded.ids.astype(token_dtype(tokenizer.vocab_size)),
            "sentences": starts(encoded.lengths),
            "documents": starts(np.array([len(part) for part in sentences])),
            "words": np.packbits(encoded.word_starts, bitorder="little"),
        }
        counts = {name: len(arrays[name]) for name in ("tokens", "sentences", "documents")}
        shards.append({"counts": counts | {"characters": sum(map(len, texts))}, "files": {}})
        for part, array in arrays.items():
            path = folder / shard_filename(number, part)
            np.save(path, array)
            shards[-1]["files"][path.name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    files = sorted((folder / "tokenizer").iterdir())
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "finished": True,
        "settings": {},
        "tokenizer_hash": tokenizer.hash,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer_files": {
            f"tokenizer/{f.name}": {"bytes": f.stat().st_size, "sha256": sha256(f)} for f in files
        },
        "shards": shards,
        "counts": {name: sum(shard["counts"][name] for shard in shards) for name in shards[0]["counts"]},
    }  # fmt: skip
    manifest |= manifest_fields or {}
    write_json(folder / "manifest.json", manifest | {"hash": manifest_hash(manifest)})
    return Corpus.open(folder)


def starts(lengths: np.ndarray) -> np.ndarray:
    return (np.cumsum(lengths) - lengths).astype(np.uint32)
