"""`FeatureModel`: a loaded task model over frozen features, and how its examples are encoded."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors.torch import load_file

from polyseme.errors import ModelError, UnsupportedError
from polyseme.inference.base import LanguageModel
from polyseme.inference.feature_extraction import FeatureEncoder, extract_features, hash_model_files
from polyseme.inference.inspection.attribution import Attribution, AttributionInput, AttributionRequest, attribute_input
from polyseme.inference.inspection.attribution_targets import TaskTarget
from polyseme.inference.prediction import predict_encoded, select_head
from polyseme.inference.results import check_answers
from polyseme.inference.word_vectors import WordVectors
from polyseme.io.atomic import write_tensors
from polyseme.io.hashes import check_hashes, hashed_directory
from polyseme.io.json import read_json, read_json_object, write_json
from polyseme.nn.layers.char_cnn import words_to_char_ids
from polyseme.nn.layers.frozen_features import FeatureSourceConfig, FeatureStore
from polyseme.nn.model import Model, ModelConfig
from polyseme.report.cards.model_card import ModelFacts, format_usage, write_model_card
from polyseme.report.cards.readme import short_name
from polyseme.tasks import load_task
from polyseme.tasks.base import MetricsFn, TaskConfig
from polyseme.tasks.encoded import EncodedExample
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.finite import check_finite

FEATURE_FAMILY = "features"  # the family in the config of such a model, which is no architecture
MAX_CONTEXT_WORDS = 400  # of a window of a long text, as in Seo et al. 2017


@dataclass(frozen=True, eq=False)
class FeatureReader:
    """What a network over features reads: encoders with a selection of layers each, and words with learned vectors.

    A word outside the vocabulary has the vector that `pretrained` has for it, if any. Long contexts of questions are
    read in windows of `max_context_words`.
    """

    encoders: tuple[FeatureEncoder, ...]
    layers: tuple[str, ...]
    vocabulary: dict[str, int]
    cache_dir: Path | None
    max_context_words: int = MAX_CONTEXT_WORDS
    pretrained: WordVectors | None = None

    @property
    def sources(self) -> tuple[FeatureSourceConfig, ...]:
        """What is stored of each encoder."""
        return tuple(encoder.source_config(layers) for encoder, layers in zip(self.encoders, self.layers))

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """The paths and hashes of the encoders and word vectors, as a model folder records them."""
        encoders = zip(self.encoders, self.layers)
        files: dict[str, Any] = {
            "sources": [{"model": str(e.path), "hash": e.hash, "layers": layers} for e, layers in encoders]
        }
        if self.pretrained is not None:
            path = self.pretrained.path
            files["words"] = {"vectors": str(path), "hash": hash_model_files(path)}
        return files

    def encode(self, task: TaskConfig, sets: Sequence[Sequence[Any]], use_labels: bool) -> list[list[EncodedExample]]:
        """Encode sets of examples as positions of one feature store.

        Features are computed and cached for each set, once for a text that occurs several times in it.
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
            windows = (
                task.encode_features(example, i, offsets, self.max_context_words, use_labels)
                for i, example in enumerate(examples)
            )
            encoded_sets.append([window for example_windows in windows for window in example_windows])
        distinct = {word: i for i, word in enumerate(dict.fromkeys(words))}
        word_numbers = np.array([distinct[word] for word in words], dtype=np.int64)
        store = self.build_store(list(distinct), word_numbers, arrays)
        return [[replace(e, features=store) for e in encoded] for encoded in encoded_sets]

    def build_store(
        self, words: Sequence[str], word_ids: np.ndarray, features: Sequence[list[np.ndarray]] = ()
    ) -> FeatureStore:
        """Return a store of positions, where each has one of the distinct words, and features of the encoders."""
        vocabulary = resolve_words(words, self.vocabulary, self.pretrained)
        return FeatureStore(list(features), word_ids, words_to_char_ids(words), *vocabulary)


def resolve_words(
    words: Iterable[str], vocabulary: Mapping[str, int], pretrained: WordVectors | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the id of each word, 0 if it has none, and the vectors of words outside the vocabulary.

    The ids of these follow the vocabulary. A word that training did not see thus keeps its pre-trained vector.
    """
    word_ids: list[int] = []
    rows: list[np.ndarray] = []
    for word in words:
        word_id = 0
        for form in (word, word.lower()):
            if form in vocabulary:
                word_id = vocabulary[form]
            elif pretrained is not None and (vector := pretrained.get_vector(form)) is not None:
                rows.append(vector)
                word_id = len(vocabulary) + len(rows)
            if word_id:
                break
        word_ids.append(word_id)
    table = np.stack(rows).astype(np.float32) if rows else np.empty((0, 0), np.float32)
    return np.array(word_ids, dtype=np.int64), table


class FeatureModel(LanguageModel):
    """A task model over the frozen features of one or several models, or over word vectors.

    One of several tasks has to be selected before it can predict.
    """

    def __init__(
        self, path: Path, model: Model, task: TaskConfig | None, reader: FeatureReader, metadata: dict[str, Any]
    ):
        super().__init__(path)
        self.model, self._task, self.reader, self.metadata = model, task, reader, metadata

    @classmethod
    def load(
        cls,
        path: str | Path,
        cache_dir: Path | None = None,
        tasks: Iterable[type[TaskConfig]] = (),
        verify: bool = False,
        device: str | None = None,
    ) -> Self:
        """Load a folder and the models that its features come from, which must not have changed.

        `device` is that of these models.
        """
        path = Path(path)
        check_hashes(path, with_large_weights=verify)
        content = read_json_object(path / "polyseme.json")
        config, metadata = ModelConfig.from_json(content.get("config"), "config"), content.get("metadata", {})
        reader = _read_sources(path, metadata, cache_dir, device)
        model = config.build(0)
        try:
            state = load_file(path / "model.safetensors")
            model.load_state_dict(state)
        except Exception as error:
            reason = str(error).splitlines()[0][:80]
            raise ModelError(f"{path}/model.safetensors does not fit its config ({reason})") from None
        check_finite(state, path / "model.safetensors")
        task = None if "tasks" in metadata else load_task(metadata, config, tasks)
        return cls(path, model.eval(), task, reader, metadata)

    def select(self, name: str, kinds: Iterable[type[TaskConfig]] = ()) -> "FeatureModel":
        """Return the model of one of several tasks, by name; a model of one task has no name and is unchanged."""
        if not isinstance(tasks := self.metadata.get("tasks"), dict):
            return self
        model, metadata = select_head(self.path, self.model, tasks, name, kinds)
        return FeatureModel(self.path, model, load_task(metadata, model.config, kinds), self.reader, metadata)

    @property
    def task(self) -> TaskConfig:
        """The task; raise `ConfigError` if one of several has to be selected first."""
        return load_task(self.metadata, self.model.config) if self._task is None else self._task

    @staticmethod
    def is_folder(path: Path) -> bool:
        """Whether a folder holds a task model over features."""
        config_path = path / "polyseme.json"
        if not config_path.is_file() or (path / "config.json").exists():
            return False
        config = read_json_object(config_path).get("config")
        return isinstance(config, dict) and config.get("family") == FEATURE_FAMILY

    @property
    def tokenizer(self) -> Tokenizer:
        raise UnsupportedError(f"{self.path} has no tokenizer: it is {self.description}, which reads words")

    @property
    def description(self) -> str:
        return f"a {self._task.task_type if self._task else 'multitask'} model over frozen features"

    @property
    def capabilities(self) -> tuple[str, ...]:
        if self._task is None:
            return ("predict",)
        supported = {"answer": self.task.answers_questions, "attribute": self.task.supports_attribution}
        return ("predict", *(operation for operation, is_supported in supported.items() if is_supported))

    def predict_examples(self, examples: Sequence[Any], use_labels: bool = False) -> list[Any]:
        """Return one prediction for each example of the task."""
        (encoded,) = self.reader.encode(self.task, (examples,), use_labels)
        return check_answers(predict_encoded(self.model, self.task, examples, encoded), self.path)

    def evaluate(self, examples: Sequence[Any], extra_metrics: MetricsFn | None = None) -> dict[str, float]:
        """Return the metrics of the task on labeled examples."""
        return self.task.metrics(examples, self.predict_examples(examples, use_labels=True), extra_metrics)

    def _predict(self, examples: Sequence[Any]) -> list[Any]:
        return self.predict_examples(self.task.read(examples, needs_labels=False))

    def _attribute(self, requests: Sequence[AttributionRequest], method: str) -> list[Attribution]:
        return [attribute_input(self.attribution_input(request), method) for request in requests]

    def attribution_input(self, request: AttributionRequest) -> AttributionInput:
        """Return the input whose score is attributed: words with their features, of which each may be left out."""

        def encode(examples: Sequence[Any]) -> list[EncodedExample]:
            return self.reader.encode(self.task, (examples,), use_labels=False)[0]

        return TaskTarget(self.model, self.task, encode, None, self.path).build(request)


def _read_sources(path: Path, metadata: Any, cache_dir: Path | None, device: str | None) -> FeatureReader:
    """Load the encoders and word vectors that a folder names, which must not have changed since."""
    words = read_json(path / "words.json")
    try:
        recorded, max_len = metadata["features"], metadata.get("settings", {}).get("max_len") or MAX_CONTEXT_WORDS
        sources, vectors = recorded["sources"], recorded.get("words")
        models, layers = [Path(source["model"]) for source in sources], tuple(source["layers"] for source in sources)
        vectors_path = None if vectors is None else Path(vectors["vectors"])
        vocabulary = {word: i for i, word in enumerate(words, 1)}
        if type(max_len) is not int or not all(isinstance(word, str) for word in vocabulary):
            raise TypeError("max_len is not a number, or a word is not a string")
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} does not say which features it was trained over ({error})") from None
    encoders = tuple(FeatureEncoder.load(model, device) for model in models)
    pretrained = None if vectors_path is None else WordVectors.load(vectors_path)
    reader = FeatureReader(encoders, layers, vocabulary, cache_dir, max_len, pretrained)
    current = [*reader.provenance["sources"], reader.provenance.get("words", {})]
    for now, then in zip(current, [*sources, vectors or {}]):
        if now.get("hash") != then.get("hash"):
            source_path = now.get("model") or now["vectors"]
            raise ModelError(f"{source_path} is not the model that {path} was trained over: its hash differs")
    return reader


def save_feature_model(path: Path, model: Model, reader: FeatureReader, metadata: dict[str, Any]) -> None:
    """Write the folder of a task model: its weights, its words, and the encoders that it reads."""
    content = {"format": 1, "config": model.config.to_json(), "metadata": metadata | {"features": reader.provenance}}
    with hashed_directory(path) as folder:
        write_tensors(folder / "model.safetensors", model.state_dict())
        write_json(folder / "words.json", list(reader.vocabulary))
        write_json(folder / "polyseme.json", content)
        write_model_card(folder, _describe(path.absolute().name, model, reader, metadata), metadata, path)


def _describe(name: str, model: Model, reader: FeatureReader, metadata: Mapping[str, Any]) -> ModelFacts:
    """Return the facts of the card."""
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    names = [f"{short_name(e.path)} ({layers})" for e, layers in zip(reader.encoders, reader.layers)]
    names += [short_name(reader.pretrained.path)] if reader.pretrained is not None else []
    table = {
        "family": "features: a network over frozen features",
        "features": ", ".join(names) or "words alone",
        "parameters": f"{num_parameters:,}, without the models that it reads",
        "words with a learned vector": f"{len(reader.vocabulary):,}",
    }
    usages: dict[str, dict[str, str]] = {
        name: each["usage"] for name, each in metadata.get("tasks", {"": metadata}).items() if "usage" in each
    }
    calls = {name: f"{usage.get('method', 'predict')}({usage.get('example', '')})" for name, usage in usages.items()}
    limits = ("It reads the models and vectors that it was trained over, at the paths in polyseme.json.",) * bool(names)
    return ModelFacts(
        FEATURE_FAMILY,
        f"A network with {num_parameters:,} parameters over {', '.join(names) or 'words alone'}.",
        table,
        format_usage(name, calls or {"": "predict()"}),
        pipeline_tag=next((usage.get("pipeline_tag", "") for usage in usages.values()), ""),
        limits=limits,
        num_parameters=num_parameters,
    )
