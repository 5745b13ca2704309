"""ELMo's published form: `options.json` beside one HDF5 file of weights, read and written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyseme.errors import UserError, nearest
from polyseme.families import FAMILIES
from polyseme.io.files import read_json, whole_folder, write_json
from polyseme.nn.layers.char_cnn import CHARACTERS, CharactersSpec
from polyseme.nn.model import Model, ModelSpec
from polyseme.nn.trunks.recurrent import RecurrentSpec

OPTIONS, WEIGHTS = "options.json", "weights.hdf5"
WORDS = 1  # a file has no vocabulary, and tokens are spelled


def is_published(folder: Path) -> bool:
    return (folder / OPTIONS).is_file() and not (folder / "config.json").exists()


def read_elmo(folder: Path | str) -> Model:
    """The model of a folder with an options file and one HDF5 file of weights. Strict, as every reading is."""
    folder = Path(folder)
    trunk = _trunk(folder / OPTIONS)
    files = sorted([*folder.glob("*weights*.hdf5"), *folder.glob("*weights*.h5")])
    if len(files) != 1:
        raise UserError(f"{folder} holds {len(files)} files *weights*.hdf5, expected one")
    stored = _read(files[0])
    model = ModelSpec("elmo", trunk).build(0)
    state = model.state_dict()
    for name, theirs, turned in _table(trunk):
        if theirs not in stored:
            raise UserError(f"{files[0]} lacks {theirs!r}, which {OPTIONS} asks for; {nearest(theirs, stored)}")
        given = torch.from_numpy(stored.pop(theirs))
        try:
            found = _inwards(given, turned)
            wanted = [tuple(state[each].shape) for each in name]
            parts = found.split([shape[-1] for shape in wanted], dim=-1) if len(name) > 1 else [found]
            fits = [tuple(part.shape) for part in parts] == wanted
        except (RuntimeError, IndexError):
            fits = False
        if not fits:
            raise UserError(f"{files[0]}: {theirs!r} has shape {tuple(given.shape)}, which does not fit {OPTIONS}")
        for each, part in zip(name, parts):
            state[each].copy_(part)
    if stored:
        raise UserError(f"{files[0]} holds {sorted(stored)[0]!r}, which {OPTIONS} does not ask for")
    return model.eval()


def write_elmo(folder: Path | str, model: Model) -> None:
    """The folder that other programs read; heads and vocabulary have no place there."""
    trunk = model.spec.trunk
    if not isinstance(trunk, RecurrentSpec) or not isinstance(trunk.embeddings, CharactersSpec):
        raise UserError(f"{model.spec.family} is not ELMo: it has no published form with {OPTIONS}")
    h5py = _h5py()
    state = {name: t.detach().cpu().float() for name, t in model.state_dict().items()}
    with whole_folder(Path(folder)) as place:
        write_json(place / OPTIONS, _options(trunk))
        with h5py.File(place / WEIGHTS, "w") as file:
            for name, theirs, turned in _table(trunk):
                tensor = torch.cat([state[each] for each in name], dim=-1)
                file.create_dataset(theirs, data=_outwards(tensor, turned).contiguous().numpy())


def _table(trunk: RecurrentSpec) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Our names, joined along the last axis; the published name; how the one becomes the other."""
    assert isinstance(trunk.embeddings, CharactersSpec)
    bottom = "trunk.embeddings"
    yield (f"{bottom}.characters.weight",), "char_embed", "characters"
    for i in range(len(trunk.embeddings.filters)):
        yield (f"{bottom}.convolutions.{i}.weight",), f"CNN/W_cnn_{i}", "filter"
        yield (f"{bottom}.convolutions.{i}.bias",), f"CNN/b_cnn_{i}", "same"
    for i in range(trunk.embeddings.num_highway):
        for part in ("carry", "transform"):
            yield (f"{bottom}.highways.{i}.{part}.weight",), f"CNN_high_{i}/W_{part}", "turn"
            yield (f"{bottom}.highways.{i}.{part}.bias",), f"CNN_high_{i}/b_{part}", "same"
    yield (f"{bottom}.project.weight",), "CNN_proj/W_proj", "turn"
    yield (f"{bottom}.project.bias",), "CNN_proj/b_proj", "same"
    for way in range(2):
        for layer in range(trunk.num_layers):
            ours = f"trunk.stacks.{way}.{layer}.cells.0"
            theirs = f"RNN_{way}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            yield (f"{ours}.weight_ih", f"{ours}.weight_hh"), f"{theirs}/W_0", "gates"
            yield (f"{ours}.bias_ih",), f"{theirs}/B", "gates"
            yield (f"{ours}.weight_hr",), f"{theirs}/W_P_0", "turn"


def _inwards(tensor: Tensor, how: str) -> Tensor:
    """A published tensor as ours. TensorFlow multiplies from the left, and its gates are input, new, forget, output."""
    if how == "characters":
        return torch.cat([tensor.new_zeros(1, tensor.shape[1]), tensor])
    if how == "filter":
        return tensor.squeeze(0).permute(2, 1, 0)
    if how == "gates":
        return _swapped(tensor.t() if tensor.ndim > 1 else tensor)
    return tensor.t() if how == "turn" else tensor


def _outwards(tensor: Tensor, how: str) -> Tensor:
    """The inverse of `_inwards`."""
    if how == "characters":
        return tensor[1:]
    if how == "filter":
        return tensor.permute(2, 1, 0)[None]
    if how == "gates":
        return _swapped(tensor).t() if tensor.ndim > 1 else _swapped(tensor)
    return tensor.t() if how == "turn" else tensor


def _swapped(tensor: Tensor) -> Tensor:
    enter, second, third, leave = tensor.chunk(4)
    return torch.cat([enter, third, second, leave])


def _trunk(path: Path) -> RecurrentSpec:
    options = read_json(path)

    def at(*keys: str, default: Any = None) -> Any:
        value = options
        for key in keys:
            if not isinstance(value, dict) or (key not in value and default is None):
                known = value if isinstance(value, dict) else ()
                raise UserError(f"{path} has no {'.'.join(keys)}; {nearest(key, known)}")
            value = value.get(key, default)
        return value

    characters = at("char_cnn", "n_characters")
    if characters not in (CHARACTERS, CHARACTERS - 1):
        raise UserError(f"{path}: char_cnn.n_characters is {characters!r}, expected {CHARACTERS - 1} or {CHARACTERS}")
    trunk = FAMILIES["elmo"].trunk(
        num_layers=at("lstm", "n_layers"),
        dim=2 * at("lstm", "projection_dim"),
        ffn_dim=at("lstm", "dim"),
        vocab_size=WORDS,
        filters=tuple(tuple(each) for each in at("char_cnn", "filters")),
        char_dim=at("char_cnn", "embedding", "dim"),
        width=at("char_cnn", "max_characters_per_token"),
        num_highway=at("char_cnn", "n_highway"),
        activation=at("char_cnn", "activation", default="relu"),
        cell_clip=at("lstm", "cell_clip", default=0),
        projection_clip=at("lstm", "proj_clip", default=0),
        skip=at("lstm", "use_skip_connections", default=False),
    )
    return RecurrentSpec.from_json(trunk.to_json(), str(path))  # every value is of its type


def _options(trunk: RecurrentSpec) -> dict[str, Any]:
    characters = trunk.embeddings
    assert isinstance(characters, CharactersSpec)
    return {
        "lstm": {
            "cell_clip": trunk.cell_clip,
            "use_skip_connections": trunk.links == "residual",
            "n_layers": trunk.num_layers,
            "proj_clip": trunk.projection_clip,
            "projection_dim": trunk.projection,
            "dim": trunk.sizes[0],
        },
        "char_cnn": {
            "embedding": {"dim": characters.char_dim},
            "filters": [list(each) for each in characters.filters],
            "n_highway": characters.num_highway,
            "n_characters": CHARACTERS,
            "max_characters_per_token": characters.width,
            "activation": characters.activation,
        },
    }


def _read(path: Path) -> dict[str, np.ndarray]:
    """Every data set of the file by its full name."""
    h5py = _h5py()
    found: dict[str, np.ndarray] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = np.asarray(item[()], dtype=np.float32)

    try:
        with h5py.File(path, "r") as file:
            file.visititems(visit)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a whole HDF5 file ({str(error).splitlines()[0][:80]})") from None
    return found


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise UserError("h5py is needed for this: pip install 'polyseme[elmo]'") from None
    return h5py
