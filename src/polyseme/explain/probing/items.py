"""What probes predict: labeled words, pairs of words, texts and pairs of texts, read from the files of tasks."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from polyseme.datasets.base import NamedDataset
from polyseme.datasets.catalog import DATASETS
from polyseme.errors import ConfigError, DataError, UnsupportedError, suggest
from polyseme.explain.probing.dependencies import DependencyTree, read_trees
from polyseme.io.compression import strip_compression
from polyseme.tasks import TASKS
from polyseme.tasks.base import TaskConfig, Words
from polyseme.tasks.readers.rows import read_lines

# How the vectors of an item's spans become features: see `combine_vectors`.
Combination = Literal["single", "concat", "compare", "pair"]
T = TypeVar("T")
DATASETS_OF_ENTITIES = ("wnut-17", "conll-2003", "ner")
DEV_SHARE = 0.2  # of a single file
HELD_OUT_SHARE = 0.1  # of the training part, to choose the strength of L2


@dataclass(frozen=True)
class LabeledItem:
    """A label, and the spans that it belongs to: (sentence, first word, end), one or two.

    `type` is what the control task labels and the lookup baseline knows: the word, or the text. Items of one `group`, a
    sentence or a pair of texts, stay together when data is split and resampled.
    """

    spans: tuple[tuple[int, int, int], ...]
    label: str
    type: Hashable
    group: int


@dataclass(frozen=True, eq=False)
class ProbeData:
    """Sentences and the items of a task; `num_train_groups` is None if no dev file decides what is held out."""

    name: str
    description: str
    combination: Combination
    unit: str  # what an item is, in the plural
    sentences: Sequence[Words]
    items: Sequence[LabeledItem]
    num_train_groups: int | None

    @property
    def labels(self) -> list[str]:
        """The names of the labels, in alphabetical order."""
        return sorted({example.label for example in self.items})

    @property
    def has_outside(self) -> bool:
        """Whether items may have no label of interest (O), so that F1 is more telling than accuracy."""
        return "O" in self.labels

    @property
    def metric(self) -> str:
        """The name of the metric."""
        return "f1" if self.has_outside else "accuracy"

    def label_ids(self) -> np.ndarray:
        """Return the index of each item's label, [items]."""
        index = {label: i for i, label in enumerate(self.labels)}
        return np.array([index[example.label] for example in self.items])

    def groups(self) -> np.ndarray:
        """Return the group of each item, [items]."""
        return np.array([example.group for example in self.items])


@dataclass(frozen=True, eq=False)
class ProbeSplit:
    """Indices of the items to train on, in random order, to choose the strength of L2 with, and to score."""

    train: np.ndarray
    held_out: np.ndarray
    dev: np.ndarray

    @property
    def fitted(self) -> np.ndarray:
        """All items but those of dev."""
        return np.concatenate([self.train, self.held_out])


def split_items(data: ProbeData, seed: int) -> ProbeSplit:
    """Split items by their groups."""
    groups = data.groups()
    num_groups = int(groups.max()) + 1
    indices = []
    for part in split_groups(data.name, num_groups, data.num_train_groups, seed):
        rank = np.full(num_groups, -1)
        rank[part] = np.arange(len(part))
        members = np.flatnonzero(rank[groups] >= 0)
        indices.append(members[np.argsort(rank[groups[members]], kind="stable")])
    return ProbeSplit(*indices)


def split_groups(
    name: str, num_groups: int, num_train_groups: int | None, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the groups to train on, to hold out and to score.

    The dev file, or 20 % of all groups, is scored, and 10 % of the rest is held out.
    """
    rng = np.random.default_rng([seed, 0])
    if num_train_groups is None:
        order = rng.permutation(num_groups)
        num_dev = max(round(DEV_SHARE * num_groups), 1)
        train, dev = order[num_dev:], order[:num_dev]
    else:
        train, dev = rng.permutation(num_train_groups), np.arange(num_train_groups, num_groups)
    num_held_out = max(round(HELD_OUT_SHARE * len(train)), 1)
    parts = train[num_held_out:], train[:num_held_out], dev
    if not all(map(len, parts)):
        raise DataError(f"{name} has {num_groups} sentences or texts: too few to split into three parts")
    return parts


# ------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class ProbeTask:
    """How the items of a task are read: from a file, or from a folder with a train and a dev file."""

    description: str
    unit: str
    combination: Combination
    read_file: Callable[[Path], list[Any]]  # a list of groups
    find_files: Callable[[Path], tuple[Path, Path]]
    to_items: Callable[[Any], tuple[list[Words], list[LabeledItem]]]  # of one group, numbered from 0


def read_probe_data(name: str, source: Path | str, dev: Path | str | None, max_examples: int) -> ProbeData:
    """Read the items of a task from a file, two files, or a folder with a train and a dev file.

    At most `max_examples` items are read, and a quarter as many of the dev file, in whole sentences that are drawn at
    random.
    """
    task = find_probe_task(name)
    files = find_probe_files(source, dev, max_examples, task.find_files)
    sentences, items, group_counts = list[Words](), list[LabeledItem](), list[int]()
    combination = task.combination
    for file, limit in files:
        first_group = sum(group_counts)
        groups = [task.to_items(group) for group in task.read_file(file)]
        groups = sample_groups(groups, [len(group_items) for _, group_items in groups], limit)
        for number, (group_sentences, group_items) in enumerate(groups, first_group):
            items += [_renumber(example, len(sentences), number) for example in group_items]
            sentences += group_sentences
        group_counts.append(len(groups))
    if any(len(example.spans) == 2 for example in items) and combination == "single":
        combination = "pair"
    num_train_groups = group_counts[0] if len(files) > 1 else None
    data = ProbeData(name, task.description, combination, task.unit, sentences, items, num_train_groups)
    if len(data.labels) < 2:
        raise DataError(f"{files[0][0]} has {len(data.labels)} label: a probe needs two or more to tell apart")
    return data


def find_probe_files(
    source: Path | str, dev: Path | str | None, max_examples: int, find_files: Callable[[Path], tuple[Path, Path]]
) -> list[tuple[Path, int]]:
    """Return the train file and, if there is one, the dev file, each with the largest number of items to read."""
    if max_examples < 10:
        raise ConfigError(f"`max_examples` is {max_examples}, expected 10 or more")
    path, files = Path(source), [Path(each) for each in (source, dev) if each is not None]
    if path.is_dir():
        if dev is not None:
            raise ConfigError(f"{path} is a folder with a train and a dev file: `dev` has no effect")
        files = list(find_files(path))
    for file in files:
        if not Path(str(file).partition("::")[0]).is_file():
            raise DataError(f"there is no file {file}")
    return list(zip(files, (max_examples, max(max_examples // 4, 10))))


def sample_groups(groups: Sequence[T], sizes: Sequence[int], max_examples: int) -> list[T]:
    """Return random groups with at most `max_examples` items, in their order in the file; groups without items go."""
    filled = [i for i, size in enumerate(sizes) if size]
    order = np.random.default_rng(0).permutation(len(filled))
    totals = np.cumsum([sizes[filled[i]] for i in order])
    return [groups[filled[i]] for i in sorted(order[: max(int((totals <= max_examples).sum()), 1)])]


def _renumber(example: LabeledItem, first_sentence: int, group: int) -> LabeledItem:
    spans = tuple((first_sentence + sentence, first, end) for sentence, first, end in example.spans)
    return replace(example, spans=spans, group=group)


def find_probe_task(name: str) -> ProbeTask:
    """Return a task of this module, of a named data set, or of fine-tuning."""
    if name in PROBE_TASKS:
        return PROBE_TASKS[name]
    if name in DATASETS:
        dataset = DATASETS[name]
        return _labeled_task(dataset.description, dataset.task, (dataset,))
    if name in TASKS:
        return _labeled_task(f"{name} data", TASKS[name], ())
    raise ConfigError(f"there is no probing task {name!r}; {suggest(name, [*PROBE_TASKS, *TASKS, *DATASETS])}")


def _labeled_task(description: str, task: type[TaskConfig], datasets: Sequence[NamedDataset]) -> ProbeTask:
    """Return the probing task of data that fine-tuning reads: one label per word, or per text or pair of texts."""

    def read_file(path: Path) -> list[Any]:
        if len(datasets) == 1:
            return datasets[0].read_split(path)
        return task.read(path)

    def find_files(folder: Path) -> tuple[Path, Path]:
        for dataset in datasets:
            place = folder / dataset.folder if (folder / dataset.folder).is_dir() else folder
            train, dev = (dataset.find_file(place, split) for split in ("train", "dev"))
            if train.is_file():
                return train, dev
        expected = " or ".join(sorted({name for d in datasets for name in d.file_names("train")})) or "a file"
        raise DataError(f"{folder} is a folder without {expected}: name the files, as `data` and `dev`")

    def to_items(example: Any) -> tuple[list[Words], list[LabeledItem]]:
        sequences, gold = task().word_sequences(example), example.gold
        if len(sequences) != 1 or not isinstance(gold, tuple | str):
            problem = f"{task.task_type} data has neither one label per word nor one per text or pair of texts"
            raise UnsupportedError(f"{problem}, which probes need; supported: {', '.join(PROBE_TASKS)}, and such data")
        texts = list(sequences[0])
        if isinstance(gold, tuple):
            pairs = enumerate(zip(texts[0], gold))
            return texts, [LabeledItem(((0, i, i + 1),), tag, word, 0) for i, (word, tag) in pairs]
        spans = tuple((i, 0, len(words)) for i, words in enumerate(texts))
        return texts, [LabeledItem(spans, gold, tuple(texts), 0)]

    return ProbeTask(description, "labels", "single", read_file, find_files, to_items)


def find_treebank(folder: Path) -> tuple[Path, Path]:
    """Return the train and dev files of a Universal Dependencies folder."""
    files = []
    for split in ("train", "dev"):
        matches = sorted(folder.glob(f"*-ud-{split}*.conllu*"))
        if len(matches) != 1:
            raise DataError(f"{folder} has {len(matches)} files *-ud-{split}*.conllu*, expected one: name the files")
        files.append(matches[0])
    return files[0], files[1]


def _tag_items(tree: DependencyTree) -> tuple[list[Words], list[LabeledItem]]:
    pairs = enumerate(zip(tree.words, tree.tags))
    return [tree.words], [LabeledItem(((0, i, i + 1),), tag, word, 0) for i, (word, tag) in pairs]


def _relation_items(tree: DependencyTree) -> tuple[list[Words], list[LabeledItem]]:
    """Return an item for each word but the root: its relation to its head, read from their two vectors."""
    arcs = [(i, int(head)) for i, head in enumerate(tree.heads) if head >= 0]
    return [tree.words], [
        LabeledItem(((0, i, i + 1), (0, head, head + 1)), tree.relations[i], tree.words[i], 0) for i, head in arcs
    ]


def _read_wic(path: Path) -> list[tuple[list[str], str, str]]:
    """Read the lines of WiC with their labels and locations."""
    name = strip_compression(path).name
    if ".data." not in name:
        raise DataError(f"{path}: WiC has the files NAME.data.txt and NAME.gold.txt: name the first")
    lines, labels = read_lines(path), read_lines(path.with_name(path.name.replace(".data.", ".gold.")))
    if len(lines) != len(labels):
        raise DataError(f"{path} has {len(lines)} lines, but its labels {len(labels)}")
    return [(line.split("\t"), label, f"{path}:{n}") for n, (line, label) in enumerate(zip(lines, labels), 1)]


def _wic_items(row: tuple[list[str], str, str]) -> tuple[list[Words], list[LabeledItem]]:
    """Return the item of a pair of sentences: is a word used in the same meaning in both?"""
    cells, label, location = row
    places = cells[2].split("-") if len(cells) == 5 else []
    sentences: list[Words] = [tuple(cell.split()) for cell in cells[3:5]]
    is_valid = len(places) == 2 and all(p.isdecimal() and int(p) < len(s) for p, s in zip(places, sentences))
    if not is_valid or label not in ("T", "F"):
        raise DataError(
            f"{location}: not a word, its part of speech, its two positions and two sentences, or no T or F"
        )
    spans = tuple((i, int(place), int(place) + 1) for i, place in enumerate(places))
    return sentences, [LabeledItem(spans, label, cells[0], 0)]


def _find_wic(folder: Path) -> tuple[Path, Path]:
    folder = folder / "wic" if (folder / "wic").is_dir() else folder
    train, dev = (folder / split / f"{split}.data.txt" for split in ("train", "dev"))
    return train, dev


_ENTITIES = _labeled_task("named entities", TASKS["tagging"], [DATASETS[name] for name in DATASETS_OF_ENTITIES])
PROBE_TASKS: dict[str, ProbeTask] = {
    "ud-pos": ProbeTask("universal parts of speech", "words", "single", read_trees, find_treebank, _tag_items),
    "ud-deprel": ProbeTask(
        "the relation of a word to its head", "arcs", "concat", read_trees, find_treebank, _relation_items
    ),
    "ner": replace(_ENTITIES, unit="words"),
    "wic": ProbeTask(
        "whether a word has the same meaning in two sentences", "pairs", "compare", _read_wic, _find_wic, _wic_items
    ),
}
