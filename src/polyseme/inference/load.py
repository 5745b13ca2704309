"""`load`: open a model folder of any kind."""

from collections.abc import Sequence
from pathlib import Path

import torch

from polyseme.errors import ConfigError, UnsupportedError, is_out_of_memory, suggest
from polyseme.inference.base import LanguageModel
from polyseme.inference.feature_extraction import ElmoModel
from polyseme.inference.feature_model import FeatureModel
from polyseme.inference.neural_lm import NeuralLM
from polyseme.inference.ngram_lm import NgramLM
from polyseme.inference.prediction import select_task
from polyseme.inference.word_vectors import WordVectors
from polyseme.io.atomic import restore_directory
from polyseme.io.model_path import resolve_model
from polyseme.ngram.model import NgramFolder, is_ngram
from polyseme.nn.trunks.shallow import StaticEmbeddingTrunkConfig
from polyseme.tasks.base import TaskConfig
from polyseme.weights.elmo_format import find_elmo_files
from polyseme.weights.folder import load_model
from polyseme.weights.onnx_folder import GRAPH_BATCH_TOKENS, is_onnx_folder, load_onnx_model

PRECISIONS = ("float32", "bf16")


def load(
    model: str | Path | LanguageModel,
    device: str | None = None,
    precision: str = "float32",
    task: str = "",
    tasks: Sequence[type[TaskConfig]] = (),
    verify: bool = False,
) -> LanguageModel:
    """Load a model folder that Polyseme or `transformers` wrote, the model of a run folder, or a file of word vectors.

    Returns a `NeuralLM`, an `NgramLM`, a `FeatureModel` (a task model over frozen features), `WordVectors`, or an
    `ElmoModel` for ELMo's published files (the folder, or one of the two files). On a GPU, the precision `bf16` is
    several times faster. `task` selects one task of a model that was fine-tuned for several. `tasks` are classes of
    tasks of your own. The recorded hashes of all files are checked; those of weights over 4 MB only with `verify`,
    since it takes longer than loading. A loaded model is returned unchanged.

    >>> model = polyseme.load("run/model")
    >>> model.capabilities
    ('encode', 'fill', 'next_sentence', 'score', 'score_last_words', 'rank_choices', 'embed', 'attention', 'attribute')
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"precision is {precision!r}; {suggest(precision, PRECISIONS)}")
    if isinstance(model, LanguageModel):
        if device or task or precision != "float32":
            raise ConfigError("device, precision and task apply to a folder, and this model is loaded already")
        return model
    path = resolve_model(model)
    restore_directory(path)
    if find_elmo_files(path):
        _check_device(device)
        loaded: LanguageModel = ElmoModel.load(path, device)
    elif path.is_file():
        loaded = WordVectors.load(path)
    elif is_ngram(path):
        loaded = NgramLM(NgramFolder.load(path, verify))
    elif FeatureModel.is_folder(path):
        loaded = FeatureModel.load(path, tasks=tasks, verify=verify)
        if task and "tasks" in loaded.metadata:
            loaded, task = loaded.select(task, tasks), ""
    else:
        return _load_neural(path, device, precision, task, tasks, verify)
    if task or precision != "float32":
        raise ConfigError(f"{path} is {loaded.description}: precision and task do not apply")
    return loaded


def _check_device(device: str | None) -> None:
    """Raise if torch does not know a device, or cannot use it on this machine."""
    try:
        torch.empty(0, device=device or "cpu")
    except (RuntimeError, AssertionError) as error:  # torch raises the latter if it is built without CUDA
        if is_out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"`device` is {device!r}, which torch cannot use here: use 'cpu' ({reason})") from None


def load_neural(model: str | Path | LanguageModel, device: str | None = None) -> NeuralLM:
    """Load a model that has to be a neural network."""
    loaded = load(model) if isinstance(model, LanguageModel) else load(model, device)
    if not isinstance(loaded, NeuralLM):
        raise UnsupportedError(f"{loaded.path} is {loaded.description}, and a neural language model is needed")
    return loaded


def _load_neural(
    path: Path, device: str | None, precision: str, task: str, tasks: Sequence[type[TaskConfig]], verify: bool
) -> LanguageModel:
    if is_onnx_folder(path):
        if device not in (None, "cpu") or precision != "float32":
            raise ConfigError(f"{path} is a graph that runs on the CPU: leave device and precision out")
        folder, device = load_onnx_model(path, verify), "cpu"
    else:
        _check_device(device)
        folder = load_model(path, verify=verify)
    if task:
        folder = select_task(folder, task, tasks)
    network = NeuralLM(folder, device, GRAPH_BATCH_TOKENS if is_onnx_folder(path) else 0, tasks)
    if precision == "bf16":
        if network.device.type != "cuda":
            raise ConfigError("bf16 needs a GPU: leave the precision at float32")
        network.model.to(torch.bfloat16)
    is_table = isinstance(folder.model.config.trunk, StaticEmbeddingTrunkConfig)
    return WordVectors.from_folder(folder) if is_table and "predict" not in network.capabilities else network
