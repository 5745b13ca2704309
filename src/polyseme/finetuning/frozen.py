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

from polyseme.errors import ConfigError, DataError, ModelError, UnsupportedError
from polyseme.evaluation.predict import MetricsFn, evaluate_predictions, predict_encoded, to_examples
from polyseme.finetuning.feature_extraction import (
    LAYER_SELECTIONS,
    FeatureEncoder,
    FeatureNetworkSettings,
    Sentence,
    extract_features,
    split_words,
)
from polyseme.finetuning.finetune import FinetuneConfig, build_crf_config, validate_run
from polyseme.finetuning.runner import Experiment, Split, run_seeds
from polyseme.finetuning.word_embeddings import PretrainedVectors, build_vocabulary, init_embeddings, resolve_words
from polyseme.io.atomic import atomic_directory, write_tensors
from polyseme.io.json import read_json, write_json
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.coreference import SENTENCE_END
from polyseme.nn.heads.crf import CRFConfig
from polyseme.nn.layers.char_cnn import CharCNNConfig, words_to_char_ids
from polyseme.nn.layers.frozen_features import FeatureSourceConfig, FeatureStore, FrozenFeaturesConfig
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.trunks.feature_network import FeatureNetwork, FeatureNetworkConfig
from polyseme.objectives.batch import Batch, Targets
from polyseme.objectives.losses import compute_losses
from polyseme.tasks.coreference import word_rows
from polyseme.tasks.encoded import EncodedExample
from polyseme.tasks.examples import Example, TaskType
from polyseme.tasks.readers.squad import count_bad_offsets, with_valid_answers
from polyseme.tasks.spans import SpanAnswer
from polyseme.tasks.task import Prediction, Task
from polyseme.tasks.word_windows import MAX_CONTEXT_WORDS, word_level_windows
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.schedule import ScheduleConfig

FEATURE_FAMILY = "features"  # what stands in the spec of such a model: it is no architecture
CHAR_CNN_FILTERS = ((2, 25), (3, 50), (4, 25))
INDICATOR_DIM = 100  # He et al. 2017, §3.1
MIX_PENALTY = "mix_penalty"  # the penalty on the weights of a mix
FEATURE_DEFAULTS = FinetuneConfig(
    epochs=15.0,
    batch_size=16,
    optimizer=OptimizerConfig(lr=2e-3, eps=1e-8, weight_decay=0.0, max_grad_norm=5.0),
    schedule=ScheduleConfig("linear", warmup=0),
    precision="float32",
    network=FeatureNetworkSettings(),
)


@dataclass(frozen=True, eq=False)
class FeatureReader:
    """Encoders, if there are any, with a choice of layers each; the words a network knows; where features are kept."""

    encoders: tuple[FeatureEncoder, ...]
    layers: tuple[str, ...]
    vocabulary: dict[str, int]
    cache_dir: Path | None
    max_context_words: int = MAX_CONTEXT_WORDS  # of a text in which an answer is sought
    pretrained: PretrainedVectors | None = None

    @property
    def sources(self) -> tuple[FeatureSourceConfig, ...]:
        """What is stored of each encoder."""
        configs = []
        for encoder, layers in zip(self.encoders, self.layers):
            layer_indices, combination = encoder.resolve_layers(layers), LAYER_SELECTIONS[layers][1]
            num_layers, dim = 1 if combination == "sum" else len(layer_indices), encoder.layer_dims[layer_indices[0]]
            configs.append(FeatureSourceConfig(num_layers, dim, "side" if combination == "side" else "mix"))
        return tuple(configs)

    def encode(
        self, task: Task, sets: Sequence[Sequence[Example]], use_labels: bool
    ) -> tuple[list[list[EncodedExample]], FeatureStore]:
        """Sets of examples as places of one store: features are read and kept for each set by itself, and of a text
        that stands in it several times once."""
        encoded_sets: list[list[EncodedExample]] = []
        arrays: list[list[np.ndarray]] = [[] for _ in self.encoders]
        words: list[str] = []
        for examples in sets:
            all_sequences = [split_sequences(task, e) for e in examples]
            texts = list(dict.fromkeys(text for sequences in all_sequences for texts in sequences for text in texts))
            offset = len(words)
            text_offsets = dict(zip(texts, offset + np.cumsum([0, *map(len, texts)])))
            words += [word for text in texts for word in text]
            for parts, encoder, layers in zip(arrays, self.encoders, self.layers):
                parts.append(extract_features(encoder, texts, layers, self.cache_dir))
            encoded_sets.append([])
            for example_index, (example, sequences) in enumerate(zip(examples, all_sequences)):
                if task.task_type == "span":
                    windows = word_level_windows(
                        example,
                        sequences[0],
                        text_offsets,
                        example_index,
                        self.max_context_words,
                        task.span,
                        use_labels,
                    )
                    encoded_sets[-1] += windows
                else:
                    encoded_sets[-1].append(_encode_example(task, example, sequences, text_offsets, use_labels))
        distinct = {word: i for i, word in enumerate(dict.fromkeys(words))}
        word_ids, pretrained_rows = resolve_words(distinct, self.vocabulary, self.pretrained)
        word_numbers = np.array([distinct[word] for word in words], dtype=np.int64)
        return encoded_sets, FeatureStore(
            arrays, word_numbers, words_to_char_ids(list(distinct)), word_ids, pretrained_rows
        )


def split_sequences(task: Task, example: Example) -> list[tuple[Sentence, ...]]:
    """The texts of each sequence of an example, as words."""
    if task.task_type == "tagging":
        if not example.words:
            raise DataError(f"{example.location}: a sentence has no words")
        return [(example.words,)]
    if task.task_type == "coreference":
        ends = np.unique(word_rows(example, task.coreference)[:, SENTENCE_END]) + 1
        return [((example.words or ())[a:b],) for a, b in pairwise([0, *ends.tolist()])]
    sequences = []
    for first, second in task._sequences(example):
        texts = tuple(split_words(text) for text in (first, second) if text is not None)
        if not all(texts):
            raise DataError(f"{example.location}: a text has no words")
        sequences.append(texts)
    return sequences


def _encode_example(
    task: Task,
    example: Example,
    sequences: list[tuple[Sentence, ...]],
    text_offsets: Mapping[Sentence, int],
    use_labels: bool,
) -> EncodedExample:
    sizes = [[len(text) for text in texts] for texts in sequences]
    ids = np.concatenate([text_offsets[text] + np.arange(len(text)) for texts in sequences for text in texts])
    segments = np.concatenate([np.repeat(np.arange(len(text_sizes)), text_sizes) for text_sizes in sizes])
    if example.predicate is not None:
        segments[example.predicate[0]] = 1
    positions = np.arange(len(ids) if task.task_type == "tagging" else 0)
    if task.task_type == "coreference":
        positions = word_rows(example, task.coreference)
    target = task._encode_target(example, {label: i for i, label in enumerate(task.labels)}) if use_labels else None
    if use_labels and target is None:
        raise DataError(f"{example.location}: there is no label")
    return EncodedExample(ids, segments, positions, target, tuple(map(sum, sizes)) if len(sizes) > 1 else ())


def build_model_config(
    task: Task,
    reader: FeatureReader,
    network: FeatureNetworkSettings,
    crf: CRFConfig | None,
    has_predicate: bool = False,
) -> ModelConfig:
    """The model over what a reader reads."""
    default_networks: dict[str, Any] = dict(
        tagging="bilstm", coreference="bilstm", pair="esim", choice="esim", span="bidaf"
    )
    name: Any = default_networks.get(task.task_type, "biattentive") if network.name == "auto" else network.name
    _check_network(name, task.task_type)
    if name == "linear" and not reader.encoders and reader.pretrained is None:
        raise ConfigError("a linear model needs features to stand on: name a model, or word vectors")
    if network.join_at == "between" and not reader.encoders:
        raise ConfigError("there are no features to join between the layers: name a model")
    features_config = FrozenFeaturesConfig(
        reader.sources,
        network.join_at,
        len(reader.vocabulary) + 1,
        resolve_word_dim(network, reader.pretrained),
        CharCNNConfig(1, 50, 1, CHAR_CNN_FILTERS, num_highway=0) if network.use_char_cnn else None,
        network.dropout if name != "linear" else 0.1,
        INDICATOR_DIM if has_predicate else 0,
    )
    trunk = FeatureNetworkConfig(features_config, name, network.lstm_dim, network.num_layers, network.dropout)
    by_token = task.task_type in ("tagging", "span")
    head: HeadConfig = ClassificationHeadConfig(task.labels, "tokens" if by_token else "pooled", crf=crf)
    head = task.coreference if task.task_type == "coreference" else head
    return ModelConfig(FEATURE_FAMILY, trunk, {task.head_name: head})


def _check_network(name: str, task_type: TaskType) -> None:
    """Whether a network can say what is asked of a text."""
    if name == "esim" and task_type not in ("pair", "choice"):
        raise ConfigError(f"esim compares two texts, which {task_type} has not: linear, bilstm or biattentive")
    if task_type in ("tagging", "coreference") and name not in ("linear", "bilstm"):
        raise ConfigError(f"{name} says one thing of a text, and {task_type} one of each word: linear or bilstm")
    if task_type == "span" and name not in ("bidaf", "bilstm"):
        raise ConfigError(f"{name} cannot look for an answer in a text: bidaf or bilstm")
    if task_type != "span" and name == "bidaf":
        raise ConfigError(f"bidaf finds an answer in a text, which {task_type} does not ask for")


def train_on_features(
    encoders: Path | Sequence[Path] | None,
    task_type: TaskType,
    train_examples: Sequence[Example],
    dev_examples: Sequence[Example],
    out: Path | None,
    settings: FinetuneConfig = FEATURE_DEFAULTS,
    *,
    seeds: int = 1,
    first_seed: int = 0,
    primary_metric: str = "",
    dataset_name: str = "",
    extra_metrics: MetricsFn | None = None,
    extra_eval: Mapping[str, Sequence[Example]] | None = None,
    cache_dir: Path | None = None,
    keep_seeds: bool = False,
    word_vectors: Path | None = None,
) -> dict[str, Any]:
    """As `finetune`, with the model at `encoders` frozen and a network over its features; without one, over words
    alone.

    Of several models the features stand side by side. `word_vectors` is where the network's own word vectors begin: a
    file or a model folder. The results say also how a mix weighs the layers.
    """
    settings = settings.validate()
    network = settings.network or FeatureNetworkSettings()
    validate_run(task_type, out, settings, seeds)
    task = Task.from_examples(
        task_type, train_examples, settings.symmetric_pairs, settings.span, coreference=settings.coreference
    )
    paths = [] if encoders is None else [Path(encoders)] if isinstance(encoders, str | Path) else list(encoders)
    pretrained = PretrainedVectors.load(word_vectors) if word_vectors is not None else None
    vocabulary: dict[str, int] = {}
    if resolve_word_dim(network, pretrained):
        training_words = (
            word for e in train_examples for texts in split_sequences(task, e) for text in texts for word in text
        )
        vocabulary = build_vocabulary(training_words, pretrained, network.freeze_word_embeddings)
    choices = resolve_layer_selections(network, len(paths))
    reader = FeatureReader(
        tuple(map(FeatureEncoder.load, paths)),
        choices,
        vocabulary,
        cache_dir,
        settings.max_len or MAX_CONTEXT_WORDS,
        pretrained,
    )
    config = build_model_config(
        task, reader, network, build_crf_config(settings, train_examples), any(e.predicate for e in train_examples)
    )
    sets = [with_valid_answers(train_examples), dev_examples, *(extra_eval or {}).values()]
    encoded, store = reader.encode(task, sets, use_labels=True)
    train, dev, *extra_splits = (Split(examples, encoded_examples) for examples, encoded_examples in zip(sets, encoded))

    def build(seed: int) -> Model:
        model = config.build(seed)
        assert isinstance(model.trunk, FeatureNetwork)
        model.trunk.features.store = store
        if pretrained is not None and model.trunk.features.word_embeddings is not None:
            init_embeddings(model.trunk.features.word_embeddings.weight, vocabulary, pretrained)
        return model

    def save(path: Path, model: Model, metadata: dict[str, Any]) -> None:
        weights = mix_weights(model)
        if weights and "results" in metadata:
            metadata["results"] |= {"mix_weights": weights}
        encoder_info = [
            {"model": str(e.path), "hash": e.hash, "layers": n} for e, n in zip(reader.encoders, reader.layers)
        ]
        vectors_info = {"words": {"vectors": str(pretrained.path), "hash": pretrained.hash}} if pretrained else {}
        save_feature_model(path, model, vocabulary, metadata | {"features": {"sources": encoder_info} | vectors_info})

    run_info: dict[str, Any] = {"data": dataset_name} if dataset_name else {}
    model_name = " + ".join([*map(str, paths), *([str(word_vectors)] if word_vectors else [])])
    run_info |= {"model": model_name or "words alone", "features": network.to_json(), "from_scratch": False}
    if pretrained is not None:
        run_info["words"] = {
            "vectors": str(word_vectors),
            "vocabulary": len(vocabulary),
            "frozen": network.freeze_word_embeddings,
        }
    if task_type == "span":
        run_info["bad_offsets"] = {"train": count_bad_offsets(train_examples), "dev": count_bad_offsets(dev_examples)}
    seed_range = range(first_seed, first_seed + seeds)
    has_mix_penalty = network.mix_penalty > 0 and any(each.join == "mix" for each in reader.sources)
    no_rows = torch.zeros(0, dtype=torch.long)
    experiment = Experiment(
        *(task, train, dev, settings, primary_metric, extra_metrics, dict(zip(extra_eval or {}, extra_splits))),
        loss_fn=with_mix_penalty(network.mix_penalty) if has_mix_penalty else None,
        extra_targets={MIX_PENALTY: Targets(no_rows, no_rows, 1)} if has_mix_penalty else {},
        measure_latency=False,
    )
    return run_seeds(experiment, build, save, out, seed_range, run_info, keep_seeds=keep_seeds)


def resolve_word_dim(network: FeatureNetworkSettings, pretrained: PretrainedVectors | None) -> int:
    """How long a network's own vectors of words are."""
    if pretrained is not None and network.word_dim not in (None, pretrained.dim):
        raise ConfigError(
            f"network.word_dim is {network.word_dim}, "
            f"but the vectors of {pretrained.path} have {pretrained.dim} numbers"
        )
    return pretrained.dim if pretrained is not None else 100 if network.word_dim is None else network.word_dim


def resolve_layer_selections(network: FeatureNetworkSettings, num_encoders: int) -> tuple[str, ...]:
    """The choice of layers for each of so many sources of features."""
    choices = [choice.strip() for choice in network.layers.split(",")]
    if len(choices) not in (1, num_encoders):
        raise ConfigError(
            f"{len(choices)} choices of layers ({network.layers}) for {num_encoders} models: "
            "one for each, or one for all"
        )
    return tuple(choices * num_encoders if len(choices) == 1 else choices)


def with_mix_penalty(weight: float) -> Callable[[Model, Batch], dict[str, Tensor]]:
    """The usual losses, and λ‖s‖² as a term of its own: once a step, whatever the number of micro-batches."""

    def terms(model: Model, batch: Batch) -> dict[str, Tensor]:
        task_targets = {name: target for name, target in batch.targets.items() if name != MIX_PENALTY}
        loss_terms = compute_losses(model, dataclasses.replace(batch, targets=task_targets))
        assert isinstance(model.trunk, FeatureNetwork)
        return loss_terms | {MIX_PENALTY: weight * model.trunk.features.mix_penalty()}

    return terms


def mix_weights(model: Model) -> dict[str, dict[str, Any]]:
    """What a task has learnt of layers: γ and the share of each, from the lowest up."""
    assert isinstance(model.trunk, FeatureNetwork)
    mixes: Any = model.trunk.features.scalar_mixes.items()
    return {
        place: {"gamma": round(mix.gamma.item(), 4), "weights": [round(s, 4) for s in mix.scores.softmax(0).tolist()]}
        for place, mix in mixes
        if len(mix.scores) > 1
    }


def save_feature_model(path: Path, model: Model, vocabulary: dict[str, int], metadata: dict[str, Any]) -> None:
    """The folder of a task model: its weights, its words, and which encoder it stands on."""
    with atomic_directory(path) as folder:
        write_tensors(folder / "model.safetensors", model.state_dict())
        write_json(folder / "words.json", list(vocabulary))
        write_json(folder / "polyseme.json", {"format": 1, "config": model.config.to_json(), "metadata": metadata})


def is_feature_model(path: Path) -> bool:
    """Whether a folder holds a task model over features."""
    config_path = path / "polyseme.json"
    if not config_path.is_file() or (path / "config.json").exists():
        return False
    content = read_json(config_path)
    return isinstance(content, dict) and content.get("config", {}).get("family") == FEATURE_FAMILY


@dataclass(frozen=True, eq=False)
class FeatureModelFolder:
    """An opened task model over features."""

    model: Model
    task: Task
    reader: FeatureReader
    metadata: dict[str, Any]

    def predict(self, examples: Sequence[Example], use_labels: bool = False) -> list[Prediction]:
        (encoded,), store = self.reader.encode(self.task, (examples,), use_labels)
        assert isinstance(self.model.trunk, FeatureNetwork)
        self.model.trunk.features.store = store
        return predict_encoded(self.model, self.task, examples, encoded)

    def evaluate(self, examples: Sequence[Example], extra_metrics: MetricsFn | None = None) -> dict[str, float]:
        return evaluate_predictions(self.task, examples, self.predict(examples, use_labels=True), extra_metrics)


def load_feature_model(path: Path, cache_dir: Path | None = None) -> FeatureModelFolder:
    """The model and the encoder it was trained over, which must not have changed."""
    content = read_json(path / "polyseme.json")
    config, metadata = ModelConfig.from_json(content.get("config"), "config"), content.get("metadata", {})
    feature_info = metadata.get("features", {})
    encoders = tuple(FeatureEncoder.load(source["model"]) for source in feature_info.get("sources", ()))
    pretrained = PretrainedVectors.load(feature_info["words"]["vectors"]) if "words" in feature_info else None
    for each, recorded in zip((*encoders, pretrained), (*feature_info.get("sources", ()), feature_info.get("words"))):
        if each is not None and each.hash != recorded.get("hash"):
            raise ModelError(f"{each.path} is not the model that {path} was trained over: its hash differs")
    model = config.build(0)
    try:
        model.load_state_dict(load_file(path / "model.safetensors"))
    except Exception as error:
        raise ModelError(
            f"{path}/model.safetensors does not fit its spec ({str(error).splitlines()[0][:80]})"
        ) from None
    vocabulary = {word: i for i, word in enumerate(read_json(path / "words.json"), 1)}
    task = Task.from_model(model, metadata)
    max_context_words = metadata.get("settings", {}).get("max_len") or MAX_CONTEXT_WORDS
    layers = tuple(source["layers"] for source in feature_info.get("sources", ()))
    return FeatureModelFolder(
        model.eval(),
        task,
        FeatureReader(encoders, layers, vocabulary, cache_dir, max_context_words, pretrained),
        metadata,
    )


def answer_over(path: Path, context: str, question: str) -> SpanAnswer:
    """The stretch of the context that answers the question, as `LanguageModel.answer` finds it."""
    folder = load_feature_model(path)
    if folder.task.task_type != "span":
        raise UnsupportedError(f"{path} cannot find answers in a text: it was trained for {folder.task.task_type}")
    (prediction,) = folder.predict(to_examples([(context, question)], folder.model))
    assert prediction.span is not None
    return prediction.span
