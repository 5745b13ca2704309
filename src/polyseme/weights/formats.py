"""Folders and names that are not model folders: what they are, and how to get a model folder from them."""

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from polyseme.errors import DataError, ModelError, suggest
from polyseme.io.json import read_json_object

_HUB_NAME = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")
# Files of other formats, what they are, the first match counts; and the arguments with which `transformers` reads them.
_OTHER_WEIGHTS: tuple[tuple[tuple[str, ...], str, str | None], ...] = (
    (
        ("pytorch_model*.bin", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl"),
        "a pickle, which can run code when loaded",
        "",
    ),
    (("tf_model*.h5", "*.ckpt.index", "saved_model.pb"), "weights of TensorFlow", ", from_tf=True"),
    (("flax_model*.msgpack",), "weights of Flax", ", from_flax=True"),
    (("*.onnx", "onnx/*.onnx"), "an ONNX graph", None),
    (("*.gguf",), "a GGUF file", None),
)
_PARTS_OF_MODELS = (".safetensors", ".json", ".onnx", ".gguf", ".pt", ".pth", ".ckpt", ".h5", ".hdf5", ".msgpack")
_NOT_WEIGHTS = ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth")


def missing_folder_error(path: Path) -> ModelError:
    """Return the error for a path that does not exist, which may be the name of a model on the Hugging Face Hub."""
    name = str(path)
    siblings = [p.name for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
    hint = suggest(path.name, siblings) if siblings else ""
    if hint.startswith("did you mean"):
        return ModelError(f"there is no model folder at {path}; {hint}")
    is_local = path.is_absolute() or (path.parent != Path() and path.parent.is_dir())
    if is_local or not _HUB_NAME.fullmatch(name):
        return ModelError(f"there is no model folder at {path}")
    command = f"hf download {name} --local-dir {path.name}"
    return ModelError(
        f"there is no model folder at {path}, and nothing is downloaded: if {name} is a model on the Hugging Face Hub, "
        f"download it yourself, e.g. with '{command}', and pass the folder {path.name}"
    )


def reject_model_file(path: Path) -> None:
    """Raise `ModelError` for a file that is only a part of a model, such as its weights or its config."""
    if path.suffix in _PARTS_OF_MODELS or path.match("pytorch_model*.bin"):
        raise ModelError(f"{path} is a file, and a model is a folder of files: pass the folder, {path.parent}")


def missing_config_error(folder: Path) -> ModelError:
    """Return the error for a folder without `config.json`, by what it has instead."""
    if snapshots := sorted(folder.glob("snapshots/*/config.json"), key=lambda path: path.stat().st_mtime):
        return ModelError(f"{folder} is a folder of the Hub's cache; pass the model in it: {snapshots[-1].parent}")
    if (folder / "adapter_config.json").is_file():
        advice = "merge it into its base model with `peft` (merge_and_unload, save_pretrained) and pass that folder"
        return ModelError(f"{folder} is a PEFT adapter, not a model: {advice}")
    if list(folder.glob("*options.json")) and list(folder.glob("*weights*.hdf5")):
        return ModelError(
            f"{folder} is ELMo in its published format, which is frozen: pass it as `features`, or embed with it"
        )
    if (folder / "manifest.json").is_file():
        return ModelError(f"{folder} is a corpus, not a model folder")
    return ModelError(f"{folder} has no config.json, so it is not a model folder")


def missing_weights_error(folder: Path) -> ModelError:
    """Return the error for a folder without safetensors; weights in another format can be converted."""
    if (folder / "export.json").is_file():
        advice = "pass the model that it was made of (`polyseme.load` opens one in int8 to embed and predict)"
        return ModelError(f"{folder} is a graph for inference without weights to train or convert: {advice}")
    for patterns, description, reader in _OTHER_WEIGHTS:
        if file := _find_file(folder, patterns):
            return ModelError(f"{file} is {description}; {_conversion_advice(folder, reader)}")
    return ModelError(f"{folder} has no model.safetensors")


def _find_file(folder: Path, patterns: Iterable[str]) -> Path | None:
    files = (file for pattern in patterns for file in sorted(folder.glob(pattern)))
    return next((file for file in files if file.name not in _NOT_WEIGHTS), None)


def _conversion_advice(folder: Path, reader: str | None) -> str:
    """Return the command that converts a folder, which `transformers` reads with the arguments `reader`, or not."""
    try:
        config = read_json_object(folder / "config.json")
    except DataError:
        config = {}
    names = config.get("architectures")
    architecture = str(names[0]) if isinstance(names, list) and names and str(names[0]).isidentifier() else "AutoModel"
    if reader is None:
        origin = str(config.get("_name_or_path", ""))
        source = origin if _HUB_NAME.fullmatch(origin) else "NAME"
        advice = f"only safetensors are read: save the original model, {source} on the Hub, with"
    else:
        source = str(folder)
        advice = "if you trust it, write model.safetensors beside it with"
        advice += " (after: pip install 'transformers<5')" if reader else ""
    code = f"import transformers; model = transformers.{architecture}.from_pretrained({source!r}{reader or ''}); "
    code += f"model.save_pretrained({str(folder)!r})"
    return f"{advice}: python -c {shlex.quote(code)}"
