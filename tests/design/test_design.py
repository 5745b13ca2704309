"""Check the rules of the code base: import order, sizes, what a bare import loads. Pages are in test_pages.py."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from polyseme.families import FAMILIES

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "polyseme"
LONGEST = 500

# Every package and what it may import: whatever stands on a line above its own. There is no exception.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "progress", "logs"),
    ("config", "io"),
    ("report", "rng"),
    ("nn",),
    ("families", "corpus.sources"),
    ("text",),
    ("corpus", "weights"),
    ("objectives", "word_vectors"),
    ("train",),
    ("generation",),
    ("ngram", "tasks"),
    ("recipes", "datasets"),
    ("inference",),
    ("finetuning",),
    ("evaluation",),
    ("__init__",),
    ("compress", "explain"),
    ("pipelines",),
    ("cli",),
)
LEVEL = {unit: level for level, units in enumerate(LAYERS) for unit in units}

HEAVY = {
    *("torch", "torch._dynamo", "numpy", "scipy", "pandas", "sklearn", "matplotlib", "tensorboard", "transformers"),
    *("sentence_transformers", "tokenizers", "safetensors", "sentencex", "huggingface_hub"),
    *(
        "pyarrow",
        "py3langid",
        "sentencepiece",
        "distributed",
        "dask",
        "triton",
        "mido",
        "sacrebleu",
        "rouge_score",
        "h5py",
    ),
}


# ----------------------------------------------------------------------------------------- imports and code


def imports(source: str) -> Iterator[str]:
    """Modules of ours that a source imports, in functions too; what only a type checker reads is left out."""
    tree = ast.parse(source)
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are written in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "polyseme":
                yield name.removeprefix("polyseme").removeprefix(".")


def forbidden(unit: str, source: str) -> list[str]:
    """Imports that the layer of a unit does not allow; `from polyseme import load` is one of `__init__`."""
    found = []
    for name in imports(source):
        target = unit_of_module(name)
        if target not in LEVEL:
            target = "__init__"
        if target != unit and LEVEL[target] >= LEVEL[unit]:
            found.append(name or "polyseme")
    return found


def unit_of(path: Path) -> str:
    return unit_of_module(".".join(path.relative_to(PACKAGE).with_suffix("").parts))


def unit_of_module(name: str) -> str:
    """The first part of a module's name; the sources of a corpus are below tokenizers, the rest above."""
    return "corpus.sources" if name.startswith("corpus.sources") else name.split(".")[0]


def test_imports_go_one_way():
    wrong = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        unit = unit_of(path)
        assert unit in LEVEL, f"{unit} is new: give it a place in LAYERS"
        if found := forbidden(unit, path.read_text(encoding="utf-8")):
            wrong[str(path.relative_to(ROOT))] = found
    assert not wrong


@pytest.mark.parametrize(
    "unit,source",
    [
        ("nn", "from polyseme.families import FAMILIES"),
        ("nn", "def f():\n    import polyseme.train.loop"),
        ("text", "from polyseme.corpus import store"),
        ("text", "from polyseme.corpus.store import Corpus"),
        ("train", "from polyseme.finetuning.finetune import finetune"),
        ("weights", "from polyseme import load"),
        ("tasks", "import polyseme"),
        ("report", "from polyseme.cli import output"),
    ],
)
def test_a_wrong_arrow_is_seen(unit, source):
    assert forbidden(unit, source)


def test_what_only_a_type_checker_reads_is_no_arrow():
    source = "if TYPE_CHECKING:\n    from polyseme.corpus.store import Corpus\n"
    source += "from polyseme.io.json import write_json"
    assert not forbidden("text", source)


def test_benchmarks_import_what_is_there():
    """They are not run by tests, so a name that has moved would be noticed late."""
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("polyseme"):
                module = importlib.import_module(node.module)
                for name in node.names:
                    there = hasattr(module, name.name) or find_spec(f"{node.module}.{name.name}")
                    assert there, f"{path.name} imports {name.name} from {node.module}"


def library_files() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).parts[0] != "cli"]


def test_library_code_logs_and_never_prints():
    for path in library_files():
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert not [call.lineno for call in calls if ast.unparse(call.func) in ("print", "typer.echo")], path


def test_messages_of_the_library_name_no_flag():
    """An error or a log message speaks of fields; the command line adds its flags."""
    for path in library_files():
        for node in ast.walk(ast.parse(path.read_text())):
            is_message = isinstance(node, ast.Raise) or (
                isinstance(node, ast.Call) and ast.unparse(node.func).startswith("logger.")
            )
            texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
            flags = [flag for text in texts if is_message for flag in re.findall(r"(?<![\w-])--[a-z][\w-]+", text)]
            assert not flags, f"{path}:{node.lineno} names {flags}"  # type: ignore[attr-defined]


def test_no_file_is_too_long():
    files = [path for folder in ("src", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 50
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert not {path.name: length for path, length in lengths.items() if length > LONGEST}


def families_named(source: str) -> set[str]:
    """Families whose name is in the code or its strings; docstrings and comments may cite papers."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            node.body[0] = ast.Pass()
    bare = ast.unparse(tree).replace("-", "")
    families = set(FAMILIES) - {"transformer", "word2vec", "glove"}  # also the names of a trunk and of two heads
    return families & {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*", bare)}


def test_parts_know_no_family_by_name():
    for path in sorted((PACKAGE / "nn").rglob("*.py")):
        assert not families_named(path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize(
    "source",
    [
        "if kind == 'bert': pass",
        "class BertNorm: pass",
        "gpt2_bias = 1",
        "x = 'GPT-2'",
        "def f(GPT2Norm): pass",
    ],
)
def test_a_family_by_name_is_seen(source):
    assert families_named('"""As in BERT."""\n' + source)
    assert not families_named('"""As in BERT and GPT-2."""\nx = 1  # bert')


# ------------------------------------------------------------------------------------------- what is loaded


def loaded(code: str) -> set[str]:
    """The heavy modules that a fresh interpreter has after some code."""
    tail = f"\nimport sys; print('loaded:', *sorted({HEAVY!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code + tail], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_a_bare_import_loads_nothing_heavy():
    assert loaded("import polyseme; assert polyseme.__version__") == set()
    code = """
from polyseme import load
from polyseme.families import FAMILIES
from polyseme.nn.model import build_meta
build_meta(FAMILIES["bert"].model_config("base"))  # as a model is opened
"""
    assert "torch" in (found := loaded(code)) and "torch._dynamo" not in found, "torch's compiler takes a second"


def test_help_loads_nothing_heavy():
    code = """
import typer
from polyseme.cli.main import app
def walk(command, words):
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, [*words, name])
root = typer.main.get_command(app)
lines = list(walk(root, []))
assert len(lines) > 10
for words in lines:
    root([*words, "--help"], standalone_mode=False)
"""
    assert loaded(code) == set()
