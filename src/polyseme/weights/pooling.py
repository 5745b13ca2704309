"""How the states of a text become its vector, in the files of sentence-transformers: `modules.json` and `1_Pooling`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyseme.errors import ModelError, UnsupportedError
from polyseme.io.json import read_json, read_json_object, write_json

# sentence-transformers' names of pooling modes since version 5, and the keys before
_LEGACY_KEYS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
POOLING_MODES = ("mean", "cls", "max")


@dataclass(frozen=True)
class TextPooling:
    """Pooling of the states of a text: `mean`, `cls` (the first state) or `max`, then perhaps scaling to length one.

    Texts are cut to `max_len` tokens (0: what the model reads). `problem` says why the vector cannot be computed.
    """

    mode: str = "mean"
    normalize: bool = False
    max_len: int = 0
    lowercase: bool = False
    problem: str = ""

    def check(self) -> None:
        """Raise `UnsupportedError` if the vector cannot be computed."""
        if self.problem:
            raise UnsupportedError(f"{self.problem}; vectors of words and tokens are supported")


def read_pooling(folder: Path) -> TextPooling:
    """Read the modules of a folder; without them, the vector of a text is the mean of its states."""
    path = folder / "modules.json"
    if not path.is_file():
        return TextPooling()
    modules = read_json(path)
    if not isinstance(modules, list) or not all(
        isinstance(m, dict) and isinstance(m.get("type"), str) for m in modules
    ):
        raise ModelError(f"{path} is not a list of modules with a type")
    names = [module["type"].rpartition(".")[2] for module in modules]
    if names[:2] != ["Transformer", "Pooling"] or names[2:] not in ([], ["Normalize"]):
        return TextPooling(problem=f"{path} has the modules {', '.join(names)}, not Transformer, Pooling, Normalize")
    config_path = folder / str(modules[1].get("path", "")) / "config.json"
    config = read_json_object(config_path)
    mode = config.get("pooling_mode") or [name for name, key in _LEGACY_KEYS.items() if config.get(key)] or "mean"
    mode = mode[0] if isinstance(mode, list) and len(mode) == 1 else mode
    if mode not in POOLING_MODES:
        return TextPooling(problem=f"{config_path}: pooling {mode} is not one of {', '.join(POOLING_MODES)}")
    settings_path = folder / "sentence_bert_config.json"
    settings = read_json_object(settings_path) if settings_path.is_file() else {}
    max_len = settings.get("max_seq_length") or 0
    if not isinstance(max_len, int) or max_len < 0:
        raise ModelError(f"{settings_path}: max_seq_length is {max_len!r}, expected a positive number")
    return TextPooling(mode, "Normalize" in names, max_len, bool(settings.get("do_lower_case")))


def write_pooling(folder: Path, pooling: TextPooling, dim: int, max_len: int) -> None:
    """Write the files with which sentence-transformers opens a model folder: pooling, then perhaps scaling."""
    paths = {"Transformer": "", "Pooling": "1_Pooling"} | ({"Normalize": "2_Normalize"} if pooling.normalize else {})
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(paths.items())
    ]
    keys: dict[str, Any] = {key: name == pooling.mode for name, key in _LEGACY_KEYS.items()}
    settings = {"max_seq_length": pooling.max_len or max_len, "do_lower_case": pooling.lowercase}
    (folder / "1_Pooling").mkdir()
    write_json(folder / "modules.json", modules)
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": dim, **keys})
    write_json(folder / "sentence_bert_config.json", settings)
