"""Fuzzing with hypothesis: every reader and every JSON file of ours either reads a changed file or raises one line.

`test_fuzz_readers.py` has more cases of the formats of text, by plain random changes.
"""

from __future__ import annotations

import copy
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import polyseme
from polyseme.corpus.store import Corpus, memmap_array, verify_corpus
from polyseme.errors import PolysemeError
from polyseme.evaluation.comparison.finetuning_runs import read_run
from polyseme.evaluation.prompting import PromptTemplate
from polyseme.finetuning.config import FinetuneConfig
from polyseme.io.json import read_json
from polyseme.ngram.arpa import read_arpa
from polyseme.tasks import TASKS
from polyseme.text.importers import import_vocabulary
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.checkpoint import load_checkpoint
from polyseme.train.recipe import Recipe
from polyseme.word_vectors.files import read_vectors
from tests.corpus.samples import FILES

QUICK, LONG = 12, 1_200  # cases of each target
VERSIONS = [pytest.param(QUICK, id="quick"), pytest.param(LONG, id="long", marks=pytest.mark.slow)]
SETTINGS = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck), print_blob=False
)
NASTY: list[Any] = [
    *(None, True, [], {}, "", "x", "\x00", "\ud800", "x" * 5_000, -1, 0, 1, 3, 2**31, 2**63, 2**64, 10**30, 10**400),
    *(0.5, -0.0, 1e308, float("nan"), float("inf"), [None], [[]], {"kind": "x"}, {"kind": []}, ["x", 1], {"": {}}),
]
TOKENS = [
    *(b"\x00", b"\xff", b"\n", b"\r\n", b"\t", b" ", b'"', b"{", b"[", b"]", b"}", b",", b":", b"-", b"nan", b"inf"),
    *(b"-1", b"1e999", b"99999999999999999999", b"\xef\xbb\xbf", b"\xff\xfe", b"\\ud800", b"*", b"(0", b"0)", b"B-X"),
]


@st.composite
def changed_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes with one to four changes: flipped bits, inserted tokens, removed, repeated or cut off parts."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(changed)))
        size = draw(st.sampled_from((1, 2, 8, 64)))
        match draw(st.integers(0, 4)):
            case 0 if at < len(changed):
                changed[at] ^= 1 << draw(st.integers(0, 7))
            case 1:
                changed[at:at] = draw(st.sampled_from(TOKENS) | st.binary(max_size=8))
            case 2:
                del changed[at : at + size]
            case 3:
                changed[at:at] = changed[at : at + size] * draw(st.integers(1, 3))
            case _:
                del changed[at:]
    return bytes(changed)


@st.composite
def changed_json(draw: st.DrawFn, value: Any) -> Any:
    """JSON in which up to three values are replaced, removed or repeated."""
    changed = json.loads(json.dumps(value))
    for _ in range(draw(st.integers(1, 3))):
        parent, key, node = None, None, changed
        while isinstance(node, dict | list) and node and (parent is None or draw(st.integers(0, 4))):
            parent, key = node, draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
            node = node[key]
        replacement = copy.deepcopy(draw(st.sampled_from(NASTY)))
        if parent is None:
            return replacement
        match draw(st.integers(0, 3)):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, dict):
                parent[draw(st.sampled_from(["kind", "x", "", "config", "sha256"]))] = replacement
            case _:
                parent[key] = replacement
    return changed


def check(read: Callable[[], object]) -> bool:
    """Return whether a file was read; any error must be ours and have one line."""
    try:
        read()
    except PolysemeError as error:
        message = str(error)
        assert message and "\n" not in message and len(message) < 3_000, message[:500]
        return False
    return True


def fuzz(num_cases: int, strategy: st.SearchStrategy[Any], run: Callable[[Any], bool]) -> None:
    """Check that a reader survives, and that it neither reads everything nor nothing at all by accident."""
    outcomes = []
    settings(SETTINGS, max_examples=num_cases)(given(strategy)(lambda case: outcomes.append(run(case))))()
    assert len(outcomes) >= num_cases // 2 and not all(outcomes)


# --- files that are read as bytes ------------------------------------------------------------------------------------

TASK_FILES: dict[str, tuple[str, str]] = {
    "classification": ("a.tsv", "text\tlabel\nthe cat\tland\nthe fish\twater\n"),
    "classification of JSON": ("a.jsonl", '{"text": "a", "label": "b"}\n{"text": "c", "label": "d"}\n'),
    "classification of CSV": ("a.csv", 'text,label\n"the, cat",land\nfish,water\n'),
    "pair_classification": ("a.tsv", "text\tpair\tlabel\na\tb\tyes\nc\td\tno\n"),
    "regression": ("a.tsv", "text\tlabel\na\t1.5\nb\t-2\n"),
    "tagging": ("a.conll", "the\tO\ncat\tB-A\n\ndog\tB-A\n"),
    "multiple_choice": ("a.jsonl", '{"text": "a", "choices": ["b", "c"], "label": 1}\n'),
    "extractive_qa": (
        "a.json",
        '{"version": "2.0", "data": [{"title": "t", "paragraphs": [{"context": "the cat", "qas": [{"id": "1", '
        '"question": "who?", "is_impossible": false, "answers": [{"text": "cat", "answer_start": 4}]}]}]}]}',
    ),
    "coreference": (
        "a.conll",
        "#begin document (a); part 000\na 0 0 the DT * - - - - * (0\na 0 1 cat NN * - - - - * 0)\n\n#end document\n",
    ),
    "semantic_roles": ("a.txt", "the - (A0*\ncat - *)\nsees see (V*)\n"),
}


@pytest.mark.parametrize("num_cases", VERSIONS)
@pytest.mark.parametrize("case", TASK_FILES)
def test_examples(case, num_cases, tmp_path):
    name, content = TASK_FILES[case]
    task = TASKS[case.split()[0]]
    path = tmp_path / name
    path.write_text(content)
    assert check(lambda: task.read(path)), "the unchanged file is read"

    def run(changed: bytes) -> bool:
        path.write_bytes(changed)
        return check(lambda: task.read(path))

    fuzz(num_cases, changed_bytes(content.encode()), run)


ARPA = "\\data\\\nngram 1=4\nngram 2=1\n\n\\1-grams:\n-1.0\t<unk>\n-99\t<s>\t-0.3\n-0.5\t</s>\n-0.7\tcat\t-0.1\n\n"
ARPA += "\\2-grams:\n-0.2\t<s> cat\n\n\\end\\\n"
VOCABULARY = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s"]) + "\n"
BINARY = b"2 2\ncat " + struct.pack("<2f", 1, 2) + b"dog " + struct.pack("<2f", 3, 4)
BINARY_READERS: dict[str, tuple[str, bytes, Callable[[Path], object]]] = {
    "arpa": ("a.arpa", ARPA.encode(), read_arpa),
    "vectors": ("v.txt", b"2 2\ncat 1 2\ndog 3 4\n", read_vectors),
    "binary vectors": ("v.bin", BINARY, read_vectors),
    "vocab.txt": ("vocab.txt", VOCABULARY.encode(), lambda path: import_vocabulary([path])),
}


@pytest.mark.parametrize("num_cases", VERSIONS)
@pytest.mark.parametrize("case", BINARY_READERS)
def test_files(case, num_cases, tmp_path):
    name, content, read = BINARY_READERS[case]
    path = tmp_path / name
    path.write_bytes(content)
    assert check(lambda: read(path)), "the unchanged file is read"

    def run(changed: bytes) -> bool:
        path.write_bytes(changed)
        return check(lambda: read(path))

    fuzz(num_cases, changed_bytes(content), run)


@pytest.mark.parametrize("num_cases", VERSIONS)
@pytest.mark.parametrize("format_name", FILES)
def test_sources(format_name, num_cases, tmp_path):
    """Text of every format, through the vocabulary trainer, which reads all of it."""
    name, content = FILES[format_name]
    path = tmp_path / name

    def run(changed: bytes) -> bool:
        path.write_bytes(changed)
        return check(lambda: Tokenizer.train("wordpiece", path, 200, format=format_name))

    fuzz(max(num_cases // 4, QUICK), changed_bytes(content), run)


# --- JSON files of ours, and weight files, of folders without hashes --------------------------------------------------


def without_hashes(folder: Path, target: Path) -> Path:
    """Copy a folder without its hashes, so that the parsers behind them are tested."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("SHA256SUMS", "tensorboard", "checkpoints"))
    return target


MODEL_FILES = ["config.json", "polyseme.json", "tokenizer.json", "tokenizer_config.json"]


def use_model(folder: Path) -> None:
    """Load a model and use it."""
    polyseme.load(folder, device="cpu").embed(["the cat sees the dog"])


@pytest.mark.parametrize("num_cases", VERSIONS)
@pytest.mark.parametrize("file", MODEL_FILES)
@pytest.mark.parametrize("family", ["bert", "t5"])
def test_json_of_models(family, file, num_cases, tiny_folders, tmp_path):
    folder = without_hashes(tiny_folders[family], tmp_path / "model")
    path = folder / file
    if not path.exists():
        pytest.skip(f"{family} has no {file}")

    def run(changed: Any) -> bool:
        path.write_text(json.dumps(changed))
        return check(lambda: use_model(folder))

    fuzz(num_cases, changed_json(json.loads(path.read_text())), run)


@pytest.mark.parametrize("num_cases", VERSIONS)
@pytest.mark.parametrize("family", ["bert", "gpt2", "elmo", "word2vec"])
def test_configs_of_other_tools(family, num_cases, tiny_folders, tmp_path):
    folder = without_hashes(tiny_folders[family], tmp_path / "model")
    if family in ("bert", "gpt2"):
        (folder / "polyseme.json").unlink()
    path = folder / "config.json"

    def run(changed: Any) -> bool:
        path.write_text(json.dumps(changed))
        return check(lambda: use_model(folder))

    fuzz(num_cases, changed_json(json.loads(path.read_text())), run)


@pytest.mark.parametrize("num_cases", VERSIONS)
def test_weights(num_cases, tiny_folders, tmp_path):
    folder = without_hashes(tiny_folders["bert"], tmp_path / "model")
    path = folder / "model.safetensors"
    content = path.read_bytes()
    size = 8 + struct.unpack("<Q", content[:8])[0]

    def run(changed: bytes) -> bool:
        path.write_bytes(changed + content[size:])
        return check(lambda: use_model(folder))

    fuzz(num_cases, changed_bytes(content[:size]), run)


@pytest.mark.parametrize("num_cases", VERSIONS)
def test_json_of_corpora(num_cases, project, tmp_path):
    """A manifest whose hash is right: only a hostile author has that."""
    folder = shutil.copytree(project / "corpus-bert", tmp_path / "corpus")
    path = folder / "manifest.json"

    def run(changed: Any) -> bool:
        path.write_text(json.dumps(changed))
        return check(lambda: (verify_corpus(folder), Corpus.open(folder)))

    fuzz(num_cases, changed_json(json.loads(path.read_text())), run)


@pytest.mark.parametrize("num_cases", VERSIONS)
def test_arrays_of_corpora(num_cases, project, tmp_path):
    """Without its hashes, which would notice every change."""
    path = tmp_path / "tokens.npy"
    content = (project / "corpus-bert/shard-00000.tokens.npy").read_bytes()

    def run(changed: bytes) -> bool:
        path.write_bytes(changed + content[128:])
        return check(lambda: memmap_array(path))

    fuzz(num_cases, changed_bytes(content[:128]), run)


@pytest.mark.parametrize("num_cases", VERSIONS)
def test_checkpoints(num_cases, project, tmp_path):
    folder = shutil.copytree(project / "run-bert/checkpoints", tmp_path / "checkpoints")
    steps = sorted(folder.glob("step-*"))
    for step in steps[:-1]:
        shutil.rmtree(step)
    path = steps[-1] / "state.json"

    def run(changed: Any) -> bool:
        path.write_text(json.dumps(changed))
        return check(lambda: load_checkpoint(folder))

    fuzz(num_cases, changed_json(json.loads(path.read_text())), run)


@pytest.mark.parametrize("num_cases", VERSIONS)
@pytest.mark.parametrize("file", ["results.json", "predictions.json"])
def test_results(file, num_cases, project, tmp_path):
    folder = without_hashes(project / "run-classification", tmp_path / "run")
    path = folder / file

    def run(changed: Any) -> bool:
        path.write_text(json.dumps(changed))
        return check(lambda: read_run(folder))

    fuzz(num_cases, changed_json(json.loads(path.read_text())), run)


CONFIGS: dict[str, tuple[Callable[[Any], object], Callable[[], Any]]] = {
    "recipe": (
        lambda value: Recipe.from_json(value).check().model_config(320),
        lambda: polyseme.recipes.RECIPES["bert-tiny"]().to_json(),
    ),
    "finetuning": (FinetuneConfig.from_json, lambda: FinetuneConfig().to_json()),
    "prompt": (PromptTemplate.from_json, lambda: {"template": "{text}"}),
    **{f"task {name}": (task.from_json, lambda task=task: task().to_json()) for name, task in TASKS.items()},
}


@pytest.mark.parametrize("num_cases", VERSIONS)
@pytest.mark.parametrize("case", CONFIGS)
def test_configs(case, num_cases):
    parse, build = CONFIGS[case]
    fuzz(num_cases, changed_json(build()), lambda changed: check(lambda: parse(changed)))


@pytest.mark.parametrize("num_cases", VERSIONS)
def test_json_text(num_cases, tmp_path):
    path = tmp_path / "a.json"

    def run(changed: bytes) -> bool:
        path.write_bytes(changed)
        return check(lambda: read_json(path))

    fuzz(num_cases, changed_bytes(b'{"a": [1, -2.5e3, "x\\u00e9", null, true], "b": {"c": {}}}'), run)


@example("[" * 100_000)
@example('{"a":' * 100_000)
@example("9" * 5_000)
@settings(SETTINGS, max_examples=50)
@given(st.text(alphabet='[]{}",:0123456789-+.eE \\untrlfaseNI', max_size=200))
def test_settings_from_text(text):
    """`path=value` of the command line."""
    check(lambda: FinetuneConfig().with_override("optimizer.lr", text))
    check(lambda: FinetuneConfig().with_override("epochs", text))
