"""Model folder: the layout of `transformers` plus `polyseme.json`.

`config.json`, `model.safetensors` and the tokenizer files are those of `transformers`; heads that it lacks are in
`polyseme.safetensors`. Weights are safetensors only; pickles are rejected, since loading one runs its code.
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

from polyseme.errors import ModelError, suggest
from polyseme.families import FAMILIES, Family, get_family
from polyseme.families.family import FIXED_LABELS
from polyseme.io.atomic import atomic_directory, restore_directory, sha256, write_tensors
from polyseme.io.json import read_json, write_json
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.model import Model, ModelConfig, build_meta
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.convert import from_published, to_published

FORMAT_VERSION = 1
TARGET_TOKENIZER_DIR = "target"


@dataclass
class ModelFolder:
    """A loaded folder: model, tokenizer, metadata of `polyseme.json`, and the names of new weights."""

    path: Path
    model: Model
    tokenizer: Tokenizer
    metadata: dict[str, Any] = field(default_factory=dict)
    newly_initialized: list[str] = field(default_factory=list)
    target_tokenizer: Tokenizer | None = None  # if the target has its own vocabulary


def save_model(
    path: Path,
    model: Model,
    tokenizer: Tokenizer,
    metadata: dict[str, Any] | None = None,
    target_tokenizer: Tokenizer | None = None,
    families: Sequence[Family] = (),
) -> None:
    """Write a model folder atomically. `metadata` (recipe, provenance, results) is stored unchanged."""
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
    with atomic_directory(path) as folder:
        write_tensors(folder / "model.safetensors", published)
        if unpublished:
            write_tensors(folder / "polyseme.safetensors", {name: state[name] for name in sorted(unpublished)})
        write_json(folder / "config.json", _build_hf_config(family, model.config, architecture, tokenizer))
        tokenizer.save(folder)
        if target_tokenizer is not None:
            (folder / TARGET_TOKENIZER_DIR).mkdir()
            target_tokenizer.save(folder / TARGET_TOKENIZER_DIR)
        record: dict[str, Any] = {"format": FORMAT_VERSION, "config": model.config.to_json()}
        record["sha256"] = {p.name: sha256(p) for p in sorted(folder.glob("*.safetensors"))}
        write_json(folder / "polyseme.json", record | {"metadata": metadata or {}})


def load_model(
    path: str | Path, heads: dict[str, HeadConfig] | None = None, seed: int = 0, families: Sequence[Family] = ()
) -> ModelFolder:
    """Load a folder written by Polyseme or `transformers`, strictly. `heads` replaces the heads by new ones.

    The weights of a head with the same name and config are kept, so that a model can be trained further on a task.
    """
    folder = Path(path)
    restore_directory(folder)
    if not folder.is_dir():
        raise ModelError(f"there is no model folder at {folder}")
    config, metadata = read_model_config(folder, families)
    family = get_family(config.family, families)
    shapes = {name: t.shape for name, t in build_meta(config).state_dict().items()}
    extra = folder / "polyseme.safetensors"
    state = _load_tensors(extra) if extra.exists() else {}
    for name, tensor in state.items():
        if shapes.get(name) != tensor.shape:
            shape = tuple(tensor.shape)
            raise ModelError(f"{extra}: tensor {name!r} of shape {shape} does not match the config in polyseme.json")
    published = {name: t for file in list_weight_files(folder) for name, t in _load_tensors(file).items()}
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
            raise ModelError(f"{folder} has no tensor {missing[0]!r}; {suggest(missing[0], state)}")
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
    return ModelFolder(folder, model.eval(), tokenizer, metadata, newly_initialized, target_tokenizer)


def read_model_config(folder: Path, families: Sequence[Family] = ()) -> tuple[ModelConfig, dict[str, Any]]:
    """Read the config of a model from `polyseme.json` or, if there is none, from `config.json`."""
    hf_config = _read_json_object(folder / "config.json")
    if (folder / "polyseme.json").exists():
        record = _read_json_object(folder / "polyseme.json")
        config_types = [config_type for family in families for config_type in family.config_types]
        config = ModelConfig.from_json(record.get("config"), "config", config_types)
        known = [*FAMILIES, *(family.name for family in families)]
        if config.family not in known:
            raise ModelError(f"{folder}: unknown family {config.family!r}; {suggest(config.family, known)}")
        return config, record.get("metadata", {})
    families_by_type = {family.model_type or family.name: family for family in (*FAMILIES.values(), *families)}
    if (model_type := hf_config.get("model_type", "")) not in families_by_type:
        hint = suggest(str(model_type), families_by_type)
        raise ModelError(f"{folder}/config.json: model_type {model_type!r} is not supported; {hint}")
    family = families_by_type[model_type]
    base_architecture = next(name for name, heads in family.architectures.items() if not heads)
    architecture = (hf_config.get("architectures") or [None])[0] or base_architecture
    if architecture not in family.architectures:
        hint = suggest(str(architecture), family.architectures)
        raise ModelError(f"{folder}/config.json: architecture {architecture!r} is not supported; {hint}")
    tensor_names = {family.upgrade_name(tensor) for file in list_weight_files(folder) for tensor in _tensor_names(file)}
    parsed = family.from_hf_config({**hf_config, "tensors": sorted(tensor_names)})
    trunk_config = type(parsed).from_json(parsed.to_json(), "config.json")  # checks the type of each value
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


def verify_model(folder: Path) -> None:
    """Load a model folder strictly, and compare the hashes of its weights with those in `polyseme.json`."""
    load_model(folder)
    record = read_json(folder / "polyseme.json") if (folder / "polyseme.json").exists() else {}
    for name, expected in record.get("sha256", {}).items():
        if sha256(folder / name) != expected:
            raise ModelError(f"{folder / name} was modified: its hash differs from the one in polyseme.json")


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


def _select_architecture(family: Family, config: ModelConfig) -> str | None:
    """Return the class with the largest number of our heads, preferably with a task head."""
    pretraining_heads = set(family.pretraining_heads(config.trunk))
    candidates = [
        (len(heads), not pretraining_heads.issuperset(heads), name)
        for name, heads in family.architectures.items()
        if set(heads) <= set(config.heads)
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
    return hf_config


def _read_labels(hf_config: dict[str, Any], head: str) -> tuple[str, ...]:
    """Return the labels of a head in a published config, none for a regression (a single output)."""
    if head in FIXED_LABELS:
        return FIXED_LABELS[head]
    id2label = hf_config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    labels = tuple(id2label[i] for i in sorted(id2label, key=int))
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
    hf_config = read_json(folder / "config.json")
    for role in ("pad", "bos", "eos", "cls", "sep"):
        config_id, tokenizer_id = hf_config.get(f"{role}_token_id"), getattr(tokenizer.special_token_ids, role)
        if config_id is not None and tokenizer_id is not None and config_id != tokenizer_id:
            raise ModelError(
                f"{folder}: config.json has {role}_token_id {config_id}, but the tokenizer's is {tokenizer_id}"
            )


def _read_json_object(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object")
    return value


def hash_weights(folder: Path) -> str:
    """Return a hash of the weights of a model folder."""
    return hashlib.sha256("".join(sha256(file) for file in list_weight_files(folder)).encode()).hexdigest()


def list_weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files with published names: one file, or the shards listed in an index."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if index.exists():
        names = sorted(set(_read_json_object(index).get("weight_map", {}).values()))
        if escaping := [name for name in names if Path(name).name != name]:
            raise ModelError(f"{index} refers to a file outside its folder: {escaping[0]!r}")
        return [folder / name for name in names]
    pickles = [p.name for p in folder.glob("*") if p.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl")]
    if pickles:
        raise ModelError(
            f"{folder / pickles[0]} is a pickle, which can run code when loaded; convert it to safetensors"
        )
    raise ModelError(f"{folder} has no model.safetensors")


def _tensor_names(path: Path) -> list[str]:
    with _tensor_errors(path), safe_open(path, "pt") as file:
        return list(file.keys())


def _load_tensors(path: Path) -> dict[str, Tensor]:
    with _tensor_errors(path):
        return load_file(path)


@contextmanager
def _tensor_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise ModelError(f"{path} is missing") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"{path} is not a valid safetensors file ({error})") from None
