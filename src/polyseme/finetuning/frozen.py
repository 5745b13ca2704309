"""Task models over frozen features: the encoder reads every word once, and a small network learns the task."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from polyseme.errors import ConfigError, ModelError, UnsupportedError
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import Experiment, RunOptions, Split, TaskData, TaskRun
from polyseme.finetuning.feature_extraction import (
    LAYER_SELECTIONS,
    FeatureEncoder,
    FeatureNetworkSettings,
    extract_features,
)
from polyseme.finetuning.finetune import check_run
from polyseme.finetuning.runner import run_experiment
from polyseme.finetuning.word_embeddings import PretrainedVectors, build_vocabulary, init_embeddings, resolve_words
from polyseme.inference.prediction import predict_encoded
from polyseme.io.atomic import atomic_directory, write_tensors
from polyseme.io.json import read_json, write_json
from polyseme.nn.layers.char_cnn import CharCNNConfig, words_to_char_ids
from polyseme.nn.layers.frozen_features import FeatureSourceConfig, FeatureStore, FrozenFeaturesConfig
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.trunks.feature_network import FeatureNetwork, FeatureNetworkConfig
from polyseme.objectives.batch import Batch, Targets
from polyseme.objectives.losses import compute_losses
from polyseme.tasks import load_task
from polyseme.tasks.base import MetricsFn, TaskConfig
from polyseme.tasks.encoded import EncodedExample
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.schedule import ScheduleConfig

FEATURE_FAMILY = "features"  # what stands in the spec of such a model: it is no architecture
MAX_CONTEXT_WORDS = 400  # of a long text at a time: as many as Seo et al. 2017 learn from
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
        self, task: TaskConfig, sets: Sequence[Sequence[Any]], use_labels: bool
    ) -> tuple[list[list[EncodedExample]], FeatureStore]:
        """Encode sets of examples as positions of one store.

        Features are read and cached for each set by itself, and once for a text that occurs in it several times.
        """
        encoded_sets: list[list[EncodedExample]] = []
        arrays: list[list[np.ndarray]] = [[] for _ in self.encoders]
        words: list[str] = []
        for examples in sets:
            texts = list(dict.fromkeys(text for e in examples for texts in task.word_sequences(e) for text in texts))
            offsets = dict(zip(texts, len(words) + np.cumsum([0, *map(len, texts)])))
            words += [word for text in texts for word in text]
            for parts, encoder, layers in zip(arrays, self.encoders, self.layers):
                parts.append(extract_features(encoder, texts, layers, self.cache_dir))
            max_words = self.max_context_words
            encoded_sets.append(
                [
                    encoded
                    for index, example in enumerate(examples)
                    for encoded in task.encode_features(example, index, offsets, max_words, use_labels)
                ]
            )
        distinct = {word: i for i, word in enumerate(dict.fromkeys(words))}
        word_ids, pretrained_rows = resolve_words(distinct, self.vocabulary, self.pretrained)
        word_numbers = np.array([distinct[word] for word in words], dtype=np.int64)
        char_ids = words_to_char_ids(list(distinct))
        return encoded_sets, FeatureStore(arrays, word_numbers, char_ids, word_ids, pretrained_rows)


def build_model_config(task: TaskConfig, reader: FeatureReader, network: FeatureNetworkSettings) -> ModelConfig:
    """Return the model of a task over what a reader reads."""
    name: Any = task.feature_networks[0] if network.name == "auto" else network.name
    if name not in task.feature_networks:
        known = ", ".join(task.feature_networks)
        raise ConfigError(f"the network {name} does not fit {task.task_type}, which is learned by {known}")
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
        INDICATOR_DIM if task.has_word_marks else 0,
    )
    trunk = FeatureNetworkConfig(features_config, name, network.lstm_dim, network.num_layers, network.dropout)
    return ModelConfig(FEATURE_FAMILY, trunk, {task.head_name: task.feature_head()})


@dataclass(frozen=True, eq=False)
class FeatureInputs:
    """What a network over features reads: frozen encoders, and the vectors that its own word embeddings begin with."""

    encoders: Sequence[Path] = ()
    word_vectors: Path | None = None
    cache_dir: Path | None = None

    @property
    def label(self) -> str:
        paths = [*self.encoders, *([self.word_vectors] if self.word_vectors else [])]
        return " + ".join(map(str, paths)) or "words alone"


def train_on_features(
    inputs: FeatureInputs,
    data: TaskData,
    out: Path | None,
    config: FinetuneConfig = FEATURE_DEFAULTS,
    options: RunOptions = RunOptions(),
) -> dict[str, Any]:
    """Train a network over frozen features, or over words alone, and evaluate it as `finetune` does.

    Of several encoders the features are concatenated. The results also say how a mix weighs the layers.
    """
    config = config.validate()
    network = config.network or FeatureNetworkSettings()
    check_run([data], out)
    task = data.task.fit(data.train)
    reader = _build_reader(inputs, task, data.train, network, config.max_len or MAX_CONTEXT_WORDS)
    model_config = build_model_config(task, reader, network)
    sets = [task.trainable(data.train), data.dev, *data.extra_eval.values()]
    encoded, store = reader.encode(task, sets, use_labels=True)
    train, dev, *extra_splits = (Split(examples, each) for examples, each in zip(sets, encoded))

    def build(seed: int) -> Model:
        model = model_config.build(seed)
        assert isinstance(model.trunk, FeatureNetwork)
        model.trunk.features.store = store
        if reader.pretrained is not None and model.trunk.features.word_embeddings is not None:
            init_embeddings(model.trunk.features.word_embeddings.weight, reader.vocabulary, reader.pretrained)
        return model

    def save(path: Path, model: Model, metadata: dict[str, Any]) -> None:
        save_feature_model(path, model, reader, metadata)

    has_mix_penalty = network.mix_penalty > 0 and any(each.join == "mix" for each in reader.sources)
    no_rows = torch.zeros(0, dtype=torch.long)
    experiment = Experiment(
        (TaskRun(task, data, train, dev, dict(zip(data.extra_eval, extra_splits))),),
        config,
        build,
        save,
        _run_info(inputs, data, reader, network),
        loss_fn=with_mix_penalty(network.mix_penalty) if has_mix_penalty else None,
        extra_targets={MIX_PENALTY: Targets(no_rows, no_rows, 1)} if has_mix_penalty else {},
        describe_model=lambda model: {"mix_weights": weights} if (weights := mix_weights(model)) else {},
        measures_latency=False,
    )
    return run_experiment(experiment, out, options)


def _build_reader(
    inputs: FeatureInputs, task: TaskConfig, train: Sequence[Any], network: FeatureNetworkSettings, max_words: int
) -> FeatureReader:
    pretrained = PretrainedVectors.load(inputs.word_vectors) if inputs.word_vectors is not None else None
    vocabulary: dict[str, int] = {}
    if resolve_word_dim(network, pretrained):
        words = (word for e in train for texts in task.word_sequences(e) for text in texts for word in text)
        vocabulary = build_vocabulary(words, pretrained, network.freeze_word_embeddings)
    layers = resolve_layer_selections(network, len(inputs.encoders))
    encoders = tuple(map(FeatureEncoder.load, inputs.encoders))
    return FeatureReader(encoders, layers, vocabulary, inputs.cache_dir, max_words, pretrained)


def _run_info(
    inputs: FeatureInputs, data: TaskData, reader: FeatureReader, network: FeatureNetworkSettings
) -> dict[str, Any]:
    run_info: dict[str, Any] = {"data": data.dataset_name} if data.dataset_name else {}
    run_info |= {"model": inputs.label, "features": network.to_json(), "from_scratch": False}
    if reader.pretrained is not None:
        run_info["words"] = {
            "vectors": str(inputs.word_vectors),
            "vocabulary": len(reader.vocabulary),
            "frozen": network.freeze_word_embeddings,
        }
    return run_info


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


def save_feature_model(path: Path, model: Model, reader: FeatureReader, metadata: dict[str, Any]) -> None:
    """Write the folder of a task model: its weights, its words, and which encoders it reads."""
    sources = [{"model": str(e.path), "hash": e.hash, "layers": n} for e, n in zip(reader.encoders, reader.layers)]
    features: dict[str, Any] = {"sources": sources}
    if reader.pretrained is not None:
        features["words"] = {"vectors": str(reader.pretrained.path), "hash": reader.pretrained.hash}
    content = {"format": 1, "config": model.config.to_json(), "metadata": metadata | {"features": features}}
    with atomic_directory(path) as folder:
        write_tensors(folder / "model.safetensors", model.state_dict())
        write_json(folder / "words.json", list(reader.vocabulary))
        write_json(folder / "polyseme.json", content)


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
    task: TaskConfig
    reader: FeatureReader
    metadata: dict[str, Any]

    def predict(self, examples: Sequence[Any], use_labels: bool = False) -> list[Any]:
        (encoded,), store = self.reader.encode(self.task, (examples,), use_labels)
        assert isinstance(self.model.trunk, FeatureNetwork)
        self.model.trunk.features.store = store
        return predict_encoded(self.model, self.task, examples, encoded)

    def evaluate(self, examples: Sequence[Any], extra_metrics: MetricsFn | None = None) -> dict[str, float]:
        return self.task.metrics(examples, self.predict(examples, use_labels=True), extra_metrics)


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
            f"{path}/model.safetensors does not fit its config ({str(error).splitlines()[0][:80]})"
        ) from None
    vocabulary = {word: i for i, word in enumerate(read_json(path / "words.json"), 1)}
    task = load_task(metadata, config)
    max_context_words = metadata.get("settings", {}).get("max_len") or MAX_CONTEXT_WORDS
    layers = tuple(source["layers"] for source in feature_info.get("sources", ()))
    return FeatureModelFolder(
        model.eval(),
        task,
        FeatureReader(encoders, layers, vocabulary, cache_dir, max_context_words, pretrained),
        metadata,
    )


def answer_over(path: Path, context: str, question: str) -> Any:
    """Return the span of the context that answers the question, as `LanguageModel.answer` does."""
    folder = load_feature_model(path)
    if not folder.task.answers_questions:
        raise UnsupportedError(f"{path} cannot find answers in a text: it was trained for {folder.task.task_type}")
    return folder.predict(folder.task.read([(context, question)], needs_labels=False))[0]
