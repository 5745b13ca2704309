"""Find the model of a run folder, so that a run is accepted wherever a model is."""

from pathlib import Path

from polyseme.errors import ModelError
from polyseme.io.atomic import restore_directory

MODEL_FILES = ("config.json", "polyseme.json")
_RUN_FILES = ("recipe.json", "unfinished.json", "ulmfit.json", "benchmark.json")


def resolve_model(path: str | Path) -> Path:
    """Return the model folder of a run; any other path is returned unchanged.

    The model of a run is `RUN/model`, and that of ULMFiT its classifier. Raises `ModelError` with a list if there are
    several, as in a benchmark.
    """
    path = Path(path)
    if not path.is_dir() or _is_model(path):
        return path
    restore_directory(path / "model")
    if _is_model(path / "model"):
        return path / "model"
    is_run = any((path / name).exists() for name in _RUN_FILES)
    choices = _list_models(path, "classifier-*/model") or _list_models(path, "*/model")
    if is_run and len(choices) == 1:
        return choices[0]
    if choices:
        shown = ", ".join(map(str, choices[:12])) + (", …" if len(choices) > 12 else "")
        raise ModelError(f"{path} is not a model folder: choose one of the models in it, {shown}")
    if is_run:
        raise ModelError(f"{path} is a run that has no model yet: finish the run, or choose another model")
    return path


def _is_model(path: Path) -> bool:
    return any((path / name).exists() for name in MODEL_FILES)


def _list_models(path: Path, pattern: str) -> list[Path]:
    return sorted(filter(_is_model, path.glob(pattern)))
