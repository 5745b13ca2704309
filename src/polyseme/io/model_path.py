"""Find the folder of a model: that of a run, or of a model that comes with the package, by its name.

A model of the same name in the current folder is preferred to a bundled one, as any path that exists.
"""

from pathlib import Path

from polyseme.errors import ModelError
from polyseme.io.atomic import restore_directory

MODEL_FILES = ("config.json", "polyseme.json")
BUNDLED_MODELS = Path(__file__).parents[1] / "models"
_RUN_FILES = ("recipe.json", "unfinished.json", "ulmfit.json", "benchmark.json")


def resolve_model(path: str | Path) -> Path:
    """Return the model folder of a run or a bundled model; any other path is returned unchanged.

    The model of a run is `RUN/model`, and that of ULMFiT its classifier. Raises `ModelError` with a list if there are
    several, as in a benchmark. The name of a bundled model, such as `mini`, is resolved if there is no file of that
    name, and no folder with a model.
    """
    path = Path(path)
    if path.is_file() or _is_model(path):
        return path
    if not path.is_dir():
        return _find_bundled(path)
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
    return _find_bundled(path)


def list_bundled() -> list[Path]:
    """Return the folders of the models that come with the package."""
    return _list_models(BUNDLED_MODELS, "*")


def _find_bundled(path: Path) -> Path:
    """Return the folder of a bundled model if `path` is its name."""
    return next((folder for folder in list_bundled() if str(path) == folder.name), path)


def _is_model(path: Path) -> bool:
    return any((path / name).exists() for name in MODEL_FILES)


def _list_models(path: Path, pattern: str) -> list[Path]:
    return sorted(filter(_is_model, path.glob(pattern)))
