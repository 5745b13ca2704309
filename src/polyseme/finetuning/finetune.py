"""Fine-tune a pre-trained model on labeled examples, and evaluate it."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from polyseme.errors import ConfigError, require_packages
from polyseme.families import get_family
from polyseme.families.family import Family
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.defaults import choose_pair_order, choose_settings, default_lm_loss_weight
from polyseme.finetuning.distillation import TaskTeacher
from polyseme.finetuning.experiment import Experiment, RunOptions, Split, TaskData, TaskRun, check_names
from polyseme.finetuning.resume import UnfinishedRun, check_folder, describe_run
from polyseme.finetuning.runner import run_experiment
from polyseme.inference.feature_extraction import hash_model_files
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.trunks.base import TrunkConfig
from polyseme.tasks.base import TaskConfig, require_gold
from polyseme.tasks.encoded import EncodedExample, Examples
from polyseme.train.loop import setup_device
from polyseme.weights.folder import ModelFolder, load_model, read_model_config, save_model


def finetune(
    model_folder: Path,
    data: TaskData | Sequence[TaskData],
    out: Path | None,
    config: FinetuneConfig | None = None,
    options: RunOptions = RunOptions(),
    teacher: TaskTeacher | None = None,
) -> dict[str, Any]:
    """Fine-tune once per seed and evaluate on the dev examples; return all seeds, mean and standard deviation.

    Several tasks share one trunk, with a head for each (Caruana 1997; Liu et al. 2019, MT-DNN). The seed determines the
    new heads, the order of the examples and dropout. `out` gets the results and the model of the best seed. If it has
    an unfinished run with the same settings, that run continues. With a `teacher`, the model also learns its scores.
    """
    config, path = (config or FinetuneConfig()).validate(), Path(model_folder)
    model_config, metadata = read_model_config(path)
    if isinstance(data, TaskData):
        data = [data]
    else:
        check_names(data)
    tasks, family = [each.task for each in data], get_family(model_config.family)
    lm_loss_weight = 0.0 if teacher else default_lm_loss_weight(family, tasks)
    config, chosen = choose_settings(config, model_config.trunk, metadata, lm_loss_weight)
    if out is not None:
        check_folder(out)  # before anything is read
    settings = describe_run(path, data, config, options) | (teacher.describe() if teacher else {})
    run = UnfinishedRun(out, settings, options.on_start)
    experiment, loaded = build_experiment(path, data, config, options)
    experiment = dataclasses.replace(experiment, run_info={**experiment.run_info, "chosen": chosen})
    if teacher is not None:
        return run_experiment(teacher.teach(experiment, loaded.tokenizer), run, options)
    if not run.is_complete:
        runs = tuple(_evaluate_before(each, loaded.model) for each in experiment.runs)
        experiment = dataclasses.replace(experiment, runs=runs)
    return run_experiment(experiment, run, options)


def build_experiment(
    path: Path, data: Sequence[TaskData], config: FinetuneConfig, options: RunOptions
) -> tuple[Experiment, ModelFolder]:
    """Return the experiment of fine-tuning a model, and the loaded model of its first seed."""
    tasks = [fit_task(path, each) for each in data]
    loaded = load_for_tasks(path, tasks, config, options.seed_list[0], options.from_scratch)

    def split(task: TaskConfig, examples: Sequence[Any]) -> Split:
        return Split(examples, _encode_labeled(task, examples, loaded, config))

    def encode(task: TaskConfig, examples: Sequence[Any]) -> Iterable[EncodedExample]:
        max_len = config.max_len or loaded.model.config.trunk.embeddings.max_len
        return task.codec.encode(examples, loaded.tokenizer, max_len, truncate=True, use_labels=False)

    def build(seed: int) -> Model:
        if seed == options.seed_list[0]:
            return loaded.model
        return load_for_tasks(path, tasks, config, seed, options.from_scratch).model

    def save(folder: Path, model: Model, metadata: dict[str, Any]) -> None:
        save_model(folder, model, loaded.tokenizer, metadata | finetuning_history(loaded.metadata))

    runs = tuple(
        TaskRun(
            task,
            each,
            split(task, task.training_examples(each.train)),
            split(task, each.dev),
            {name: split(task, examples) for name, examples in each.extra_eval.items()},
        )
        for task, each in zip(tasks, data)
    )
    run_info: dict[str, Any] = {"data": data[0].dataset_name} if data[0].dataset_name else {}
    run_info |= {"model": str(path), "model_hash": hash_model_files(path)[:16], "from_scratch": options.from_scratch}
    return Experiment(runs, config, build, save, run_info, encode=encode), loaded


def _evaluate_before(run: TaskRun, model: Model) -> TaskRun:
    """Add the metrics of the model before training, unless it has new weights."""
    if run.task.has_new_weights:
        return run
    run.primary_metric  # noqa: B018  # raises before the model is run
    before = run.evaluate(run.predict(model.to(setup_device()))).metrics
    return dataclasses.replace(run, before=before)


def fit_task(path: Path, data: TaskData) -> TaskConfig:
    """Return the task with the labels of its training examples; as text-to-text, if that is how the model answers."""
    require_packages(data.task.required_packages)
    model_config, family = _read_config(path)
    task = data.task.replace(name=data.name).fit(data.train).fit_model(path)
    task = choose_pair_order(task, family, data.dataset_name, data.train)
    if not answers_in_text(family, model_config.trunk, task):
        return task
    task = task.with_text_template(data.dataset_name or data.label, data.train)
    assert task.text_template is not None
    template = task.text_template.replace(decoder_start_token=family.decoder_start_token)
    return task.replace(text_template=template)


def _read_config(path: Path) -> tuple[ModelConfig, Family]:
    config = read_model_config(path)[0]
    return config, get_family(config.family)


def answers_in_text(family: Family, trunk: TrunkConfig, task: TaskConfig) -> bool:
    """Whether a model answers the task in text instead of with a new head."""
    has_decoder = "next" in family.pretraining_heads(trunk)
    return family.is_text_to_text and has_decoder and bool(task.text_format)


def finetuning_history(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return what the next model inherits: languages, license, learning rate, and the tasks of earlier fine-tuning."""
    facts = metadata.get("corpus_facts")
    languages = facts.get("languages") if isinstance(facts, dict) else metadata.get("languages")
    inherited: dict[str, Any] = {"languages": languages} if isinstance(languages, list) and languages else {}
    inherited |= {name: metadata[name] for name in ("license", "finetuning_lr") if name in metadata}
    if "task" not in metadata and "tasks" not in metadata:
        return inherited
    before = metadata.get("data") or metadata.get("results", {}).get("task")
    return {"finetuning_history": [*metadata.get("finetuning_history", []), before], **inherited}


def load_for_tasks(
    path: Path, tasks: Sequence[TaskConfig], config: FinetuneConfig, seed: int, from_scratch: bool
) -> ModelFolder:
    """Load a model folder with the heads of tasks in place of its own, on pre-trained or on random weights.

    The heads are those of the published class for the task, so that other tools can open the saved model. Special
    tokens that the family puts around texts get ids after the vocabulary.
    """
    model_config, family = _read_config(path)
    known = family.pretraining_heads(model_config.trunk)
    is_causal = "next" in known and not model_config.trunk.is_hybrid
    if config.lm_loss_weight and (not is_causal or any(task.text_template for task in tasks)):
        raise ConfigError(f"lm_loss_weight is for a causal language model, which {family.name} is not")
    heads: dict[str, HeadConfig] = {}
    classes = family.architectures_for(model_config.trunk)
    for task in tasks:
        for name, head in task.codec.heads(family, model_config.trunk).items():
            head = add_bilstm(head, model_config.trunk, task) if config.bilstm else head
            names = next((heads for heads in classes.values() if name in heads), (name,))
            heads |= {n: head if n == name else known[n] for n in names}
    if config.lm_loss_weight:
        heads |= {"next": known["next"]}
    folder = load_model(path, heads=heads, seed=seed)
    if family.finetune_template and not folder.tokenizer.num_special_tokens_to_add():
        tokenizer = folder.tokenizer.with_template(*family.finetune_template)
        vocab_size = max(tokenizer.vocab_size, model_config.trunk.embeddings.vocab_size)
        folder = dataclasses.replace(folder, tokenizer=tokenizer, model=folder.model.resize_vocab(vocab_size, seed))
    return dataclasses.replace(folder, model=reinitialize(folder.model, seed)) if from_scratch else folder


def add_bilstm(head: HeadConfig, trunk: TrunkConfig, task: TaskConfig) -> HeadConfig:
    """Return the head of a task with a BiLSTM before it, whose two directions have the size of the trunk."""
    if not isinstance(head, ClassificationHeadConfig):
        reason = "as text" if task.text_template else "with a head of another kind"
        raise ConfigError(f"bilstm is true, but this model answers {task.task_type} {reason}: set it to false")
    pooling = "pooled" if head.pooling in ("first", "mean") else head.pooling
    return head.replace(bilstm_dim=max(trunk.dim // 2, 1), pooling=pooling)


def _encode_labeled(task: TaskConfig, examples: Examples, folder: ModelFolder, config: FinetuneConfig) -> list[Any]:
    """Encode labeled examples; raise `DataError` if a label is missing."""
    folder.tokenizer.validate()
    limit = folder.model.config.trunk.embeddings.max_len
    if config.max_len > limit:
        raise ConfigError(f"max_len {config.max_len} is longer than the model reads ({limit})")
    encoded = list(task.codec.encode(examples, folder.tokenizer, config.max_len or limit, config.truncate))
    if task.needs_labels:
        require_gold(examples)
    return encoded


def reinitialize(model: Model, seed: int) -> Model:
    """Return the same model with random weights; buffers are kept."""
    fresh = model.config.build(seed)
    for name, buffer in model.named_buffers():
        fresh.get_buffer(name).copy_(buffer)
    return fresh
