"""The model folder: the layout that `transformers` reads, plus `polyseme.json`.

`config.json`, `model.safetensors` and the tokenizer's files are what any other tool expects; heads it has no name for
lie in `polyseme.safetensors`. Weights are safetensors only: a pickle is refused, since opening one runs its code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from polyseme.errors import UserError, nearest
from polyseme.families import FAMILIES, Family
from polyseme.families.family import FIXED_LABELS
from polyseme.io.files import read_json, sha256, whole_folder, write_json, write_tensors
from polyseme.nn.heads.standard import HeadSpec, LabelHeadSpec
from polyseme.nn.model import Model, ModelSpec, outline
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.convert import to_ours, to_theirs

FORMAT = 1
TARGET = "target"  # the folder of the target's own tokenizer


@dataclass
class ModelFolder:
    """An opened folder: the model, its tokenizer, what `polyseme.json` says, and which weights are new."""

    path: Path
    model: Model
    tokenizer: Tokenizer
    notes: dict[str, Any] = field(default_factory=dict)
    fresh: list[str] = field(default_factory=list)
    target: Tokenizer | None = None  # of what it writes, where that has a vocabulary of its own


def save_model(
    path: Path,
    model: Model,
    tokenizer: Tokenizer,
    notes: dict[str, Any] | None = None,
    target: Tokenizer | None = None,
) -> None:
    """Write the folder whole or not at all. `notes` is kept as it is: recipe, provenance, results."""
    check_fit(model.spec, tokenizer)
    family = FAMILIES[model.spec.family]
    state = {name: _stored(t) for name, t in model.state_dict().items()}
    architecture = _architecture(family, model.spec)
    first = family.architectures[architecture] if architecture else ()  # these heads have a published place
    heads = {name: model.spec.heads[name] for name in (*first, *(h for h in model.spec.heads if h not in first))}
    theirs, left = to_theirs(family, model.spec.replace(heads=heads), state)
    if architecture is not None and not family.architectures[architecture]:
        theirs = {name.removeprefix(family.prefix): t for name, t in theirs.items()}
    with whole_folder(path) as folder:
        write_tensors(folder / "model.safetensors", theirs)
        if left:
            write_tensors(folder / "polyseme.safetensors", {name: state[name] for name in sorted(left)})
        write_json(folder / "config.json", _config(family, model.spec, architecture, tokenizer))
        tokenizer.save(folder)
        if target is not None:
            (folder / TARGET).mkdir()
            target.save(folder / TARGET)
        hashes = {p.name: sha256(p) for p in sorted(folder.glob("*.safetensors"))}
        about = {"format": FORMAT, "spec": model.spec.to_json(), "sha256": hashes, "notes": notes or {}}
        write_json(folder / "polyseme.json", about)


def load_model(path: str | Path, heads: dict[str, HeadSpec] | None = None, seed: int = 0) -> ModelFolder:
    """Open a folder written here or by `transformers`. Loading is strict; `heads` replaces the heads by new ones.

    One that the folder has exactly so is kept: a model goes on from one task to the next with the same answers.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(f"there is no model folder at {folder}")
    spec, notes = read_spec(folder)
    family = FAMILIES[spec.family]
    shapes = {name: t.shape for name, t in outline(spec).state_dict().items()}
    extra = folder / "polyseme.safetensors"
    state = _load(extra) if extra.exists() else {}
    for name, tensor in state.items():
        if shapes.get(name) != tensor.shape:
            raise UserError(f"{extra} has a tensor {name!r} of shape {tuple(tensor.shape)} that the spec does not have")
    theirs = {name: t for file in weight_files(folder) for name, t in _load(file).items()}
    state |= to_ours(family, spec, {n: s for n, s in shapes.items() if n not in state}, theirs, str(folder))
    if heads is not None:
        kept = tuple(f"heads.{name}." for name, head in spec.heads.items() if heads.get(name) == head)
        spec = spec.replace(heads=heads)
        state = {name: t for name, t in state.items() if not name.startswith("heads.") or name.startswith(kept)}
    model = outline(spec)
    model.to_empty(device="cpu")
    fresh = sorted(set(model.state_dict()) - set(state))
    if fresh:
        allowed = (*family.optional, *(f"heads.{name}." for name in heads or {}))
        if lacking := [name for name in fresh if not name.startswith(allowed)]:
            raise UserError(f"{folder} lacks the tensor {lacking[0]!r}; {nearest(lacking[0], state)}")
        model.initialise(torch.Generator().manual_seed(seed))
    model.load_state_dict({n: t.float() for n, t in state.items()}, strict=False)
    for name in model.state_dict().keys() - dict(model.named_parameters()).keys() & state.keys():
        if not torch.equal(model.state_dict()[name].float(), state[name].float()):
            raise UserError(f"{folder}: {name!r} differs from the tensor that it shares")
    tokenizer = Tokenizer.load(folder)
    _check_tokenizer(folder, tokenizer, spec.trunk.embeddings.vocab_size)
    model.know(tokenizer.vocabulary, tokenizer.special_ids)
    target = Tokenizer.load(folder / TARGET) if (folder / TARGET).is_dir() else None
    return ModelFolder(folder, model.eval(), tokenizer, notes, fresh, target)


def read_spec(folder: Path) -> tuple[ModelSpec, dict[str, Any]]:
    """What the model is: from `polyseme.json` if it is there, else worked out from `config.json`."""
    config = _read_object(folder / "config.json")
    kind = config.get("model_type", "")
    if (folder / "polyseme.json").exists():
        about = _read_object(folder / "polyseme.json")
        spec = ModelSpec.from_json(about.get("spec"), "spec")
        if spec.family not in FAMILIES:
            raise UserError(f"{folder}: unknown family {spec.family!r}; {nearest(spec.family, FAMILIES)}")
        return spec, about.get("notes", {})
    kinds = {family.model_type or family.name: family for family in FAMILIES.values()}
    if kind not in kinds:
        raise UserError(f"{folder}/config.json: model_type {kind!r} is no family here; {nearest(str(kind), kinds)}")
    family = kinds[kind]
    name = (config.get("architectures") or [None])[0]
    base = next(a for a, heads in family.architectures.items() if not heads)
    if (name or base) not in family.architectures:
        raise UserError(f"{folder}/config.json: architecture {name!r}; {nearest(str(name), family.architectures)}")
    there = {family.modern(tensor) for file in weight_files(folder) for tensor in _names(file)}
    given = family.from_config({**config, "tensors": sorted(there)})
    trunk = type(given).from_json(given.to_json(), "config.json")  # every value is of its type
    pretraining = family.heads(trunk)
    chosen = {
        head: pretraining[head] if head in pretraining else family.label_head(head, _labels(config, head), trunk)
        for head in family.architectures[name or base]
    }
    # published files may hold more heads than their architecture names: bert-base has both of pre-training's
    for head, rules in family.head_rules.items():
        needed = {tensor for rule in rules for tensor in rule.theirs}
        if head in pretraining and needed and needed <= there:
            chosen[head] = pretraining[head]
    return ModelSpec(family.name, trunk, chosen), {}


def verify_model(folder: Path) -> None:
    """Open everything strictly, and compare the hashes that were written beside the weights."""
    load_model(folder)
    about = read_json(folder / "polyseme.json") if (folder / "polyseme.json").exists() else {}
    for name, expected in about.get("sha256", {}).items():
        if sha256(folder / name) != expected:
            raise UserError(f"{folder / name} is not what was saved: its hash differs from the one in polyseme.json")


def check_fit(spec: ModelSpec, tokenizer: Tokenizer) -> None:
    """Where a family counts positions from the id of its pad token on (RoBERTa), that id is part of the model."""
    wanted, found = FAMILIES[spec.family].to_config(spec).get("pad_token_id"), tokenizer.specials.pad
    if wanted is not None and found is not None and wanted != found:
        raise UserError(
            f"the tokenizer's pad token has the id {found}, but {spec.family} needs {wanted}: "
            f"train one with --kind {FAMILIES[spec.family].tokenizer}"
        )


def _stored(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    return tensor.float() if tensor.is_floating_point() else tensor


def _architecture(family: Family, spec: ModelSpec) -> str | None:
    """The class whose heads are most of ours; of two, the one with a task's head."""
    known = set(family.heads(spec.trunk))
    fitting = [
        (len(heads), not known.issuperset(heads), name)
        for name, heads in family.architectures.items()
        if set(heads) <= set(spec.heads)
    ]
    return max(fitting)[2] if fitting else None


def _config(family: Family, spec: ModelSpec, architecture: str | None, tokenizer: Tokenizer) -> dict[str, Any]:
    config = {"architectures": [architecture], **family.to_config(spec), "dtype": "float32"}
    specials = tokenizer.specials
    for role in ("pad", "bos", "eos", "cls", "sep"):
        key, value = f"{role}_token_id", getattr(specials, role)
        if value is not None and (role in ("pad", "bos", "eos") or key in config):
            config[key] = value
    if config.get("is_encoder_decoder") and specials.pad is not None:
        config["decoder_start_token_id"] = specials.pad
    for name in family.architectures[architecture] if architecture else ():
        head = spec.heads[name]
        if name not in FIXED_LABELS and name not in family.heads(spec.trunk) and isinstance(head, LabelHeadSpec):
            labels = head.labels or ("LABEL_0",)
            config["id2label"] = {str(i): label for i, label in enumerate(labels)}
            config["label2id"] = {label: i for i, label in enumerate(labels)}
            if not head.labels:
                config["problem_type"] = "regression"
    return config


def _labels(config: dict[str, Any], head: str) -> tuple[str, ...]:
    """The labels a published config gives a head. A class of texts with one output predicts a number: no labels."""
    if head in FIXED_LABELS:
        return FIXED_LABELS[head]
    numbered = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    labels = tuple(numbered[i] for i in sorted(numbered, key=int))
    problem = config.get("problem_type") or ("regression" if len(labels) == 1 else "")
    if head == "tag" or problem != "regression":
        return labels
    if len(labels) > 1:
        raise UserError(f"config.json: a regression with {len(labels)} outputs is not supported, only one number")
    return ()


def _check_tokenizer(folder: Path, tokenizer: Tokenizer, vocab_size: int) -> None:
    """The tokenizer is the model's: no piece the model lacks, and the special ids that the config names."""
    if tokenizer.vocab_size > vocab_size:
        raise UserError(f"{folder}: the tokenizer has {tokenizer.vocab_size} pieces, but the model knows {vocab_size}")
    config = read_json(folder / "config.json")
    for role in ("pad", "bos", "eos", "cls", "sep"):
        named, found = config.get(f"{role}_token_id"), getattr(tokenizer.specials, role)
        if named is not None and found is not None and named != found:
            raise UserError(f"{folder}: config.json has {role}_token_id {named}, but the tokenizer's is {found}")


def _read_object(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path} holds no JSON object")
    return value


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files with the published names: one, or the shards that an index lists."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if index.exists():
        names = sorted(set(_read_object(index).get("weight_map", {}).values()))
        if outside := [name for name in names if Path(name).name != name]:
            raise UserError(f"{index} names a file outside its folder: {outside[0]!r}")
        return [folder / name for name in names]
    pickles = [p.name for p in folder.glob("*") if p.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl")]
    if pickles:
        raise UserError(f"{folder / pickles[0]} is a pickle, which can run code when opened: save it as safetensors")
    raise UserError(f"{folder} holds no model.safetensors")


def _names(path: Path) -> list[str]:
    with _whole_tensors(path), safe_open(path, "pt") as file:
        return list(file.keys())


def _load(path: Path) -> dict[str, Tensor]:
    with _whole_tensors(path):
        return load_file(path)


@contextmanager
def _whole_tensors(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is not a whole safetensors file ({error})") from None
