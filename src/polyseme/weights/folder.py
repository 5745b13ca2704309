"""Model folder: the layout of `transformers` plus `polyseme.json`.

`config.json`, `model.safetensors` and the tokenizer files are those of `transformers`; heads that it lacks are in
`polyseme.safetensors`. Weights are safetensors only; pickles are rejected, since loading one runs its code. The hashes
of all files are in `SHA256SUMS` and checked when the folder is loaded. Weights may be stored in bf16 or int8; they are
float32 once loaded. `transformers` does not read int8, so those are in `model.int8.safetensors`.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from polyseme.errors import ConfigError, ModelError, unsupported
from polyseme.families import ALL_FAMILIES, Family, get_family
from polyseme.families.family import FIXED_LABELS
from polyseme.io.atomic import restore_directory, sha256, write_tensors
from polyseme.io.hashes import check_hashes, hashed_directory
from polyseme.io.json import read_json_object, write_json
from polyseme.io.model_path import resolve_model
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.embedding import EmbeddingHeadConfig
from polyseme.nn.model import Model, ModelConfig, build_meta
from polyseme.nn.sizes import check_memory
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.convert import from_published, to_published
from polyseme.weights.finite import check_finite
from polyseme.weights.formats import missing_config_error, missing_folder_error, missing_weights_error
from polyseme.weights.int8_storage import INT8_FILE, dequantize_weights, quantize_weights
from polyseme.weights.model_card import write_neural_card
from polyseme.weights.pooling import TextPooling, read_pooling, write_pooling

FORMAT_VERSION = 1
TARGET_TOKENIZER_DIR = "target"
STORAGE_DTYPES = {"float32": "float32", "bf16": "bfloat16", "int8": "float32"}  # and torch's name in config.json


@dataclass
class ModelFolder:
    """A loaded folder: model, tokenizer, metadata of `polyseme.json`, and the names of new weights."""

    path: Path
    model: Model
    tokenizer: Tokenizer
    metadata: dict[str, Any] = field(default_factory=dict)
    newly_initialized: list[str] = field(default_factory=list)
    target_tokenizer: Tokenizer | None = None  # if the target has its own vocabulary
    pooling: TextPooling = field(default_factory=TextPooling)


def save_model(
    path: Path,
    model: Model,
    tokenizer: Tokenizer,
    metadata: dict[str, Any] | None = None,
    target_tokenizer: Tokenizer | None = None,
    families: Sequence[Family] = (),
    pooling: TextPooling | None = None,
    dtype: str = "float32",
) -> None:
    """Write a model folder atomically. `metadata` (recipe, provenance, results) is stored unchanged.

    `pooling` computes the vector of a text if no head does. `dtype` is that of the stored weights.
    """
    if dtype not in STORAGE_DTYPES:
        raise ConfigError(f"dtype {unsupported(dtype, STORAGE_DTYPES)}")
    family = get_family(model.config.family, families)
    check_tokenizer_compatible(model.config, tokenizer, family)
    state = {name: _to_storage(t) for name, t in model.state_dict().items()}
    architecture = _select_architecture(family, model.config)
    published_heads = family.architectures[architecture] if architecture else ()
    # published heads first, since two heads may share a published name
    heads = {name: model.config.heads[name] for name in dict.fromkeys([*published_heads, *model.config.heads])}
    published, unpublished = to_published(family, model.config.replace(heads=heads), state)
    if architecture is not None and not family.architectures[architecture]:
        published = {name.removeprefix(family.base_model_prefix): t for name, t in published.items()}
    with hashed_directory(path) as folder:
        weights_file = INT8_FILE if dtype == "int8" else "model.safetensors"
        write_tensors(folder / weights_file, _to_dtype(published, dtype))
        if unpublished:
            extra = {name: state[name] for name in sorted(unpublished)}
            write_tensors(folder / "polyseme.safetensors", _to_dtype(extra, dtype))
        hf_config = _build_hf_config(family, model.config, architecture, tokenizer) | {"dtype": STORAGE_DTYPES[dtype]}
        write_json(folder / "config.json", hf_config)
        tokenizer.save_files(folder)
        if target_tokenizer is not None:
            (folder / TARGET_TOKENIZER_DIR).mkdir()
            target_tokenizer.save_files(folder / TARGET_TOKENIZER_DIR)
        pooling, trunk = _head_pooling(model.config) or pooling, model.config.trunk
        if pooling is not None and architecture is not None:
            write_pooling(folder, pooling, trunk.dim, trunk.embeddings.max_len)
        record = {"format": FORMAT_VERSION, "config": model.config.to_json(), "metadata": metadata or {}}
        write_json(folder / "polyseme.json", record)
        write_neural_card(folder, path, model, tokenizer, family, hf_config, metadata or {})


def load_model(
    path: str | Path,
    heads: dict[str, HeadConfig] | None = None,
    seed: int = 0,
    families: Sequence[Family] = (),
    verify: bool = False,
) -> ModelFolder:
    """Load a folder written by Polyseme or `transformers`, strictly. `heads` replaces the heads by new ones.

    The weights of a head with the same name and config are kept, so that a model can be trained further on a task. The
    hashes of all files are checked; those of large weights only with `verify`, since it takes longer than loading.
    """
    folder = resolve_model(path)
    restore_directory(folder)
    if not folder.is_dir():
        raise missing_folder_error(folder)
    check_hashes(folder, with_large_weights=verify)
    config, metadata = read_model_config(folder, families)
    family = get_family(config.family, families)
    shapes = {name: t.shape for name, t in build_meta(config).state_dict().items()}
    check_memory(sum(shape.numel() for shape in shapes.values()))
    extra = folder / "polyseme.safetensors"
    state = _load_tensors(extra) if extra.exists() else {}
    check_finite(state, extra)
    for name, tensor in state.items():
        if shapes.get(name) != tensor.shape:
            shape = tuple(tensor.shape)
            raise ModelError(f"{extra}: tensor {name!r} of shape {shape} does not match the config in polyseme.json")
    published = {name: t for file in list_weight_files(folder) for name, t in _load_tensors(file).items()}
    check_finite({name: t for name, t in published.items() if not name.endswith(family.ignored_weights)}, folder)
    state |= from_published(family, config, {n: s for n, s in shapes.items() if n not in state}, published, str(folder))
    if heads is not None:
        kept_prefixes = tuple(f"heads.{name}." for name, head in config.heads.items() if heads.get(name) == head)
        config = config.replace(heads=heads)
        state = {n: t for n, t in state.items() if not n.startswith("heads.") or n.startswith(kept_prefixes)}
    model = build_meta(config)
    model.to_empty(device="cpu")
    if newly_initialized := sorted(set(model.state_dict()) - set(state)):
        allowed = (*family.optional_weights, *(f"heads.{name}." for name in heads or {}))
        if missing := [name for name in newly_initialized if not name.startswith(allowed)]:
            raise ModelError(f"{folder} has no tensor {missing[0]!r}: the weights do not match the config")
        model.initialize(torch.Generator().manual_seed(seed))
    model.load_state_dict({n: t.float() for n, t in state.items()}, strict=False)
    for name in model.state_dict().keys() - dict(model.named_parameters()).keys() & state.keys():
        if not torch.equal(model.state_dict()[name].float(), state[name].float()):
            raise ModelError(f"{folder}: {name!r} differs from the tensor that it is tied to")
    tokenizer = Tokenizer.load(folder)
    _check_tokenizer(folder, tokenizer, config.trunk.embeddings.vocab_size)
    model.set_vocabulary(tokenizer.vocabulary, tokenizer.all_special_ids)
    target_folder = folder / TARGET_TOKENIZER_DIR
    target_tokenizer = Tokenizer.load(target_folder) if target_folder.is_dir() else None
    pooling = _head_pooling(config) or read_pooling(folder)
    return ModelFolder(folder, model.eval(), tokenizer, metadata, newly_initialized, target_tokenizer, pooling)


def read_model_config(folder: Path, families: Sequence[Family] = ()) -> tuple[ModelConfig, dict[str, Any]]:
    """Read the config of a model from `polyseme.json` or, if there is none, from `config.json`."""
    folder = resolve_model(folder)
    if not folder.is_dir():
        raise missing_folder_error(folder)
    if not (folder / "config.json").exists():
        raise missing_config_error(folder)
    hf_config = read_json_object(folder / "config.json")
    if (folder / "polyseme.json").exists():
        record = read_json_object(folder / "polyseme.json")
        config_types = [config_type for family in families for config_type in family.config_types]
        config = ModelConfig.from_json(record.get("config"), "config", config_types)
        known = [*ALL_FAMILIES, *(family.name for family in families)]
        if config.family not in known:
            raise ModelError(f"{folder}: family {unsupported(config.family, known)}")
        metadata = record.get("metadata", {})
        if not isinstance(metadata, dict):
            raise ModelError(f"{folder}/polyseme.json: metadata is {metadata!r}, expected an object")
        return config, metadata
    families_by_type = {family.model_type or family.name: family for family in (*ALL_FAMILIES.values(), *families)}
    model_type = hf_config.get("model_type", "")
    if not isinstance(model_type, str) or model_type not in families_by_type:
        raise ModelError(f"{folder}/config.json: model_type {unsupported(model_type, families_by_type)}")
    family = families_by_type[model_type]
    base_architecture = next(name for name, heads in family.architectures.items() if not heads)
    architectures = hf_config.get("architectures") or [None]
    architecture = (architectures[0] if isinstance(architectures, list) else architectures) or base_architecture
    if not isinstance(architecture, str) or architecture not in family.architectures:
        raise ModelError(f"{folder}/config.json: architecture {unsupported(architecture, family.architectures)}")
    tensor_names = {family.upgrade_name(tensor) for file in list_weight_files(folder) for tensor in _tensor_names(file)}
    try:
        parsed = family.from_hf_config({**hf_config, "tensors": sorted(tensor_names)})
        trunk_config = type(parsed).from_json(parsed.to_json(), "config.json")  # checks the type of each value
    except ConfigError as error:
        raise ModelError(f"{folder}/config.json: {error}") from None
    if architecture not in (supported := family.architectures_for(trunk_config)):
        direction = "a causal" if trunk_config.causal else "a bidirectional"
        raise ModelError(f"{folder}/config.json: {direction} architecture {unsupported(architecture, supported)}")
    pretraining = family.pretraining_heads(trunk_config)
    heads_config = {
        head: pretraining.get(head) or family.task_head(head, _read_labels(hf_config, head), trunk_config)
        for head in family.architectures[architecture]
    }
    # published files may contain more heads than their architecture, e.g. both pre-training heads of bert-base
    for head, weight_maps in family.head_weight_maps.items():
        needed_names = {tensor for weight_map in weight_maps for tensor in weight_map.published_names}
        if head in pretraining and needed_names and needed_names <= tensor_names:
            heads_config[head] = pretraining[head]
    return ModelConfig(family.name, trunk_config, heads_config), {}


def _head_pooling(config: ModelConfig) -> TextPooling | None:
    """Return how the vector of a text is computed if the model was trained for that; None if it was not."""
    for head in config.heads.values():
        if isinstance(head, EmbeddingHeadConfig):
            return TextPooling("mean" if head.pooling == "mean" else "cls", normalize=True)
    return None


def check_tokenizer_compatible(config: ModelConfig, tokenizer: Tokenizer, family: Family) -> None:
    """Raise if the model counts positions from the id of its pad token on (RoBERTa), and the tokenizer has another."""
    expected_pad_id, pad_id = family.to_hf_config(config).get("pad_token_id"), tokenizer.special_token_ids.pad
    if expected_pad_id is not None and pad_id is not None and expected_pad_id != pad_id:
        raise ModelError(
            f"the tokenizer's pad token has id {pad_id}, but {config.family} needs {expected_pad_id}; "
            f"use a tokenizer of kind {family.tokenizer}"
        )


def _to_storage(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    return tensor.float() if tensor.is_floating_point() else tensor


def _to_dtype(tensors: dict[str, Tensor], dtype: str) -> dict[str, Tensor]:
    if dtype == "int8":
        return quantize_weights(tensors)
    if dtype == "float32":
        return tensors
    return {name: t.bfloat16() if t.is_floating_point() else t for name, t in tensors.items()}


def _select_architecture(family: Family, config: ModelConfig) -> str | None:
    """Return the class with the largest number of our heads, preferably with a task head."""
    pretraining_heads = set(family.pretraining_heads(config.trunk))
    candidates = [
        (len(heads), not pretraining_heads.issuperset(heads), name)
        for name, heads in family.architectures_for(config.trunk).items()
        if set(heads) <= {name for name, head in config.heads.items() if head.is_published}
    ]
    return max(candidates)[2] if candidates else None


def _build_hf_config(
    family: Family, model_config: ModelConfig, architecture: str | None, tokenizer: Tokenizer
) -> dict[str, Any]:
    hf_config = {"architectures": [architecture], **family.to_hf_config(model_config), "dtype": "float32"}
    special_ids = tokenizer.special_token_ids
    for role in ("pad", "bos", "eos", "cls", "sep"):
        key, value = f"{role}_token_id", getattr(special_ids, role)
        if value is not None and (role in ("pad", "bos", "eos") or key in hf_config):
            hf_config[key] = value
    if hf_config.get("is_encoder_decoder") and special_ids.pad is not None:
        hf_config["decoder_start_token_id"] = special_ids.pad
    for name in family.architectures[architecture] if architecture else ():
        head = model_config.heads[name]
        is_labeled = name not in FIXED_LABELS and name not in family.pretraining_heads(model_config.trunk)
        if is_labeled and isinstance(head, ClassificationHeadConfig):
            labels = head.labels or ("LABEL_0",)
            hf_config["id2label"] = {str(i): label for i, label in enumerate(labels)}
            hf_config["label2id"] = {label: i for i, label in enumerate(labels)}
            if not head.labels:
                hf_config["problem_type"] = "regression"
    if not family.represents(model_config.trunk):  # another model type, so that no other tool misreads the folder
        hf_config |= {"model_type": f"{hf_config['model_type']}-pruned", "architectures": []}
    return hf_config


def _read_labels(hf_config: dict[str, Any], head: str) -> tuple[str, ...]:
    """Return the labels of a head in a published config, none for a regression (a single output)."""
    if head in FIXED_LABELS:
        return FIXED_LABELS[head]
    id2label = hf_config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    if not isinstance(id2label, dict) or sorted(id2label) != sorted(map(str, range(len(id2label)))):
        raise ModelError(f"config.json: the keys of id2label are not the numbers from 0 on: {id2label!r}")
    labels = tuple(id2label[str(i)] for i in range(len(id2label)))
    if not all(isinstance(label, str) for label in labels):
        raise ModelError(f"config.json: id2label has a label that is not a string: {id2label!r}")
    problem_type = hf_config.get("problem_type") or ("regression" if len(labels) == 1 else "")
    if head == "tag" or problem_type != "regression":
        return labels
    if len(labels) > 1:
        raise ModelError(f"config.json: a regression with {len(labels)} outputs is not supported, only with 1")
    return ()


def _check_tokenizer(folder: Path, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Check that the tokenizer fits the model: its vocabulary size and special ids."""
    if tokenizer.vocab_size > vocab_size:
        raise ModelError(f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens, but the model has {vocab_size}")
    try:
        tokenizer.check_ids(vocab_size)
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from None
    hf_config = read_json_object(folder / "config.json")
    for role in ("pad", "bos", "eos", "cls", "sep"):
        config_id, tokenizer_id = hf_config.get(f"{role}_token_id"), getattr(tokenizer.special_token_ids, role)
        if config_id is not None and tokenizer_id is not None and config_id != tokenizer_id:
            raise ModelError(
                f"{folder}: config.json has {role}_token_id {config_id}, but the tokenizer's is {tokenizer_id}"
            )


def hash_weights(folder: Path) -> str:
    """Return a hash of the weights of a model folder."""
    files = list_weight_files(resolve_model(folder))
    return hashlib.sha256("".join(map(sha256, files)).encode()).hexdigest()


def list_weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files with published names: one file, or the shards listed in an index."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if (folder / INT8_FILE).exists():
        return [folder / INT8_FILE]
    if index.exists():
        weight_map = read_json_object(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise ModelError(f"{index}: weight_map is not an object of tensor names and file names")
        names = sorted(set(weight_map.values()))
        if not names or not all(name.endswith(".safetensors") for name in names):
            raise ModelError(
                f"{index} must list files in the safetensors format, it lists {', '.join(names) or 'none'}"
            )
        if escaping := [name for name in names if Path(name).name != name]:
            raise ModelError(f"{index} refers to a file outside its folder: {escaping[0]!r}")
        return [folder / name for name in names]
    raise missing_weights_error(folder)


def _tensor_names(path: Path) -> list[str]:
    with _tensor_errors(path), safe_open(path, "pt") as file:
        return list(file.keys())


def _load_tensors(path: Path) -> dict[str, Tensor]:
    with _tensor_errors(path):
        tensors = load_file(path)
    is_int8 = any(tensor.dtype == torch.int8 for tensor in tensors.values())
    return dequantize_weights(tensors, path) if is_int8 else tensors


@contextmanager
def _tensor_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise ModelError(f"{path} is missing") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"{path} is not a valid safetensors file ({error})") from None
