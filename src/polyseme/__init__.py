"""Polyseme: from a folder of text to a pre-trained language model, and from that model to an evaluated task model.

    import polyseme as ps
    tokenizer = ps.Tokenizer.train("wordpiece", "TEXT/", vocab_size=16_000)
    corpus = ps.prepare("TEXT/", tokenizer, out="my/corpus")
    run = ps.pretrain("bert-tiny", corpus, out="my/run", budget="20m", optimizer={"lr": 1e-3})
    model = ps.load(run.model)
    model.fill("The cat sat on the [MASK].", top_k=2)
    task = ps.finetune(run.model, "classification", train="train.tsv", dev="dev.tsv", out="my/task", seeds=3)
    ps.load(task.model).predict(["a new text"])

Dependencies are imported when a function is first called, so `import polyseme` is fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus
    from polyseme.datasets.published import PublishedTable
    from polyseme.errors import ConfigError, DataError, Interrupted, ModelError, PolysemeError, UnsupportedError
    from polyseme.evaluation.comparison.api import Comparison, PretrainComparison
    from polyseme.evaluation.search import SearchHit
    from polyseme.generation.captions import ImageCaption
    from polyseme.generation.config import GenerationConfig
    from polyseme.generation.text import GeneratedText, TranslatedText
    from polyseme.inference.base import LanguageModel
    from polyseme.inference.feature_extraction import ElmoModel
    from polyseme.inference.feature_model import FeatureModel
    from polyseme.inference.inspection.attention import Attention, AttentionMap
    from polyseme.inference.load import load
    from polyseme.inference.neural_lm import NeuralLM
    from polyseme.inference.ngram_lm import NgramLM
    from polyseme.inference.results import ChoiceResult, EncodedText, LastWordScore, MaskPrediction, TextScore
    from polyseme.inference.verify import VerifiedFolder, verify
    from polyseme.inference.word_vectors import WordVectors
    from polyseme.recipes.describe import RecipeDescription
    from polyseme.report.results import EvaluationResult, FinetuneResult, PretrainResult
    from polyseme.serve.client import RemoteModel, connect
    from polyseme.text.tokenizer import Tokenizer

__version__ = "0.1.0"

_MODULES = {
    "corpus.store": ("Corpus",),
    "datasets.published": ("PublishedTable",),
    "errors": ("ConfigError", "DataError", "Interrupted", "ModelError", "PolysemeError", "UnsupportedError"),
    "evaluation.comparison.api": ("Comparison", "PretrainComparison"),
    "evaluation.search": ("SearchHit",),
    "generation.config": ("GenerationConfig",),
    "generation.captions": ("ImageCaption",),
    "generation.text": ("GeneratedText", "TranslatedText"),
    "inference.base": ("LanguageModel",),
    "inference.feature_extraction": ("ElmoModel",),
    "inference.feature_model": ("FeatureModel",),
    "inference.inspection.attention": ("Attention", "AttentionMap"),
    "inference.load": ("load",),
    "inference.neural_lm": ("NeuralLM",),
    "inference.ngram_lm": ("NgramLM",),
    "inference.results": ("ChoiceResult", "EncodedText", "LastWordScore", "MaskPrediction", "TextScore"),
    "inference.verify": ("VerifiedFolder", "verify"),
    "inference.word_vectors": ("WordVectors",),
    "recipes.describe": ("RecipeDescription",),
    "report.results": ("EvaluationResult", "FinetuneResult", "PretrainResult"),
    "serve.client": ("RemoteModel", "connect"),
    "text.tokenizer": ("Tokenizer",),
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names}
_FUNCTIONS = (
    *("compare", "describe_recipe", "evaluate", "finetune", "predict", "prepare", "pretrain", "published_table"),
    "search",
)
_LISTS = ("list_datasets", "list_families", "list_models", "list_published_tables", "list_recipes")
__all__ = sorted([*_LAZY, *_FUNCTIONS, *_LISTS])


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name in _LAZY:
        return getattr(import_module(f"polyseme.{_LAZY[name]}"), name)
    if name in ("compress", "explain", "serve"):
        return import_module(f"polyseme.{name}")
    raise AttributeError(f"module 'polyseme' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", "__doc__"])


def prepare(
    sources: str | Path | Sequence[str | Path], tokenizer: Tokenizer, out: str | Path, **options: Any
) -> Corpus:
    """Clean, deduplicate and tokenize text into a corpus folder. A stopped run continues where it stopped.

    `sources` are files or folders of text, JSON lines, CSV, TSV, Parquet, WikiExtractor, WET or MIDI, or `python-docs`
    or `gettext`; each may end in options such as `::lang=de,weight=2,text=body`. Options: `text_column`, `split`,
    `lang`, `format`, `clean`, `dedup`, `dedup_threshold`, `skip_bad`, `allow_large`, `append`, `num_workers`,
    `dask_address`.

    >>> corpus = polyseme.prepare("text", tokenizer, out="corpus")
    >>> corpus.num_tokens > 1000
    True
    """
    from polyseme.config import override_config
    from polyseme.corpus.build.prepare import PrepareConfig
    from polyseme.corpus.build.prepare import prepare as run
    from polyseme.corpus.store import Corpus
    from polyseme.text.arguments import check_list, check_path

    source_list = [sources] if isinstance(sources, str | Path) else check_list(sources, "source")
    path = check_path(out, "the folder of a new corpus")
    run(source_list, tokenizer, path, override_config(PrepareConfig(), options))
    return Corpus.open(path)


def pretrain(
    recipe: Any = None,
    corpus: Any = None,
    out: str | Path = "",
    *,
    budget: Any = None,
    resume: bool = False,
    init_from: str | Path | None = None,
    **overrides: Any,
) -> PretrainResult:
    """Pre-train a model on a corpus.

    `recipe` is a name from `list_recipes()`, a `recipe.json`, or a `Recipe`. `budget` is a time (`20m`, `1h30m`), a
    number of steps (`500steps`) or of tokens (`1e9tokens`). `init_from` starts from a model of the same sizes, or from
    word vectors. Other keywords override fields of the recipe: `seed=1`, `optimizer={"lr": 1e-3}`,
    `objective="CausalLM"`. The recipe `best` is derived from a time, the corpus and the device.

    `resume` continues the run in `out` exactly, and needs no other arguments; different ones are an error. With a
    larger `budget`, the whole length of the run, it extends a run, also one that has ended.

    >>> run = polyseme.pretrain("bert-tiny", corpus, out="run", budget="2steps", valid_fraction=0.1)
    >>> run.num_steps, run.valid.perplexity > 1
    (2, True)
    >>> polyseme.pretrain(out="run", resume=True, budget="4steps").num_steps
    4
    """
    import time

    start_time = time.perf_counter()  # importing takes seconds, which count toward a budget in minutes
    from polyseme.errors import ConfigError
    from polyseme.recipes.launch import launch_pretraining
    from polyseme.report.results import PretrainResult
    from polyseme.text.arguments import check_path

    if not str(out):
        raise ConfigError("`out` is missing: pass the run folder to write, or to resume")
    run_path = check_path(out, "a run folder")
    corpus_path = None if corpus is None else check_path(getattr(corpus, "path", corpus), "a corpus or its folder")
    if budget not in (None, ""):
        overrides["budget"] = str(budget) if isinstance(budget, int | float) else budget
    model_path = None if init_from is None else check_path(init_from, "a model folder")
    results = launch_pretraining(recipe, corpus_path, run_path, overrides, resume, model_path, start_time)
    return PretrainResult.from_results(run_path, results)


def finetune(
    model: Any,
    task: Any,
    *,
    out: str | Path,
    train: Any = None,
    dev: Any = None,
    data: Any = None,
    seeds: int | Sequence[int] = 1,
    grid: Mapping[str, Sequence[Any]] | Sequence[str] = (),
    **options: Any,
) -> FinetuneResult:
    """Fine-tune a model on labeled examples, once per seed, and evaluate each on the dev examples.

    `model` is a model folder, a run folder, or a loaded model, which is not changed. `task` is a task such as
    `classification`, with files of `train` and `dev` examples, such as `train.csv::text=review,label=stars` (CSV, TSV,
    JSON lines, Parquet, CoNLL columns, SQuAD's JSON), or plain values; or a data set of `list_datasets()`, with its
    folder as `data`. Several tasks share one trunk: `task={"sentiment": "classification", "ner": "tagging"}`, with
    `train`, `dev` and `data` by the same names. `seeds` is their number, or a list. `grid={"lr": [1e-5, 3e-5]}` runs
    every combination and keeps the best on the dev examples. If `out` has an unfinished run, the same call resumes it.

    Without a model (None), a small network is trained over frozen features: `features` (folders of models),
    `word_vectors`, `network`, `layers`, `join_at`, `freeze_word_embeddings`, `cache_dir`. With `cross_view` (files of
    unlabeled text, or sentences as lists of words), a tagger also learns from that text. More options: `from_scratch`,
    `keep_seeds`, `keep_checkpoints`; `baselines=True` (compare with simple models; or a list of their names); for files
    `text_column`, `pair_column`, `label_column`, `header`, `skip_bad`, `strict`; `tag_decoder`; and any field of
    `FinetuneConfig` or of the task: `epochs=4, lr=3e-5`. The default learning rate depends on the size of the model.

    >>> files = {"train": "train.tsv", "dev": "dev.tsv"}
    >>> result = polyseme.finetune("run/model", "classification", **files, out="task", epochs=1.0)
    >>> sorted(result.mean)[:1], result.model.name
    (['accuracy'], 'model')
    """
    from polyseme.finetuning.api import finetune as run
    from polyseme.text.arguments import check_path

    files = {"train": train, "dev": dev, "data": data}
    path = None if model is None else check_path(getattr(model, "path", model), "a model or its folder")
    return run(path, task, check_path(out, "a run folder"), files, seeds, grid, options)


def evaluate(
    model: Any, data: Any, *, task: str = "", ensemble: bool = False, truncate: bool | None = None, **options: Any
) -> Any:
    """Evaluate a fine-tuned model on labeled examples, a file or plain values; returns an `EvaluationResult`.

    Files are read as in fine-tuning, by default with the same columns.

    `task` selects one task of a model for several, or names a data set whose dev examples are in the folder `data`.
    With `ensemble`, the probabilities of a list of models, or of all that a run kept, are averaged. Options for files:
    `text_column`, `pair_column`, `label_column`, `header`, `skip_bad`, `strict`.

    With the task `blimp` or `minimal-pairs`, `model` is a language model of any kind and `data` a folder or a file of
    minimal pairs; it returns a `MinimalPairResult`, or a list of them for a list of models. Options: `pll_metric`,
    `normalization`, `skip_bad`.

    >>> sorted(polyseme.evaluate("task/model", "dev.tsv").metrics)[:1]
    ['accuracy']
    """
    from polyseme.evaluation.minimal_pairs import MINIMAL_PAIR_TASKS, run_minimal_pairs, select_options

    options = select_options(task, options | {"ensemble": ensemble, "truncate": truncate})
    if task in MINIMAL_PAIR_TASKS:
        return run_minimal_pairs(task, model, data, **options)
    from polyseme.evaluation.api import evaluate as run
    from polyseme.finetuning.api import read_options

    ensemble, truncate = options.pop("ensemble", False), options.pop("truncate", None)
    return run(model, data, task, ensemble, truncate, read_options(options))


def predict(
    model: Any,
    data: Any,
    *,
    out: str | Path | None = None,
    task: str = "",
    ensemble: bool = False,
    truncate: bool | None = None,
    resume: bool = False,
    **options: Any,
) -> list[Any]:
    """Predict examples, a file or plain values, in their order; the options are those of `evaluate`.

    `out` is a file to write: .csv, .tsv, .jsonl or .parquet with all columns of the input followed by ours, .txt with
    the predictions alone, .conll, .json for SQuAD's script, .props for srl-eval. For a data set of
    GLUE or SuperGLUE it is a submission for the test examples. `resume` continues an interrupted run with the same
    `out`, model, data and options, and returns the predictions that were missing.

    >>> len(polyseme.predict("task/model", "dev.tsv", out="predictions.jsonl"))
    8
    """
    from polyseme.evaluation.api import predict as run
    from polyseme.finetuning.api import read_options
    from polyseme.text.arguments import check_path

    path = None if out is None else check_path(out, "a file to write")
    return run(model, data, path, task, ensemble, truncate, read_options(options), resume)


def compare(
    runs: Sequence[str | Path] | Mapping[str, Sequence[str | Path]],
    *,
    out: str | Path | None = None,
    num_resamples: int = 1000,
) -> Comparison | PretrainComparison:
    """Compare runs of one kind: fine-tuning runs and benchmarks, or pre-training runs.

    Fine-tuning runs of one task get 95 % intervals and two-sided paired tests of the best against the others, by the
    bootstrap. Pre-training runs get losses, bits per character, costs, and curves against steps, tokens, operations and
    minutes. `out` is a folder to write, or a plot of fine-tuning runs: .png, .svg or .pdf.

    Fine-tuning runs of models that differ in their pre-training seed are a group, by name: `{"bert": ["bert-0/cola",
    "bert-1/cola"], …}`. Groups are compared by the multi-bootstrap over pre-training seeds and examples (Sellam et al.
    2022).

    >>> comparison = polyseme.compare(["run"])
    >>> comparison.runs[0].name, comparison.runs[0].num_steps
    ('run', 4)
    """
    from polyseme.evaluation.comparison.api import compare as run
    from polyseme.text.arguments import check_list, check_path

    path = None if out is None else check_path(out, "a folder or plot to write")
    if isinstance(runs, Mapping):
        groups = {name: [Path(folder) for folder in folders] for name, folders in runs.items()}
        return run(groups, path, num_resamples)
    return run([runs] if isinstance(runs, str | Path) else check_list(runs, "run"), path, num_resamples)


def published_table(name: str, runs: str | Path | Sequence[str | Path] = ()) -> PublishedTable:
    """Return a table of published results, with our own as `measured`.

    `runs` are folders of fine-tuning runs, benchmarks and studies, or JSON files: what `polyseme evaluate` printed, or
    a row such as `{"system": "mine", "split": "test", "values": {"cola": 38.0}}`. Our values are means over seeds; each
    row says whether they were measured on `dev` or `test`.

    >>> table = polyseme.published_table("bert-miniatures")
    >>> table.rows[-1].system, table.rows[-1].values["cola"], table.split
    ('BERT-medium', 38.0, 'test')
    """
    from polyseme.datasets.published import published_table as find
    from polyseme.text.arguments import check_list, check_path, check_text

    run_list = [runs] if isinstance(runs, str | Path) else check_list(runs, "run")
    table, paths = find(check_text(name, "name")), [check_path(run, "the path of a run") for run in run_list]
    if not paths:
        return table
    from polyseme.evaluation.published import add_results

    return add_results(table, paths)


def search(
    model: Any, texts: Any, query: str | Sequence[str], top_k: int = 10, *, vectors: str | Path | None = None
) -> Any:
    """Find the texts closest in meaning to a query: a list of `SearchHit`, or for several queries a list of such lists.

    `texts` are a file, such as `products.csv::text=title`, or a list of texts. The search is exact (cosine similarity
    of `embed`'s vectors) and its memory bounded. `vectors` is the `.npz` file that `polyseme embed` wrote for the same
    file and model, to search again fast.

    >>> hits = polyseme.search("run/model", ["the cat sat", "a dog ran"], "the cat sat", top_k=1)
    >>> hits[0].text, hits[0].row, round(hits[0].score, 3)
    ('the cat sat', 1, 1.0)
    """
    from polyseme.evaluation.search import open_texts
    from polyseme.evaluation.search import search as run
    from polyseme.inference.load import load
    from polyseme.text.arguments import check_path, check_texts

    loaded, queries = load(model), [query] if isinstance(query, str) else check_texts(query, "query")
    file = None if vectors is None else check_path(vectors, "a file of vectors")
    hits = run(loaded, open_texts(texts, loaded.path), queries, top_k, file)
    return hits[0] if isinstance(query, str) else hits


def list_recipes(family: str | None = None) -> dict[str, str]:
    """The names of the pre-training recipes, with a description of each.

    >>> sorted(polyseme.list_recipes(family="roberta"))
    ['roberta-base', 'roberta-large', 'roberta-tiny']
    """
    from polyseme.errors import ConfigError, suggest
    from polyseme.recipes import NGRAM_RECIPES, RECIPES

    makers: dict[str, Any] = {**RECIPES, **NGRAM_RECIPES}
    families = {name: make().family for name, make in makers.items()}
    if family is not None and family not in families.values():
        raise ConfigError(f"there is no recipe of the family {family!r}; {suggest(family, families.values())}")
    return {
        name: (make.__doc__ or "").split("\n")[0]
        for name, make in makers.items()
        if family is None or families[name] == family
    }


def describe_recipe(recipe: Any) -> RecipeDescription:
    """Return what a recipe costs: parameters, memory, tokens, floating-point operations; nothing is allocated.

    `recipe` is a name from `list_recipes()`, a `recipe.json`, or a `Recipe`. Weights, gradients and optimizer state are
    exact. Activations are an estimate for a full micro-batch on the device that this machine trains on.

    >>> description = polyseme.describe_recipe("bert-large")
    >>> description.num_parameters, f"{description.flops:.1e}"
    (335141888, '8.2e+19')
    """
    from polyseme.recipes.describe import describe_recipe as describe

    return describe(recipe)


def list_families() -> dict[str, str]:
    """The names of the architectures, with the paper that each follows.

    >>> polyseme.list_families()["bert"]
    'Devlin et al. 2019, BERT: Pre-training of Deep Bidirectional Transformers'
    """
    from polyseme.families import ALL_FAMILIES

    return {name: family.paper for name, family in ALL_FAMILIES.items()}


def list_models() -> dict[str, str]:
    """The names of the models that come with the package, with a description of each; `load` takes the names.

    >>> "mini" in polyseme.list_models()
    True
    """
    from polyseme.io.json import read_json_object
    from polyseme.io.model_path import list_bundled

    records = {folder.name: read_json_object(folder / "polyseme.json") for folder in list_bundled()}
    return {name: str(record.get("metadata", {}).get("description", "")) for name, record in records.items()}


def list_datasets() -> dict[str, str]:
    """The names of the data sets, with a description of each.

    >>> "glue/sst-2" in polyseme.list_datasets()
    True
    """
    from polyseme.datasets import catalog

    return {name: dataset.description for name, dataset in catalog.DATASETS.items()}


def list_published_tables() -> dict[str, str]:
    """The names of the tables of published results, with a description of each.

    >>> polyseme.list_published_tables()["glue-ensembles"][:9]
    'GLUE test'
    """
    from polyseme.datasets.published import load_published_tables

    return {name: table.description for name, table in load_published_tables().items()}
