"""The models of a server: loaded once, selected by name, never by a path in a request."""

import ast
import re
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from polyseme.errors import ConfigError, UnsupportedError, suggest
from polyseme.inference.base import LanguageModel
from polyseme.inference.feature_model import FeatureModel
from polyseme.inference.load import load
from polyseme.inference.neural_lm import NeuralLM
from polyseme.inference.prediction import select_task
from polyseme.inference.word_vectors import WordVectors
from polyseme.io.model_path import resolve_model
from polyseme.serve.api.errors import RequestError
from polyseme.serve.api.responses import ModelInfo
from polyseme.tasks.base import TaskConfig
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.onnx_folder import is_onnx_folder

ENGINES = ("torch", "onnx")
EXAMPLE_TEXT = "The film was a delight."
EXAMPLE_PAIR = ("It rained all day.", "The street is wet.")
VERBS = (
    *("fill", "embed", "score", "classify", "tag", "answer", "choose", "rerank", "generate", "translate", "neighbors"),
    *("predict", "attention", "encode", "next_sentence"),
)
_OF_CAPABILITY = {"rank_choices": "choose"}  # other verbs have the name of the operation


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A loaded model, its name in requests, and what it can be asked."""

    name: str
    model: LanguageModel

    @cached_property
    def task(self) -> TaskConfig | None:
        """The task of a fine-tuned model."""
        if isinstance(self.model, FeatureModel):
            return self.model.task
        return self.model._load_task() if isinstance(self.model, NeuralLM) and self.has("predict") else None

    @cached_property
    def capabilities(self) -> frozenset[str]:
        """The operations of the loaded model."""
        return frozenset(self.model.capabilities)

    def has(self, operation: str) -> bool:
        """Whether the model supports an operation of the Python API."""
        return operation in self.capabilities

    @cached_property
    def verbs(self) -> tuple[str, ...]:
        """The verbs that the model supports."""
        supported = {_OF_CAPABILITY.get(operation, operation) for operation in self.capabilities}
        if self.task is not None and self.task.verb:
            supported.add(self.task.verb)
        if self.has("embed") or self.scores_pairs:
            supported.add("rerank")
        if isinstance(self.model, WordVectors):
            supported.add("neighbors")
        return tuple(verb for verb in VERBS if verb in supported)

    @property
    def scores_pairs(self) -> bool:
        """Whether a task model reads a query and a text together, and returns a label or a number for them."""
        is_classifier = self.task is not None and self.task.verb == "classify" and self.task.usage_method == "predict"
        return is_classifier and getattr(self.task, "pair_column", "absent") != "absent"

    def require(self, verb: str) -> None:
        """Raise if the model does not support a verb."""
        if verb not in self.verbs:
            supported = ", ".join(self.verbs)
            problem = f"the model {self.name!r} is {self.model.description}, which does not support {verb}"
            raise RequestError("unsupported", f"{problem}; supported: {supported}")

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None if the model reads words."""
        try:
            return self.model.tokenizer
        except UnsupportedError:
            return None

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text without special ones, or of words if there is no tokenizer."""
        if self.tokenizer is None:
            return [len(re.findall(r"\w+|[^\w\s]", text)) for text in texts]
        return [len(ids) for ids in self.tokenizer.encode_batch(texts)]

    @property
    def max_tokens(self) -> int | None:
        """The longest text that the model reads, in tokens without special ones; None if there is no limit."""
        if isinstance(self.model, NeuralLM) and self.tokenizer is not None:
            limit = self.model.max_len - self.tokenizer.num_special_tokens_to_add()
            return limit if limit < sys.maxsize // 2 else None
        return None

    @property
    def dim(self) -> int | None:
        """The number of dimensions of a vector."""
        if isinstance(self.model, WordVectors):
            return self.model.dim
        return self.model.model.config.trunk.dim if isinstance(self.model, NeuralLM) else None

    @property
    def is_graph(self) -> bool:
        """Whether onnxruntime runs the model."""
        return isinstance(self.model, NeuralLM) and not self.model.model.trunk.is_differentiable

    @cached_property
    def info(self) -> ModelInfo:
        """What `/models` says about the model."""
        labels = list(self.task.output_labels) if self.task is not None else None
        return ModelInfo(
            self.name,
            type(self.model).__name__,
            self.model.description,
            list(self.verbs),
            "onnx" if self.is_graph else "torch",
            self.max_tokens,
            self.dim,
            self.tokenizer.mask_token if self.tokenizer is not None else None,
            self.task.task_type if self.task is not None else None,
            labels or None,
            {verb: example_request(self, verb) for verb in self.verbs},
        )


def find_usage_example(served: ServedModel) -> Any:
    """Return an example of the task: that of the card, which has the form of the training data, or a general one."""
    task = served.task
    if task is None:
        return EXAMPLE_TEXT
    source = served.model.folder if isinstance(served.model, NeuralLM) else served.model
    usage = getattr(source, "metadata", {}).get("usage")
    try:
        value = ast.literal_eval(usage["example"]) if isinstance(usage, dict) else task.usage_example
        task.parse_value(value, "example")
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError):
        value = task.usage_example
    if getattr(task, "pair_column", "") == "required" and isinstance(value, str):
        return EXAMPLE_PAIR
    return value


def example_request(served: ServedModel, verb: str) -> dict[str, Any]:
    """Return a request that the model answers, for documentation and the playground."""
    example = find_usage_example(served)
    mask = (served.tokenizer.mask_token if served.tokenizer is not None else None) or "[MASK]"
    if verb == "neighbors" and isinstance(served.model, WordVectors):
        words = [word for word in served.model.words[:2000] if len(word) > 3 and word.isalpha()]
        return {"text": (words or served.model.words)[0], "top_k": 10}
    if verb == "tag" and isinstance(example, str):
        return {"text": example}
    if verb == "tag":
        words, predicate = (example[0], example[1]) if isinstance(example[-1], int) else (example, None)
        return {"text": " ".join(words)} | ({} if predicate is None else {"predicate": predicate})
    if verb == "answer":
        return dict(zip(("text", "question"), example))
    if verb == "classify":
        return {"text": example} if isinstance(example, str) else {"text": example[0], "pair": example[1]}
    if verb == "choose" and served.task is not None:
        return {"text": example[0], "choices": list(example[1])}
    is_masked = isinstance(served.model, NeuralLM) and served.model.is_masked_lm
    gap, text, pair = f"The {mask} barks.", *EXAMPLE_PAIR
    requests: dict[str, dict[str, Any]] = {
        "fill": {"text": f"The capital of France is {mask}.", "top_k": 5},
        "choose": {
            "text": gap if is_masked else "The dog",
            "choices": ["dog", "cat"] if is_masked else ["barks", "sings"],
        },
        "rerank": {"query": "a good film", "texts": [EXAMPLE_TEXT, pair, "I liked the movie."]},
        "generate": {"text": "Once upon a time"},
        "predict": {"examples": [example]},
        "next_sentence": {"text": text, "pair": pair},
    }
    return requests.get(verb, {"text": EXAMPLE_TEXT})


class ModelRegistry:
    """The loaded models by name, in the order in which they were passed."""

    def __init__(self, models: Mapping[str, LanguageModel]):
        if not models:
            raise ConfigError("there is no model to serve")
        self.models = {name: ServedModel(name, model) for name, model in models.items()}

    def __getitem__(self, name: str) -> ServedModel:
        """Return a model by its name, the first for an empty name; raise if it is not loaded."""
        if not name:
            return next(iter(self.models.values()))
        if name not in self.models:
            shown = name if len(name) <= 80 else f"{name[:80]}…"
            raise RequestError("model_not_found", f"there is no model {shown!r}; {suggest(name[:80], self.models)}")
        return self.models[name]


def load_models(
    paths: Sequence[str | Path], device: str | None = None, precision: str = "float32", engine: str = "torch"
) -> dict[str, LanguageModel]:
    """Load models by name: `NAME=PATH`, or the name of the folder. A folder of several tasks is one model for each.

    The engine `onnx` takes folders with a graph for onnxruntime, and `torch` all others. A thread of its own loads
    them, so that OpenMP's threads end with it. Otherwise OpenMP would count more threads than cores, and those of the
    workers would sleep between operations instead of waiting actively.
    """
    if engine not in ENGINES:
        raise ConfigError(f"`engine` is {engine!r}; {suggest(engine, ENGINES)}")
    named_paths: dict[str, Path] = {}
    for each in paths:
        name, path = _split_name(str(each))
        if name in named_paths:
            raise ConfigError(f"two models are called {name!r}: name one of them, as in other={path}")
        is_graph = is_onnx_folder(resolve_model(path))
        if is_graph != (engine == "onnx"):
            advice = "`engine` has to be onnx" if is_graph else "quantize it, or export its vectors to onnx"
            raise ConfigError(f"{path} is {'a' if is_graph else 'no'} folder with an ONNX graph: {advice}")
        named_paths[name] = path
    models: dict[str, LanguageModel] = {}
    with ThreadPoolExecutor(1) as thread:
        for name, path in named_paths.items():
            models |= thread.submit(_load_tasks, name, path, device, precision).result()
    return models


def _split_name(argument: str) -> tuple[str, Path]:
    """Return the name and the path of a model."""
    name, equals, path = argument.partition("=")
    if equals and re.fullmatch(r"[\w.@-]+", name) and not Path(argument).exists():
        return name, Path(path)
    resolved = resolve_model(argument).absolute()
    folder = resolved.parent if resolved.name == "model" else resolved
    return re.sub(r"[^\w.@-]+", "-", folder.name) or "model", Path(argument)


def _load_tasks(name: str, path: Path, device: str | None, precision: str) -> dict[str, LanguageModel]:
    return _split_tasks(name, load(path, device, precision))


def _split_tasks(name: str, model: LanguageModel) -> dict[str, LanguageModel]:
    """Return one model per task if a folder was fine-tuned for several, which share their trunk."""
    tasks = model.folder.metadata.get("tasks") if isinstance(model, NeuralLM) else None
    if not isinstance(model, NeuralLM) or not isinstance(tasks, dict):
        return {name: model}
    device = str(model.device)
    return {f"{name}.{task}": NeuralLM(select_task(model.folder, task), device) for task in tasks}
