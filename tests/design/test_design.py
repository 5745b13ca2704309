"""The rules of the project as tests: import arrows, sizes, what a bare import loads, a true README."""

import ast
import functools
import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer

from polyseme.corpus.sources.midi import write_notes
from polyseme.families import FAMILIES
from polyseme.families.summary import format_markdown
from polyseme.recipes import NGRAM_RECIPES
from polyseme.text.events import Note

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "polyseme"
README = (ROOT / "README.md").read_text(encoding="utf-8")
LONGEST = 500

# Every package and what it may import: whatever stands on a line above its own. There is no exception.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "progress"),
    ("config", "io"),
    ("report", "rng"),
    ("nn",),
    ("families", "text"),
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
# Imports against that order, to be removed one by one.
EXCEPTIONS = {
    ("ngram", "inference"),
}

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
        target = name.split(".")[0]
        if target not in LEVEL:
            target = "__init__"
        if target != unit and LEVEL[target] >= LEVEL[unit] and (unit, target) not in EXCEPTIONS:
            found.append(name or "polyseme")
    return found


def unit_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


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
made = typer.main.get_command(app)
for words in ([], *COMMANDS):
    made([*words, "--help"], standalone_mode=False)
"""
    verbs = [list(words) for words in commands()]
    assert len(verbs) > 10
    assert loaded(f"COMMANDS = {verbs!r}{code}") == set()


# ----------------------------------------------------------------------------------------------- the README


def section(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", README, re.DOTALL)
    assert found, f"README.md has no part <!-- {name} --> … <!-- end -->"
    return found[1]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


@functools.cache
def commands() -> dict[tuple[str, ...], dict[str, bool]]:
    """Every command of the program: its words, and for each option whether it is required."""
    from polyseme.cli.main import app

    found = {}

    def walk(command, words):
        if hasattr(command, "commands"):
            for name, inner in command.commands.items():
                walk(inner, (*words, name))
            return
        options = {}
        for parameter in command.params:
            if parameter.param_type_name == "option":
                options |= dict.fromkeys([*parameter.opts, *parameter.secondary_opts], parameter.required)
        found[words] = options

    walk(typer.main.get_command(app), ())
    return found


def named_commands() -> list[str]:
    """What stands behind `polyseme` in the README, in a line of a block or between backticks."""
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    inline = re.findall(r"`(polyseme [^`]*)`", README)
    return [text.removeprefix("polyseme ") for text in (*lines, *inline) if text.startswith("polyseme ")]


def mistakes(text: str) -> list[str]:
    """What is wrong with a command line or a synopsis: its name, an unknown option, a missing one."""
    known = commands()
    words = tuple(re.findall(r"[^\s\[\]]+", text))
    name = next((name for name in known if words[: len(name)] == name), None)
    if name is None:
        return [f"no command {' '.join(words[:2])!r}"]
    given = [word for word in words if word.startswith("--")]
    wrong = [f"{' '.join(name)} has no {option}" for option in given if option not in known[name]]
    return wrong + [f"{' '.join(name)} needs {o}" for o, must in known[name].items() if must and o not in given]


def test_readme_names_every_command_as_it_is():
    given = named_commands()
    assert not [mistake for text in given for mistake in mistakes(text)]
    table = re.findall(r"^\| `polyseme ([^`]*)`", README, re.MULTILINE)
    shown = {name for name in commands() for text in table if tuple(text.split())[: len(name)] == name}
    assert shown == set(commands())


@pytest.mark.parametrize("text", ["fil MODEL TEXT", "fill MODEL TEXT [--topk 5]", "embed MODEL --data F", "tokenizer"])
def test_a_wrong_command_is_seen(text):
    assert mistakes(text)


def test_readme_python_runs(tmp_path):
    (code,) = blocks("python")
    plain = [line for line in code.splitlines() if line and not line.startswith(("import ", "from "))]
    assert len(plain) <= 10, "the example has ten lines"
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "'mat'" in done.stdout and "(2, 128)" in done.stdout


def test_readme_commands_run(tmp_path, monkeypatch, capsys, glue):
    """The lines of the README in turn, on a little text; pre-training is cut to two steps."""
    from polyseme.cli.main import app

    monkeypatch.chdir(tmp_path)
    animals, places = (
        ("cat", "dog", "bird"),
        ("mat", "table", "tree", "roof", "wall", "chair", "grass", "bridge"),
    )
    texts = [f"The {a} sat on the {b}. Nobody had seen a {a} on it before." for a in animals for b in places]
    Path("TEXT").mkdir()
    for i in range(240):
        Path("TEXT", f"{i:03}.txt").write_text(texts[i % len(texts)], encoding="utf-8")
    rows = [f"{text}\t{'cat' if 'cat' in text else 'other'}\n" for text in texts]
    for name in ("train.tsv", "dev.tsv"):
        Path(name).write_text("text\tlabel\n" + "".join(rows), encoding="utf-8")
    Path("lines.txt").write_text("\n".join(texts[:3]), encoding="utf-8")
    Path("new.tsv").write_text("text\n" + "\n".join(texts[:3]) + "\n", encoding="utf-8")
    Path("EN-WS-353-ALL.txt").write_text("cat\tdog\t8.5\nmat\ttable\t6\ncat\troof\t1\n", encoding="utf-8")
    glue.rename("GLUE")
    lines = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("polyseme ")]
    if find_spec("mido"):
        for seed in range(8):
            notes = [Note(i / 4, i / 4 + 0.2, 48 + i * (seed + 3) % 24, 64) for i in range(60)]
            write_notes(Path("MIDI", f"{seed}.mid"), notes)
    else:
        lines = [line for line in lines if "music/" not in line]
    assert len(lines) >= 5
    made = typer.main.get_command(app)
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        trained = words[0] == "pretrain" and words[1] not in NGRAM_RECIPES
        cut = ["--set", "budget.steps=2"] if trained else []
        assert not made([*words, *cut], standalone_mode=False), line
    assert Path("predicted.tsv").read_text(encoding="utf-8").splitlines()[0].startswith("text\tlabel")
    assert "linear" in capsys.readouterr().out


def test_readme_table_of_families_is_the_generated_one():
    assert section("families").strip() == format_markdown()


def test_readme_file_map_is_true():
    paths = "\n".join(row.split("|")[1] for row in section("file map").splitlines())
    named = re.findall(r"`([^`\s]+)`", paths)
    assert len(named) > 15
    assert not [path for path in named if not (ROOT / path).exists()]
    packages = [f"src/polyseme/{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")]
    assert not [path for path in packages if path not in named]


# ---------------------------------------------------------------------------------------------- other pages


PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")),
    *(ROOT / "docs").rglob("*.md"),
]


def test_pages_name_files_and_tests_that_are_there():
    defined = set()
    for path in (ROOT / "tests").rglob("*.py"):
        defined |= set(re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    lost = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        paths = re.findall(r"`((?:src|tests|docs|benchmarks)/[^`\s:]*)`", text)
        names = re.findall(r"`(test_\w+)`", text)
        lost += [f"{page.name}: {path}" for path in paths if "NAME" not in path and not (ROOT / path).exists()]
        lost += [f"{page.name}: {name}" for name in names if name not in defined]
    assert not lost


def test_decisions_are_numbered():
    names = sorted(path.name for path in (ROOT / "docs" / "decisions").iterdir())
    assert names
    for number, name in enumerate(names, 1):
        assert re.fullmatch(rf"{number:03}-[a-z0-9]+(-[a-z0-9]+)*\.md", name), name


def test_pages_say_nothing_of_one_machine():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"(?<![\w.])/(?:home|root|work|tmp|usr)/", text), page
