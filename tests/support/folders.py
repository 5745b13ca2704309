"""Copies of model folders that a test changes on purpose."""

import shutil
from pathlib import Path

from polyseme.io.hashes import HASHES_FILE


def copy_unhashed(folder: Path, target: Path) -> Path:
    """Copy a folder without its hashes, as another tool would write it, so that a change is judged by itself."""
    return shutil.copytree(folder, target, ignore=shutil.ignore_patterns(HASHES_FILE), dirs_exist_ok=True)


def remove_polyseme_files(folder: Path) -> None:
    """Leave the files that `transformers` would have written."""
    for name in (HASHES_FILE, "polyseme.json"):
        (folder / name).unlink(missing_ok=True)
