"""The hashes of a folder: `SHA256SUMS` lists every file, in the format of `sha256sum`.

Every folder that Polyseme writes is written by `hashed_directory`, so a changed, missing or added file is noticed when
the folder is loaded or verified. A folder made by another tool has no such file, and only its structure is checked.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from polyseme.errors import ModelError
from polyseme.io.atomic import atomic_directory, sha256, write_text
from polyseme.io.limits import MAX_HASHED_WEIGHT_BYTES, MAX_JSON_BYTES

HASHES_FILE = "SHA256SUMS"
README_FILE = "README.md"
LINE_PATTERN = re.compile(r"([0-9a-f]{64})  ([^\n]+)\n")
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "*.model"),
)
WEIGHT_FILES = ("*.safetensors", "*.npy", "*.hdf5", "*.h5")
# Files that are read if they are there: one that was added could change a model.
READ_FILES = (
    *(*TOKENIZER_FILES, *WEIGHT_FILES, "*.safetensors.index.json"),
    *("config.json", "polyseme.json", "words.json", "options.json"),
)
# Of a run: checkpoints have hashes of their own, and what says that a run is unfinished is removed at its end. A card
# is documentation that users edit; its last line tells whether it was.
UNHASHED_NAMES = ("checkpoints", "tensorboard", "unfinished", "unfinished.json", README_FILE)


@contextmanager
def hashed_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `path`, with the hashes of its files, when the block succeeds."""
    with atomic_directory(path) as folder:
        yield folder
        write_hashes(folder)


def write_hashes(folder: Path) -> None:
    """Write the hashes of all files of a folder."""
    hashes = {name: sha256(folder / name) for name in _list_files(folder)}
    write_text(folder / HASHES_FILE, _format_hashes(hashes))


def read_hashes(folder: Path) -> dict[str, str]:
    """Return the recorded hash of each file; nothing if there is no record."""
    path = folder / HASHES_FILE
    if not path.is_file():
        return {}
    content = path.read_bytes()[:MAX_JSON_BYTES].decode(errors="replace")
    hashes = {name: digest for digest, name in LINE_PATTERN.findall(content)}
    if not hashes or _format_hashes(hashes) != content:
        raise ModelError(f"{path} is damaged: its lines are not those that were written; {_ADVICE}")
    return hashes


def check_hashes(folder: Path, patterns: Iterable[str] = ("*",), with_large_weights: bool = True) -> bool:
    """Compare the files of a folder with their recorded hashes; raise `ModelError` for the first that differs.

    A file whose name matches none of the `patterns`, and a large file of weights unless `with_large_weights`, is only
    checked for existence. Return whether all files that matter have a hash. A record of a tokenizer only says nothing
    about a model that another tool wrote next to it.
    """
    hashes = read_hashes(folder)
    if not hashes:
        return False
    for name, expected in hashes.items():
        path = folder / name
        if not path.is_file():
            raise ModelError(f"{path} is missing, but it is listed in {HASHES_FILE}; {_ADVICE}")
        is_large = _matches(name, WEIGHT_FILES) and path.stat().st_size > MAX_HASHED_WEIGHT_BYTES
        is_selected = _matches(name, patterns) and (with_large_weights or not is_large)
        if is_selected and sha256(path) != expected:
            raise ModelError(f"{path} was changed: its hash is not the one in {HASHES_FILE}; {_ADVICE}")
    added = [name for name in _list_files(folder) if name not in hashes and _matches(name, READ_FILES)]
    is_tokenizer = all(_matches(name, TOKENIZER_FILES) for name in hashes)
    for name in added:
        if not is_tokenizer or _matches(name, TOKENIZER_FILES):
            raise ModelError(f"{folder / name} was added: it is not listed in {HASHES_FILE}; {_ADVICE}")
    return not added


_ADVICE = "restore it, or accept the folder as it is now with `polyseme.verify(folder, update=True)`"


def _list_files(folder: Path) -> list[str]:
    """Return the names of the files to hash; of a folder inside that has its own hashes, only the list of these."""
    names: list[str] = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name == HASHES_FILE or path.name in UNHASHED_NAMES:
            continue
        if path.is_file():
            names.append(path.name)
        elif (path / HASHES_FILE).is_file():
            names.append(f"{path.name}/{HASHES_FILE}")
        elif path.is_dir():
            names += [f"{path.name}/{name}" for name in _list_files(path)]
    return names


def _format_hashes(hashes: dict[str, str]) -> str:
    return "".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes))


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(name.rpartition("/")[2], pattern) for pattern in patterns)
