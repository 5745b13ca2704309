"""`verify`: check every file of a corpus, model, tokenizer or run folder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from polyseme.corpus.store import WORK_DIR, verify_corpus
from polyseme.errors import ConfigError, DataError, ModelError
from polyseme.inference.feature_model import FeatureModel
from polyseme.inference.word_vectors import WordVectors
from polyseme.io.hashes import HASHES_FILE, README_FILE, TOKENIZER_FILES, check_hashes, write_hashes
from polyseme.io.json import format_json, read_json_object
from polyseme.io.lock import lock_folder
from polyseme.io.model_path import resolve_model
from polyseme.ngram.model import NgramFolder, is_ngram
from polyseme.report.cards.readme import is_edited
from polyseme.text.arguments import check_path
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.checkpoint import find_damage, list_checkpoints
from polyseme.weights.elmo_format import find_elmo_files, read_elmo
from polyseme.weights.folder import load_model
from polyseme.weights.onnx_folder import is_onnx_folder, load_onnx_model


@dataclass(frozen=True)
class VerifiedFolder:
    """A folder that is intact: what it holds, and whether its files were compared with recorded hashes.

    Without hashes, as in folders made by other tools, only the structure was checked. `edited_cards` are the files
    `README.md` that were edited since they were written, which is no damage.
    """

    path: Path
    kind: str  # corpus, model, tokenizer, run, unfinished run, or word vectors
    has_hashes: bool
    edited_cards: tuple[Path, ...] = ()


def verify(folder: str | Path, update: bool = False) -> VerifiedFolder:
    """Check every file of a folder that Polyseme wrote: hashes, missing and added files, structure, and finite weights.

    A folder of a model or tokenizer by another tool has no hashes: only its structure is checked. `update` accepts the
    files as they are now, for instance after `config.json` was edited: if they can be loaded, their hashes are written.

    >>> polyseme.verify("run/model").has_hashes
    True
    """
    path = check_path(folder, "a folder")
    path = path if path.exists() else resolve_model(path)
    if not path.exists():
        raise DataError(f"{path} does not exist")
    kind = _detect_kind(path)
    if not update:
        return _verify(path, kind)
    if kind not in ("model", "tokenizer", "run"):
        raise ConfigError(f"{path} is of kind {kind}: `update` applies to the folder of a model, tokenizer or run")
    with lock_folder(path, "verify"):
        hashes_path = path / HASHES_FILE
        previous = hashes_path.read_bytes() if hashes_path.is_file() else None
        write_hashes(path)
        try:
            return _verify(path, kind)
        except BaseException:
            hashes_path.unlink() if previous is None else hashes_path.write_bytes(previous)
            raise


def _verify(path: Path, kind: str) -> VerifiedFolder:
    has_hashes = _CHECKS[kind](path)
    cards = sorted(path.rglob(README_FILE)) if has_hashes and path.is_dir() else []
    return VerifiedFolder(path, kind, has_hashes, tuple(filter(is_edited, cards)))


def _detect_kind(path: Path) -> str:
    """Return what a folder or file holds, by the names of its files."""
    if path.is_file():
        return "model" if find_elmo_files(path) else "word vectors"
    if (path / "manifest.json").exists() or (path / WORK_DIR).is_dir():
        return "corpus"
    if any((path / name).exists() for name in ("config.json", "polyseme.json")) or find_elmo_files(path):
        return "model"
    if any(file for pattern in TOKENIZER_FILES for file in path.glob(pattern)):
        return "tokenizer"
    if (path / "compare.json").exists():
        return "comparison"
    if any((path / name).exists() for name in ("results.json", "model", HASHES_FILE)):
        return "run"
    if (path / "recipe.json").exists() or (path / "checkpoints").is_dir():
        return "unfinished run"
    kinds = "a corpus (manifest.json), a model (config.json), a tokenizer (tokenizer.json) nor a run (results.json)"
    raise DataError(f"{path} is neither {kinds}")


def _verify_corpus(path: Path) -> bool:
    verify_corpus(path)
    return True


def _verify_model(path: Path) -> bool:
    if find_elmo_files(path):
        read_elmo(path, verify=True)
        path = path if path.is_dir() else path.parent
    elif is_ngram(path):
        NgramFolder.load(path, verify=True)
    elif FeatureModel.is_folder(path):
        FeatureModel.load(path, verify=True)
    elif is_onnx_folder(path):
        load_onnx_model(path, verify=True)
    else:
        load_model(path, verify=True)
    has_hashes = check_hashes(path, ())
    if not has_hashes and (path / "polyseme.json").exists():
        raise ModelError(f"{path / HASHES_FILE} is missing: restore it, or write it again with `update`")
    return has_hashes


def _verify_tokenizer(path: Path) -> bool:
    has_hashes = check_hashes(path)
    Tokenizer.load(path).validate()
    return has_hashes


def _verify_run(path: Path) -> bool:
    """Check the files of a run, the models inside it, and its checkpoints, which have hashes of their own."""
    if not check_hashes(path):
        raise ModelError(f"{path / HASHES_FILE} is missing: restore it, or write it again with `update`")
    _verify_unfinished_run(path, is_finished=True)
    return True


def _verify_unfinished_run(path: Path, is_finished: bool = False) -> bool:
    folders = sorted(path.rglob("checkpoints/step-*/"))
    for folder in folders:
        _verify_checkpoint(folder)
    for checkpoints in {folder.parent for folder in folders}:
        names = [f"{step.name}\n" for step in list_checkpoints(checkpoints)][: 1 if is_finished else None]
        latest = checkpoints / "LATEST"
        if not latest.is_file() or latest.read_text(errors="replace") not in names:
            raise ModelError(f"{latest} does not name the newest checkpoint")
    for file in sorted(path.rglob(HASHES_FILE)):
        check_hashes(file.parent)
    for file in sorted(path.rglob("polyseme.json")):
        _verify_model(file.parent)
    for name in ("recipe.json", "results.json"):
        if (path / name).exists():
            read_json_object(path / name)
    return False


def _verify_checkpoint(path: Path) -> None:
    state_path = path / "state.json"
    damage = find_damage(path)
    if not damage and state_path.read_text("utf-8") != format_json(read_json_object(state_path)):
        damage = "state.json is not what was written"
    if damage:
        raise ModelError(f"{path} is damaged: {damage}")


def _verify_vectors(path: Path) -> bool:
    try:
        WordVectors.load(path)
    except DataError as error:
        raise DataError(f"{path} is neither a folder nor a file of word vectors: {error}") from None
    return False


_CHECKS: dict[str, Callable[[Path], bool]] = {
    "corpus": _verify_corpus,
    "model": _verify_model,
    "tokenizer": _verify_tokenizer,
    "run": _verify_run,
    "unfinished run": _verify_unfinished_run,
    "comparison": check_hashes,
    "word vectors": _verify_vectors,
}
