"""Rules of the code base: import order, no prints, no flags in messages, file length, lazy imports."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from polyseme.families import FAMILIES
from tests.design.sources import PACKAGE, ROOT, TREES, nodes

MAX_FILE_LINES = 500

# Each package may import those on the lines above its own.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "progress", "logs", "machine"),
    ("io",),
    ("config",),
    ("report", "rng"),
    ("nn",),
    ("families", "corpus.sources", "images"),
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
    ("serve",),
    ("pipelines",),
    ("studies",),
    ("cli",),
    ("__main__",),
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
        "onnx",
        "onnxruntime",
        "onnxscript",
        "PIL",
        "starlette",
        "uvicorn",
    ),
}


# ----------------------------------------------------------------------------------------- imports and code


def imports(tree: ast.AST) -> Iterator[str]:
    """Modules of the package that a module imports, also inside functions, except for type checking only."""
    type_checking_only = {
        id(inner)
        for node in nodes(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in nodes(tree):
        if id(node) in type_checking_only:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "use absolute imports"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "polyseme":
                yield name.removeprefix("polyseme").removeprefix(".")


def forbidden_imports(unit: str, tree: ast.AST) -> list[str]:
    """Imports that the layer of a unit does not allow; `from polyseme import load` imports `__init__`."""
    wrong = []
    for name in imports(tree):
        target = unit_of_module(name)
        if target not in LEVEL:
            target = "__init__"
        if target != unit and LEVEL[target] >= LEVEL[unit]:
            wrong.append(name or "polyseme")
    return wrong


def unit_of_module(name: str) -> str:
    """The first part of a module's name; `corpus.sources` is a unit of its own, below tokenizers."""
    return "corpus.sources" if name.startswith("corpus.sources") else name.split(".")[0]


def test_imports_follow_the_layers():
    wrong = {}
    for path, tree in TREES.items():
        unit = unit_of_module(path.removesuffix(".py").replace("/", "."))
        assert unit in LEVEL, f"{unit} is new: give it a place in LAYERS"
        if names := forbidden_imports(unit, tree):
            wrong[path] = names
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
def test_a_forbidden_import_is_noticed(unit, source):
    assert forbidden_imports(unit, ast.parse(source))


def test_imports_for_type_checking_are_allowed():
    source = "if TYPE_CHECKING:\n    from polyseme.corpus.store import Corpus\n"
    source += "from polyseme.io.json import write_json"
    assert not forbidden_imports("text", ast.parse(source))


def test_names_imported_by_benchmarks_exist():
    """No test runs the benchmarks, so a renamed import would go unnoticed."""
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("polyseme"):
                module = importlib.import_module(node.module)
                for name in node.names:
                    there = hasattr(module, name.name) or find_spec(f"{node.module}.{name.name}")
                    assert there, f"{path.name} imports {name.name} from {node.module}"


def library() -> dict[str, ast.Module]:
    """Return the sources without the command line."""
    return {path: tree for path, tree in TREES.items() if not path.startswith("cli/")}


def test_library_code_never_prints():
    for path, tree in library().items():
        calls = [node for node in nodes(tree) if isinstance(node, ast.Call)]
        names = [getattr(call.func, "id", getattr(call.func, "attr", "")) for call in calls]
        assert not [call.lineno for call, name in zip(calls, names) if name in ("print", "echo")], path


def test_library_messages_name_no_flag():
    """Errors and log messages name fields and keywords; only the command line names its flags."""
    for path, tree in library().items():
        for node in nodes(tree):
            owner = getattr(node.func, "value", None) if isinstance(node, ast.Call) else None
            is_log_call = isinstance(owner, ast.Name) and owner.id == "logger"
            if isinstance(node, ast.Raise) or is_log_call:
                texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
                flags = [flag for text in texts for flag in re.findall(r"(?<![\w-])--[a-z][\w-]+", text)]
                assert not flags, f"{path}:{node.lineno} names {flags}"


def test_no_file_is_too_long():
    files = [path for folder in ("src", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 50
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert not {path.name: length for path, length in lengths.items() if length > MAX_FILE_LINES}


def families_named(source: str) -> set[str]:
    """Families named in code or strings; docstrings and comments may cite papers."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            node.body[0] = ast.Pass()
    bare = ast.unparse(tree).replace("-", "")
    families = set(FAMILIES) - {"transformer", "word2vec", "glove"}  # also the names of a trunk and of two heads
    return families & {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*", bare)}


def test_nn_names_no_family():
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
def test_a_family_name_is_noticed(source):
    assert families_named('"""As in BERT."""\n' + source)
    assert not families_named('"""As in BERT and GPT-2."""\nx = 1  # bert')


# --------------------------------------------------------------------------------------------- lazy imports


def loaded(code: str) -> set[str]:
    """Heavy modules that a fresh interpreter has loaded after running some code."""
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
