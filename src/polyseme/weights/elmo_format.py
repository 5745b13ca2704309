"""ELMo's published format: JSON options and HDF5 weights, such as `options.json` and `weights.hdf5`.

AllenNLP's files have longer names, `elmo_2x4096_512_2048cnn_2xhighway_5.5B_options.json` and `…_weights.hdf5`, whose
common start tells which belong together. A model is named by its folder or by one of its two files.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyseme.errors import ModelError, require_package, suggest
from polyseme.families import FAMILIES
from polyseme.io.hashes import check_hashes, hashed_directory
from polyseme.io.json import read_json, write_json
from polyseme.nn.layers.char_cnn import NUM_CHARACTERS, CharCNNConfig
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.trunks.recurrent import RecurrentTrunkConfig
from polyseme.weights.finite import check_finite

OPTIONS_FILE, WEIGHTS_FILE = "options.json", "weights.hdf5"
_PATTERNS = re.compile(r"options\.json$"), re.compile(r"weights.*\.(hdf5|h5)$")  # of the names of the two files
VOCAB_SIZE = 1  # the format has no vocabulary; tokens are characters
# key in options.json -> argument of the family's `trunk_config`, `projection_dim` or `num_characters`
OPTIONS = {
    "lstm.cell_clip": "cell_clip",
    "lstm.use_skip_connections": "use_skip_connections",
    "lstm.n_layers": "num_layers",
    "lstm.proj_clip": "projection_clip",
    "lstm.projection_dim": "projection_dim",
    "lstm.dim": "ffn_dim",
    "char_cnn.embedding.dim": "char_dim",
    "char_cnn.filters": "filters",
    "char_cnn.n_highway": "num_highway",
    "char_cnn.n_characters": "num_characters",
    "char_cnn.max_characters_per_token": "max_chars_per_word",
    "char_cnn.activation": "activation",
}
DEFAULTS = {"cell_clip": 0, "projection_clip": 0, "use_skip_connections": False, "activation": "relu"}


class ElmoFiles(NamedTuple):
    """The two files of a model in the published format."""

    options: Path
    weights: Path


def find_elmo_files(path: Path) -> ElmoFiles | None:
    """Return the files of the model that a folder or one of the files names, or None if it is something else."""
    folder = path if path.is_dir() else path.parent
    options, weights = (sorted(p for p in folder.glob("*") if pattern.search(p.name)) for pattern in _PATTERNS)
    if path.is_dir():
        if not options or (path / "config.json").exists():
            return None
        candidates = (options, weights)
    elif path in options:
        candidates = [path], [file for file in weights if _get_prefix(file) == _get_prefix(path)] or weights
    elif path in weights:
        candidates = [file for file in options if _get_prefix(file) == _get_prefix(path)] or options, [path]
    else:
        return None
    if [len(files) for files in candidates] == [1, 1]:
        return ElmoFiles(candidates[0][0], candidates[1][0])
    counts = f"{len(options)} *options.json and {len(weights)} *weights*.hdf5 files"
    advice = "; pass a file of one model" if len(options) > 1 or len(weights) > 1 else ""
    raise ModelError(f"{folder} has {counts}, expected one of each{advice}")


def _get_prefix(file: Path) -> str:
    """Return the start of a name that options and weights of one model have in common."""
    return re.split(r"options|weights", file.name)[0]


def read_elmo(path: Path | str, verify: bool = False) -> Model:
    """Load the model that a folder or file names, strictly; compare its files with recorded hashes if `verify`."""
    path = Path(path)
    files = find_elmo_files(path)
    if files is None:
        raise ModelError(f"{path} is not a model in ELMo's published format: *options.json and *weights*.hdf5")
    check_hashes(files.options.parent, with_large_weights=verify)
    trunk_config = _read_trunk_config(files.options)
    weights_path = files.weights
    tensors = _read_tensors(weights_path)
    check_finite({name: torch.from_numpy(array) for name, array in tensors.items()}, weights_path)
    model = ModelConfig("elmo", trunk_config).build(0)
    state = model.state_dict()
    for names, published, op in _iter_weight_maps(trunk_config):
        if published not in tensors:
            raise ModelError(f"{weights_path} has no {published!r}, which {files.options.name} requires")
        tensor = torch.from_numpy(tensors.pop(published))
        try:
            imported = _import_tensor(tensor, op)
            shapes = [tuple(state[name].shape) for name in names]
            pieces = imported.split([shape[-1] for shape in shapes], dim=-1) if len(names) > 1 else [imported]
            is_fitting = [tuple(piece.shape) for piece in pieces] == shapes
        except (RuntimeError, IndexError):
            is_fitting = False
        if not is_fitting:
            shape = tuple(tensor.shape)
            raise ModelError(f"{weights_path}: {published!r} of shape {shape} does not match {files.options.name}")
        for name, piece in zip(names, pieces):
            state[name].copy_(piece)
    if tensors:
        raise ModelError(
            f"{weights_path} has a tensor {sorted(tensors)[0]!r} that {files.options.name} does not describe"
        )
    return model.eval()


def write_elmo(folder: Path | str, model: Model) -> None:
    """Write a model's trunk in the published format, which has no heads and no vocabulary."""
    trunk_config = model.config.trunk
    if not isinstance(trunk_config, RecurrentTrunkConfig) or not isinstance(trunk_config.embeddings, CharCNNConfig):
        raise ModelError(f"the model is {model.config.family}; only ELMo can be saved with {OPTIONS_FILE}")
    h5py = require_package("h5py", "ELMo's published format", "'polyseme[elmo]'")
    state = {name: t.detach().cpu().float() for name, t in model.state_dict().items()}
    with hashed_directory(Path(folder)) as temporary:
        write_json(temporary / OPTIONS_FILE, _build_options(model.config))
        with h5py.File(temporary / WEIGHTS_FILE, "w") as file:
            for names, published, op in _iter_weight_maps(trunk_config):
                tensor = torch.cat([state[name] for name in names], dim=-1)
                file.create_dataset(published, data=_export_tensor(tensor, op).contiguous().numpy())


def _iter_weight_maps(trunk_config: RecurrentTrunkConfig) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yield our names, whose tensors are concatenated along the last axis, the published name, and the operation."""
    assert isinstance(trunk_config.embeddings, CharCNNConfig)
    prefix = "trunk.embeddings"
    yield (f"{prefix}.char_embeddings.weight",), "char_embed", "characters"
    for i in range(len(trunk_config.embeddings.filters)):
        yield (f"{prefix}.convolutions.{i}.weight",), f"CNN/W_cnn_{i}", "conv_filter"
        yield (f"{prefix}.convolutions.{i}.bias",), f"CNN/b_cnn_{i}", "same"
    for i in range(trunk_config.embeddings.num_highway):
        for part in ("carry", "transform"):
            yield (f"{prefix}.highways.{i}.{part}.weight",), f"CNN_high_{i}/W_{part}", "transpose"
            yield (f"{prefix}.highways.{i}.{part}.bias",), f"CNN_high_{i}/b_{part}", "same"
    yield (f"{prefix}.projection.weight",), "CNN_proj/W_proj", "transpose"
    yield (f"{prefix}.projection.bias",), "CNN_proj/b_proj", "same"
    for direction in range(2):
        for layer in range(trunk_config.num_layers):
            cell = f"trunk.stacks.{direction}.{layer}.cells.0"
            published = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            yield (f"{cell}.weight_ih", f"{cell}.weight_hh"), f"{published}/W_0", "gates"
            yield (f"{cell}.bias_ih",), f"{published}/B", "gates"
            yield (f"{cell}.weight_hr",), f"{published}/W_P_0", "transpose"


def _import_tensor(tensor: Tensor, op: str) -> Tensor:
    """Convert a published tensor to ours; TensorFlow's are transposed, with gates input, candidate, forget, output."""
    if op == "characters":
        return torch.cat([tensor.new_zeros(1, tensor.shape[1]), tensor])
    if op == "conv_filter":
        return tensor.squeeze(0).permute(2, 1, 0)
    if op == "gates":
        return _swap_gates(tensor.t() if tensor.ndim > 1 else tensor)
    return tensor.t() if op == "transpose" else tensor


def _export_tensor(tensor: Tensor, op: str) -> Tensor:
    """Invert `_import_tensor`."""
    if op == "characters":
        return tensor[1:]
    if op == "conv_filter":
        return tensor.permute(2, 1, 0)[None]
    if op == "gates":
        return _swap_gates(tensor).t() if tensor.ndim > 1 else _swap_gates(tensor)
    return tensor.t() if op == "transpose" else tensor


def _swap_gates(tensor: Tensor) -> Tensor:
    first, second, third, fourth = tensor.chunk(4)
    return torch.cat([first, third, second, fourth])


def _read_trunk_config(path: Path) -> RecurrentTrunkConfig:
    options, args = read_json(path), {}
    for option, name in OPTIONS.items():
        value = options
        for key in option.split("."):
            if not isinstance(value, dict) or (key not in value and name not in DEFAULTS):
                raise ModelError(f"{path} has no {option}; {suggest(key, value if isinstance(value, dict) else ())}")
            value = value.get(key, DEFAULTS.get(name))
        args[name] = value
    if (num_characters := args.pop("num_characters")) not in (NUM_CHARACTERS, NUM_CHARACTERS - 1):
        expected = f"expected {NUM_CHARACTERS - 1} or {NUM_CHARACTERS}"
        raise ModelError(f"{path}: char_cnn.n_characters is {num_characters!r}, {expected}")
    args |= {"dim": 2 * args.pop("projection_dim"), "filters": tuple(map(tuple, args["filters"]))}
    trunk_config = FAMILIES["elmo"].trunk_config(vocab_size=VOCAB_SIZE, **args)
    return RecurrentTrunkConfig.from_json(trunk_config.to_json(), str(path))  # checks the type of each value


def _build_options(config: ModelConfig) -> dict[str, Any]:
    values = FAMILIES["elmo"].to_hf_config(config)
    values |= {"projection_dim": values["dim"] // 2, "num_characters": NUM_CHARACTERS}
    options: dict[str, Any] = {}
    for option, name in OPTIONS.items():
        *groups, key = option.split(".")
        parent = options
        for group in groups:
            parent = parent.setdefault(group, {})
        parent[key] = values[name]
    return options


def _read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Return all datasets of an HDF5 file by full name."""
    h5py = require_package("h5py", "ELMo's published format", "'polyseme[elmo]'")
    tensors: dict[str, np.ndarray] = {}

    def visit(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset):
            tensors[name] = np.asarray(node[()], dtype=np.float32)

    try:
        with h5py.File(path, "r") as file:
            file.visititems(visit)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} is not a valid HDF5 file ({str(error).splitlines()[0][:80]})") from None
    return tensors
