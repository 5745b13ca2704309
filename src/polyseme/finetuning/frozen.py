"""Task models over frozen features: the encoder reads every word once, and a small network learns the task."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from polyseme.errors import UserError
from polyseme.evaluation.predict import Extra, as_examples, measure, predictions
from polyseme.finetuning.feature_extraction import LAYERS, Encoder, NetworkSpec, Sentence, features, words_of
from polyseme.finetuning.finetune import FinetuneSpec, check_run, crf_of
from polyseme.finetuning.runner import Part, Work, run_seeds
from polyseme.finetuning.word_embeddings import Given, begin, look_up, vocabulary_of
from polyseme.io.files import read_json, whole_folder, write_json, write_tensors
from polyseme.nn.heads.coreference import END
from polyseme.nn.heads.crf import CrfSpec
from polyseme.nn.heads.standard import HeadSpec, LabelHeadSpec
from polyseme.nn.layers.char_cnn import CharactersSpec, spell
from polyseme.nn.layers.frozen_features import FeaturesSpec, SourceSpec, Store
from polyseme.nn.model import Model, ModelSpec
from polyseme.nn.trunks.feature_network import Over, OverSpec
from polyseme.objectives.batch import Batch, Targets
from polyseme.objectives.losses import losses
from polyseme.tasks.coreference import word_rows
from polyseme.tasks.encoded import Encoded
from polyseme.tasks.examples import Example, Kind
from polyseme.tasks.readers.squad import trainable, wrong_offsets
from polyseme.tasks.spans import SpanAnswer
from polyseme.tasks.task import Prediction, Task
from polyseme.tasks.word_windows import WORDS, word_windows
from polyseme.train.optimizer import OptimSpec
from polyseme.train.schedule import ScheduleSpec

FAMILY = "features"  # what stands in the spec of such a model: it is no architecture
FILTERS = ((2, 25), (3, 50), (4, 25))
MARK_DIM = 100  # He et al. 2017, §3.1
TERM = "mix"  # the penalty on the weights of a mix
USUAL = FinetuneSpec(
    epochs=15.0,
    batch_size=16,
    optim=OptimSpec(rate=2e-3, eps=1e-8, decay=0.0, clip=5.0),
    schedule=ScheduleSpec("linear", warmup=0),
    precision="float32",
    network=NetworkSpec(),
)


@dataclass(frozen=True, eq=False)
class Reader:
    """Encoders, if there are any, with a choice of layers each; the words a network knows; where features are kept."""

    encoders: tuple[Encoder, ...]
    layers: tuple[str, ...]
    vocabulary: dict[str, int]
    cache: Path | None
    window: int = WORDS  # of a text in which an answer is sought
    given: Given | None = None

    @property
    def sources(self) -> tuple[SourceSpec, ...]:
        """What is stored of each encoder."""
        found = []
        for encoder, layers in zip(self.encoders, self.layers):
            kept, how = encoder.chosen(layers), LAYERS[layers][1]
            number, dim = 1 if how == "sum" else len(kept), encoder.sizes[kept[0]]
            found.append(SourceSpec(number, dim, "side" if how == "side" else "mix"))
        return tuple(found)

    def lay(self, task: Task, sets: Sequence[Sequence[Example]], labelled: bool) -> tuple[list[list[Encoded]], Store]:
        """Sets of examples as places of one store: features are read and kept for each set by itself, and of a text
        that stands in it several times once."""
        found: list[list[Encoded]] = []
        arrays: list[list[np.ndarray]] = [[] for _ in self.encoders]
        words: list[str] = []
        for examples in sets:
            read = [sequences_of(task, e) for e in examples]
            texts = list(dict.fromkeys(text for sequences in read for texts in sequences for text in texts))
            before = len(words)
            places = dict(zip(texts, before + np.cumsum([0, *map(len, texts)])))
            words += [word for text in texts for word in text]
            for parts, encoder, layers in zip(arrays, self.encoders, self.layers):
                parts.append(features(encoder, texts, layers, self.cache))
            found.append([])
            for number, (example, sequences) in enumerate(zip(examples, read)):
                if task.kind == "span":
                    asked = word_windows(example, sequences[0], places, number, self.window, task.span, labelled)
                    found[-1] += asked
                else:
                    found[-1].append(_encoded(task, example, sequences, places, labelled))
        distinct = {word: i for i, word in enumerate(dict.fromkeys(words))}
        known, given = look_up(distinct, self.vocabulary, self.given)
        numbers = np.array([distinct[word] for word in words], dtype=np.int64)
        return found, Store(arrays, numbers, spell(list(distinct)), known, given)


def sequences_of(task: Task, example: Example) -> list[tuple[Sentence, ...]]:
    """The texts of each sequence of an example, as words."""
    if task.kind == "tagging":
        if not example.words:
            raise UserError(f"{example.where}: a sentence has no words")
        return [(example.words,)]
    if task.kind == "coreference":
        ends = np.unique(word_rows(example, task.coreference)[:, END]) + 1
        return [((example.words or ())[a:b],) for a, b in pairwise([0, *ends.tolist()])]
    found = []
    for first, second in task._sequences(example):
        texts = tuple(words_of(text) for text in (first, second) if text is not None)
        if not all(texts):
            raise UserError(f"{example.where}: a text has no words")
        found.append(texts)
    return found


def _encoded(
    task: Task, example: Example, sequences: list[tuple[Sentence, ...]], places: Mapping[Sentence, int], labelled: bool
) -> Encoded:
    sizes = [[len(text) for text in texts] for texts in sequences]
    ids = np.concatenate([places[text] + np.arange(len(text)) for texts in sequences for text in texts])
    segments = np.concatenate([np.repeat(np.arange(len(each)), each) for each in sizes])
    if example.mark is not None:
        segments[example.mark[0]] = 1
    rows = np.arange(len(ids) if task.kind == "tagging" else 0)
    if task.kind == "coreference":
        rows = word_rows(example, task.coreference)
    target = task._target(example, {label: i for i, label in enumerate(task.labels)}) if labelled else None
    if labelled and target is None:
        raise UserError(f"{example.where}: there is no label")
    return Encoded(ids, segments, rows, target, tuple(map(sum, sizes)) if len(sizes) > 1 else ())


def spec_of(task: Task, reader: Reader, network: NetworkSpec, crf: CrfSpec | None, marked: bool = False) -> ModelSpec:
    """The model over what a reader reads."""
    usual: dict[str, Any] = dict(tagging="bilstm", coreference="bilstm", pair="esim", choice="esim", span="bidaf")
    name: Any = usual.get(task.kind, "biattentive") if network.name == "auto" else network.name
    _check_network(name, task.kind)
    if name == "linear" and not reader.encoders and reader.given is None:
        raise UserError("a linear model needs features to stand on: name a model, or word vectors")
    if network.where == "between" and not reader.encoders:
        raise UserError("there are no features to join between the layers: name a model")
    bottom = FeaturesSpec(
        reader.sources,
        network.where,
        len(reader.vocabulary) + 1,
        word_dim(network, reader.given),
        CharactersSpec(1, 50, 1, FILTERS, num_highway=0) if network.characters else None,
        network.dropout if name != "linear" else 0.1,
        MARK_DIM if marked else 0,
    )
    trunk = OverSpec(bottom, name, network.size, network.num_layers, network.dropout)
    by_token = task.kind in ("tagging", "span")
    head: HeadSpec = LabelHeadSpec(task.labels, "tokens" if by_token else "pooled", crf=crf)
    head = task.coreference if task.kind == "coreference" else head
    return ModelSpec(FAMILY, trunk, {task.head_name: head})


def _check_network(name: str, kind: Kind) -> None:
    """Whether a network can say what is asked of a text."""
    if name == "esim" and kind not in ("pair", "choice"):
        raise UserError(f"esim compares two texts, which {kind} has not: linear, bilstm or biattentive")
    if kind in ("tagging", "coreference") and name not in ("linear", "bilstm"):
        raise UserError(f"{name} says one thing of a text, and {kind} one of each word: linear or bilstm")
    if kind == "span" and name not in ("bidaf", "bilstm"):
        raise UserError(f"{name} cannot look for an answer in a text: bidaf or bilstm")
    if kind != "span" and name == "bidaf":
        raise UserError(f"bidaf finds an answer in a text, which {kind} does not ask for")


def finetune_over(
    source: Path | Sequence[Path] | None,
    kind: Kind,
    train_examples: Sequence[Example],
    dev_examples: Sequence[Example],
    out: Path | None,
    settings: FinetuneSpec = USUAL,
    *,
    seeds: int = 1,
    first_seed: int = 0,
    primary: str = "",
    data_set: str = "",
    extra: Extra | None = None,
    others: Mapping[str, Sequence[Example]] | None = None,
    cache: Path | None = None,
    keep: bool = False,
    words: Path | None = None,
) -> dict[str, Any]:
    """As `finetune`, with the model at `source` frozen and a network over its features; without one, over words alone.

    Of several models the features stand side by side. `words` is where the network's own word vectors begin: a file or
    a model folder. The results say also how a mix weighs the layers.
    """
    settings = settings.check()
    network = settings.network or NetworkSpec()
    check_run(kind, out, settings, seeds)
    task = Task.of(kind, train_examples, settings.both_orders, settings.span, coreference=settings.coreference)
    paths = [] if source is None else [Path(source)] if isinstance(source, str | Path) else list(source)
    given = Given.open(words) if words is not None else None
    vocabulary: dict[str, int] = {}
    if word_dim(network, given):
        read = (word for e in train_examples for texts in sequences_of(task, e) for text in texts for word in text)
        vocabulary = vocabulary_of(read, given, network.freeze_words)
    choices = layers_of(network, len(paths))
    reader = Reader(tuple(map(Encoder.open, paths)), choices, vocabulary, cache, settings.max_len or WORDS, given)
    spec = spec_of(task, reader, network, crf_of(settings, train_examples), any(e.mark for e in train_examples))
    sets = [trainable(train_examples), dev_examples, *(others or {}).values()]
    encoded, store = reader.lay(task, sets, labelled=True)
    train, dev, *rest = (Part(examples, laid) for examples, laid in zip(sets, encoded))

    def build(seed: int) -> Model:
        model = spec.build(seed)
        assert isinstance(model.trunk, Over)
        model.trunk.features.store = store
        if given is not None and model.trunk.features.words is not None:
            begin(model.trunk.features.words.weight, vocabulary, given)
        return model

    def save(path: Path, model: Model, notes: dict[str, Any]) -> None:
        weights = mix_weights(model)
        if weights and "results" in notes:
            notes["results"] |= {"mix": weights}
        read = [{"model": str(e.path), "hash": e.hash, "layers": n} for e, n in zip(reader.encoders, reader.layers)]
        begun = {"words": {"vectors": str(given.path), "hash": given.hash}} if given else {}
        write_over(path, model, vocabulary, notes | {"features": {"sources": read} | begun})

    about: dict[str, Any] = {"data": data_set} if data_set else {}
    named = " + ".join([*map(str, paths), *([str(words)] if words else [])])
    about |= {"model": named or "words alone", "features": network.to_json(), "from_scratch": False}
    if given is not None:
        about["words"] = {"vectors": str(words), "vocabulary": len(vocabulary), "frozen": network.freeze_words}
    if kind == "span":
        about["wrong_offsets"] = {"train": wrong_offsets(train_examples), "dev": wrong_offsets(dev_examples)}
    chosen = range(first_seed, first_seed + seeds)
    penalised = network.penalty > 0 and any(each.join == "mix" for each in reader.sources)
    none = torch.zeros(0, dtype=torch.long)
    work = Work(
        *(task, train, dev, settings, primary, extra, dict(zip(others or {}, rest))),
        terms=with_penalty(network.penalty) if penalised else None,
        further={TERM: Targets(none, none, 1)} if penalised else {},
        timed=False,
    )
    return run_seeds(work, build, save, out, chosen, about, keep=keep)


def word_dim(network: NetworkSpec, given: Given | None) -> int:
    """How long a network's own vectors of words are."""
    if given is not None and network.word_dim not in (None, given.dim):
        raise UserError(
            f"network.word_dim is {network.word_dim}, but the vectors of {given.path} have {given.dim} numbers"
        )
    return given.dim if given is not None else 100 if network.word_dim is None else network.word_dim


def layers_of(network: NetworkSpec, number: int) -> tuple[str, ...]:
    """The choice of layers for each of so many sources of features."""
    choices = [choice.strip() for choice in network.layers.split(",")]
    if len(choices) not in (1, number):
        raise UserError(
            f"{len(choices)} choices of layers ({network.layers}) for {number} models: one for each, or one for all"
        )
    return tuple(choices * number if len(choices) == 1 else choices)


def with_penalty(rate: float) -> Callable[[Model, Batch], dict[str, Tensor]]:
    """The usual losses, and λ‖s‖² as a term of its own: once a step, whatever the number of micro-batches."""

    def terms(model: Model, batch: Batch) -> dict[str, Tensor]:
        asked = {name: to for name, to in batch.targets.items() if name != TERM}
        found = losses(model, dataclasses.replace(batch, targets=asked))
        assert isinstance(model.trunk, Over)
        return found | {TERM: rate * model.trunk.features.penalty()}

    return terms


def mix_weights(model: Model) -> dict[str, dict[str, Any]]:
    """What a task has learnt of layers: γ and the share of each, from the lowest up."""
    assert isinstance(model.trunk, Over)
    mixes: Any = model.trunk.features.mixes.items()
    return {
        place: {"gamma": round(mix.gamma.item(), 4), "shares": [round(s, 4) for s in mix.scores.softmax(0).tolist()]}
        for place, mix in mixes
        if len(mix.scores) > 1
    }


def write_over(path: Path, model: Model, vocabulary: dict[str, int], notes: dict[str, Any]) -> None:
    """The folder of a task model: its weights, its words, and which encoder it stands on."""
    with whole_folder(path) as folder:
        write_tensors(folder / "model.safetensors", model.state_dict())
        write_json(folder / "words.json", list(vocabulary))
        write_json(folder / "polyseme.json", {"format": 1, "spec": model.spec.to_json(), "notes": notes})


def is_over(path: Path) -> bool:
    """Whether a folder holds a task model over features."""
    about = path / "polyseme.json"
    if not about.is_file() or (path / "config.json").exists():
        return False
    found = read_json(about)
    return isinstance(found, dict) and found.get("spec", {}).get("family") == FAMILY


@dataclass(frozen=True, eq=False)
class OverFolder:
    """An opened task model over features."""

    model: Model
    task: Task
    reader: Reader
    notes: dict[str, Any]

    def predict(self, examples: Sequence[Example], labelled: bool = False) -> list[Prediction]:
        (encoded,), store = self.reader.lay(self.task, (examples,), labelled)
        assert isinstance(self.model.trunk, Over)
        self.model.trunk.features.store = store
        return predictions(self.model, self.task, examples, encoded)

    def evaluate(self, examples: Sequence[Example], extra: Extra | None = None) -> dict[str, float]:
        return measure(self.task, examples, self.predict(examples, labelled=True), extra)


def open_over(path: Path, cache: Path | None = None) -> OverFolder:
    """The model and the encoder it was trained over, which must not have changed."""
    about = read_json(path / "polyseme.json")
    spec, notes = ModelSpec.from_json(about.get("spec"), "spec"), about.get("notes", {})
    read = notes.get("features", {})
    encoders = tuple(Encoder.open(source["model"]) for source in read.get("sources", ()))
    given = Given.open(read["words"]["vectors"]) if "words" in read else None
    for each, hashed in zip((*encoders, given), (*read.get("sources", ()), read.get("words"))):
        if each is not None and each.hash != hashed.get("hash"):
            raise UserError(f"{each.path} is not the model that {path} was trained over: its hash differs")
    model = spec.build(0)
    try:
        model.load_state_dict(load_file(path / "model.safetensors"))
    except Exception as error:
        raise UserError(f"{path}/model.safetensors does not fit its spec ({str(error).splitlines()[0][:80]})") from None
    vocabulary = {word: i for i, word in enumerate(read_json(path / "words.json"), 1)}
    task = Task.from_model(model, notes)
    window = notes.get("settings", {}).get("max_len") or WORDS
    layers = tuple(source["layers"] for source in read.get("sources", ()))
    return OverFolder(model.eval(), task, Reader(encoders, layers, vocabulary, cache, window, given), notes)


def answer_over(path: Path, context: str, question: str) -> SpanAnswer:
    """The stretch of the context that answers the question, as `LanguageModel.answer` finds it."""
    opened = open_over(path)
    if opened.task.kind != "span":
        raise UserError(f"{path} cannot find answers in a text: it was trained for {opened.task.kind}")
    (found,) = opened.predict(as_examples([(context, question)], opened.model))
    assert found.span is not None
    return found.span
