"""Training a small task network over frozen features, which are computed once."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyseme.errors import ConfigError, DataError
from polyseme.finetuning.config import CrossViewSettings, FeatureNetworkSettings, FinetuneConfig
from polyseme.finetuning.cross_view import CrossView, UnlabeledText, add_view_heads
from polyseme.finetuning.experiment import Experiment, RunOptions, Split, TaskData, TaskRun, check_names
from polyseme.finetuning.resume import UnfinishedRun, check_folder, describe_run
from polyseme.finetuning.runner import run_experiment
from polyseme.inference.feature_extraction import FeatureEncoder
from polyseme.inference.feature_model import FEATURE_FAMILY, MAX_CONTEXT_WORDS, FeatureReader, save_feature_model
from polyseme.inference.word_vectors import WordVectors
from polyseme.nn.layers.char_cnn import CharCNNConfig
from polyseme.nn.layers.frozen_features import FrozenFeaturesConfig
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.trunks.feature_network import FeatureNetwork, FeatureNetworkConfig
from polyseme.objectives.batch import Batch, Targets
from polyseme.objectives.losses import compute_losses
from polyseme.tasks.base import TaskConfig
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig

CHAR_CNN = CharCNNConfig(1, 50, 1, ((2, 25), (3, 50), (4, 25)), num_highway=0)
DEFAULT_DROPOUT = {"bilstm": 0.5}  # Lample et al. 2016, §4.3; too much for networks that return one vector per text
INDICATOR_DIM = 100  # He et al. 2017, §3.1
MIX_PENALTY = "mix_penalty"  # the penalty on the weights of a mix
FEATURE_DEFAULTS = FinetuneConfig(
    epochs=15.0,
    batch_size=16,
    optimizer=OptimizerConfig(lr=2e-3, eps=1e-8, weight_decay=0.0, max_grad_norm=5.0),
    schedule=ScheduleConfig("linear", warmup=0),
    precision="float32",
    lm_loss_weight=0.0,
    network=FeatureNetworkSettings(),
)


@dataclass(frozen=True, eq=False)
class FeatureInputs:
    """What a network over features reads: frozen encoders, and the initial values of its word embeddings.

    It may learn from unlabeled text, too (cross-view training).
    """

    encoders: Sequence[Path] = ()
    word_vectors: Path | None = None
    cache_dir: Path | None = None
    unlabeled: UnlabeledText | None = None

    @property
    def label(self) -> str:
        """The inputs in the results of a run."""
        return " + ".join(map(str, self.paths)) or "words alone"

    @property
    def paths(self) -> list[Path]:
        """The folders and files that are read."""
        return [*self.encoders, *([self.word_vectors] if self.word_vectors else [])]

    def describe(self) -> dict[str, Any]:
        """Return what determines the results of a run beside those of fine-tuning."""
        return {"unlabeled": self.unlabeled.hash} if self.unlabeled is not None else {}


def train_on_features(
    inputs: FeatureInputs,
    data: TaskData | Sequence[TaskData],
    out: Path | None,
    config: FinetuneConfig = FEATURE_DEFAULTS,
    options: RunOptions = RunOptions(),
) -> dict[str, Any]:
    """Train a network over frozen features, or over words alone, and evaluate it as `finetune` does.

    The features of several encoders are concatenated. Several tasks share one network. The results include the learned
    weights of layers.
    """
    config = config.validate()
    if not config.optimizer.lr:
        raise ConfigError("`lr` is 0, expected more than 0: a network over features has no size to choose it by")
    if config.bilstm:
        raise ConfigError("bilstm is true, which is for fine-tuning: over frozen features, choose `network` bilstm")
    if isinstance(data, TaskData):
        data = [data]
    else:
        check_names(data)
    if out is not None:
        check_folder(out)  # before anything is read
    reader = build_reader(inputs, data, config)
    settings = describe_run(inputs.paths, data, config, options) | inputs.describe()
    run = UnfinishedRun(out, settings, options.on_start)
    return run_experiment(build_experiment(inputs, data, config, reader), run, options)


def build_experiment(
    inputs: FeatureInputs, data: Sequence[TaskData], config: FinetuneConfig, reader: FeatureReader
) -> Experiment:
    """Return the experiment of training a network over features."""
    network = config.network or FeatureNetworkSettings()
    tasks = [each.task.replace(name=each.name).fit(each.train) for each in data]
    model_config = build_model_config(tasks, reader, network)
    cross_view = None
    if inputs.unlabeled is not None:
        view_settings = config.cross_view or CrossViewSettings()
        model_config, view_heads = add_view_heads(model_config, tasks, view_settings.view_dim)
        store = reader.build_store(inputs.unlabeled.words, inputs.unlabeled.word_ids)
        cross_view = CrossView(inputs.unlabeled, store, view_heads, config)

    def build(seed: int) -> Model:
        model = model_config.build(seed)
        embeddings = _network(model).features.word_embeddings
        if reader.pretrained is not None and embeddings is not None:
            init_embeddings(embeddings.weight, reader.vocabulary, reader.pretrained)
        return model

    def save(path: Path, model: Model, metadata: dict[str, Any]) -> None:
        trained = model if cross_view is None else model.without_heads(cross_view.heads.values())
        save_feature_model(path, trained, reader, metadata)

    has_mix_penalty = network.mix_penalty > 0 and any(source.join == "mix" for source in reader.sources)
    no_rows = torch.zeros(0, dtype=torch.long)
    loss_fn = with_mix_penalty(network.mix_penalty) if has_mix_penalty else None
    return Experiment(
        tuple(_encode(reader, task, each) for task, each in zip(tasks, data)),
        config,
        build,
        save,
        _describe_inputs(inputs, data, network, reader),
        loss_fn=loss_fn if cross_view is None else cross_view.compute_losses,
        extra_targets={MIX_PENALTY: Targets(no_rows, no_rows, 1)} if has_mix_penalty else {},
        unlabeled=None if cross_view is None else cross_view.batches,
        describe_model=lambda model: {"mix_weights": weights} if (weights := mix_weights(model)) else {},
        measures_latency=False,
        default_config=FEATURE_DEFAULTS,
    )


def _encode(reader: FeatureReader, task: TaskConfig, data: TaskData) -> TaskRun:
    """Return a fitted task with its encoded examples."""
    sets = [task.training_examples(data.train), data.dev, *data.extra_eval.values()]
    train, dev, *extra_splits = map(Split, sets, reader.encode(task, sets, use_labels=True))
    return TaskRun(task, data, train, dev, dict(zip(data.extra_eval, extra_splits)))


def _describe_inputs(
    inputs: FeatureInputs, data: Sequence[TaskData], network: FeatureNetworkSettings, reader: FeatureReader
) -> dict[str, Any]:
    """Return the facts about a run in its results."""
    run_info: dict[str, Any] = {"data": data[0].dataset_name} if data[0].dataset_name else {}
    run_info |= {"model": inputs.label, "features": network.to_json(), "from_scratch": False}
    if reader.pretrained is not None:
        words = {"vocabulary": len(reader.vocabulary), "frozen": network.freeze_word_embeddings}
        run_info["words"] = {"vectors": str(inputs.word_vectors), **words}
    if (text := inputs.unlabeled) is not None:
        run_info["unlabeled"] = {"sentences": len(text), "words": len(text.word_ids)}
    return run_info


def build_model_config(
    tasks: Sequence[TaskConfig], reader: FeatureReader, network: FeatureNetworkSettings
) -> ModelConfig:
    """Return the config of a model of one or several tasks over the features of a reader."""
    known = [name for name in tasks[0].feature_networks if all(name in task.feature_networks for task in tasks)]
    name: Any = known[0] if network.name == "auto" else network.name
    if name not in known:
        labels = ", ".join(dict.fromkeys(task.task_type for task in tasks))
        raise ConfigError(f"the network {name} does not fit {labels}, which is learned by {', '.join(known)}")
    if name == "linear" and not reader.encoders and reader.pretrained is None:
        raise ConfigError("a linear model needs features to stand on: name a model, or word vectors")
    if network.join_at == "between" and not reader.encoders:
        raise ConfigError("there are no features to join between the layers: name a model")
    if network.layer_norm and not reader.encoders:
        raise ConfigError("`network.layer_norm` has no effect without features: name a model")
    dropout = DEFAULT_DROPOUT.get(name, 0.2) if network.dropout is None else network.dropout
    features_config = FrozenFeaturesConfig(
        reader.sources,
        network.join_at,
        len(reader.vocabulary) + 1,
        resolve_word_dim(network, reader.pretrained),
        CHAR_CNN if network.use_char_cnn else None,
        dropout if name != "linear" else 0.1,
        INDICATOR_DIM if any(task.has_word_marks for task in tasks) else 0,
        network.layer_norm,
    )
    relu_dim = network.relu_dim
    if relu_dim is None:
        relu_dim = network.lstm_dim if name == "biattentive" else 0
    trunk = FeatureNetworkConfig(features_config, name, network.lstm_dim, network.num_layers, dropout, relu_dim)
    return ModelConfig(FEATURE_FAMILY, trunk, {task.head_name: task.feature_head() for task in tasks})


def build_reader(inputs: FeatureInputs, data: Sequence[TaskData], config: FinetuneConfig) -> FeatureReader:
    """Load what a network over features reads, with the vocabulary of the training examples."""
    network, max_words = config.network or FeatureNetworkSettings(), config.max_len or MAX_CONTEXT_WORDS
    pretrained = WordVectors.load(inputs.word_vectors) if inputs.word_vectors is not None else None
    vocabulary: dict[str, int] = {}
    if resolve_word_dim(network, pretrained):
        pairs = ((each.task, example) for each in data for example in each.train)
        words = (word for task, e in pairs for texts in task.word_sequences(e) for text in texts for word in text)
        vocabulary = build_vocabulary(words, pretrained, network.freeze_word_embeddings)
    layers = resolve_layer_selections(network, len(inputs.encoders))
    encoders = tuple(map(FeatureEncoder.load, inputs.encoders))
    return FeatureReader(encoders, layers, vocabulary, inputs.cache_dir, max_words, pretrained)


def resolve_word_dim(network: FeatureNetworkSettings, pretrained: WordVectors | None) -> int:
    """Return the size of the learned word vectors."""
    if pretrained is None:
        return 100 if network.word_dim is None else network.word_dim
    if network.word_dim not in (None, pretrained.dim):
        actual = f"the vectors of {pretrained.path} have {pretrained.dim} numbers"
        raise ConfigError(f"network.word_dim is {network.word_dim}, but {actual}")
    return pretrained.dim


def resolve_layer_selections(network: FeatureNetworkSettings, num_encoders: int) -> tuple[str, ...]:
    """Return the selection of layers for each encoder."""
    layers = [name.strip() for name in network.layers.split(",")]
    if len(layers) not in (1, num_encoders):
        problem = f"{len(layers)} choices of layers ({network.layers}) for {num_encoders} models"
        raise ConfigError(f"{problem}: one for each, or one for all")
    return tuple(layers * num_encoders if len(layers) == 1 else layers)


def build_vocabulary(words: Iterable[str], pretrained: WordVectors | None, freeze_pretrained: bool) -> dict[str, int]:
    """Number the words with a learned vector from 1: those with a pre-trained one, and others that occur twice.

    A word is looked up as it is written, then in lower case. A frozen pre-trained vector is not learned.
    """
    counts: Counter[str] = Counter()
    pretrained_words: set[str] = set()
    for word, count in Counter(words).items():
        forms = [form for form in (word, word.lower()) if pretrained and pretrained.get_vector(form) is not None]
        pretrained_words.update(forms[:1])
        counts[forms[0] if forms else word.lower()] += count
    if pretrained is not None and not pretrained_words:
        missing = f"none of the {len(counts):,} words of the training examples"
        raise DataError(f"{pretrained.path} has a vector for {missing}")
    learned = (w for w, count in counts.items() if (not freeze_pretrained if w in pretrained_words else count > 1))
    return {word: i for i, word in enumerate(sorted(learned, key=lambda word: (-counts[word], word)), 1)}


@torch.no_grad()
def init_embeddings(table: Tensor, vocabulary: Mapping[str, int], pretrained: WordVectors) -> None:
    """Set rows to the pre-trained vectors; scale the random rows of other words to their standard deviation."""
    table *= float(pretrained.vectors.std())
    rows = {i: vector for word, i in vocabulary.items() if (vector := pretrained.get_vector(word)) is not None}
    if rows:
        table[torch.tensor(list(rows))] = torch.from_numpy(np.stack(list(rows.values()))).to(table)


def with_mix_penalty(weight: float) -> Callable[[Model, Batch], dict[str, Tensor]]:
    """Return a loss function that adds the term λ‖s‖², once a step for any number of micro-batches."""

    def terms(model: Model, batch: Batch) -> dict[str, Tensor]:
        task_targets = {name: target for name, target in batch.targets.items() if name != MIX_PENALTY}
        loss_terms = compute_losses(model, dataclasses.replace(batch, targets=task_targets))
        return loss_terms | {MIX_PENALTY: weight * _network(model).features.mix_penalty()}

    return terms


def mix_weights(model: Model) -> dict[str, dict[str, Any]]:
    """Return γ and the weight of each layer, lowest first, of the learned mixes."""
    mixes: Any = _network(model).features.scalar_mixes.items()
    return {
        place: {"gamma": round(mix.gamma.item(), 4), "weights": [round(s, 4) for s in mix.scores.softmax(0).tolist()]}
        for place, mix in mixes
        if len(mix.scores) > 1
    }


def _network(model: Model) -> FeatureNetwork:
    assert isinstance(model.trunk, FeatureNetwork)
    return model.trunk
