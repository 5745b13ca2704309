"""Check the documentation: commands and examples run, tables are up to date, names and links exist."""

import functools
import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from polyseme.corpus.sources.midi import Note, write_notes
from polyseme.recipes import NGRAM_RECIPES
from tests.design.pages import (
    ARCHITECTURE,
    GUIDES,
    PACKAGE,
    README,
    ROOT,
    code_blocks,
    generated,
    guides,
    pages,
    read,
    section,
)

MAX_README_LINES = 150
MAX_EXAMPLE_LINES = 15
PAGES = pages()
CLI_PAGE = GUIDES / "cli.md"
CHANGELOG = ROOT / "CHANGELOG.md"  # it may name what was renamed


# ------------------------------------------------------------------------------------------------- commands


@functools.cache
def commands() -> dict[tuple[str, ...], dict[str, bool]]:
    """Return every command of the program: its words, and for each option whether it is required."""
    from polyseme.cli.main import app

    options_by_command = {}

    def walk(command, words):
        if hasattr(command, "commands"):
            for name, inner in command.commands.items():
                walk(inner, (*words, name))
            return
        options = {}
        for parameter in command.params:
            if parameter.param_type_name == "option":
                options |= dict.fromkeys([*parameter.opts, *parameter.secondary_opts], parameter.required)
        options_by_command[words] = options

    walk(typer.main.get_command(app), ())
    return options_by_command


def program_options() -> set[str]:
    """Return the options that come before a command, such as `--version`."""
    from polyseme.cli.main import app

    return {option for parameter in typer.main.get_command(app).params for option in parameter.opts}


def command_lines(page: Path) -> list[str]:
    """Return what follows `polyseme` on a page: in a bash block, in an indented line, or between backticks."""
    blocks = [*code_blocks(page, "bash"), *code_blocks(page, "sh")]  # the latter do not end by themselves
    lines = [line for block in blocks for line in block.splitlines()]
    indented = re.findall(r"^    (polyseme .*)$", read(page), re.MULTILINE)
    inline = re.findall(r"`(polyseme [^`]*)`", read(page))
    texts = [text for text in (*lines, *indented, *inline) if text.startswith("polyseme ")]
    return [text.removeprefix("polyseme ").split(" #")[0] for text in texts]


def mistakes(text: str) -> list[str]:
    """Return what is wrong with a command line or a synopsis: its name, an unknown option, a missing one."""
    words = tuple(re.findall(r"[^\s\[\]]+", text))
    if words[0].startswith("--"):
        return [f"the program has no {word}" for word in words if word not in program_options()]
    name = next((name for name in commands() if words[: len(name)] == name), None)
    if name is None:
        return [f"no command {' '.join(words[:2])!r}"]
    options = commands()[name]
    used = [word for word in words if word.startswith("--")]
    unknown = [f"{' '.join(name)} has no {option}" for option in used if option not in options]
    return unknown + [f"{' '.join(name)} needs {o}" for o, required in options.items() if required and o not in used]


@pytest.mark.parametrize("page", [page for page in PAGES if page != CHANGELOG], ids=lambda page: page.name)
def test_commands_on_pages_are_valid(page):
    assert not [mistake for text in command_lines(page) for mistake in mistakes(text)]


def test_command_page_lists_every_command():
    table = re.findall(r"^\| `polyseme ([^`]*)`", read(CLI_PAGE), re.MULTILINE)
    listed = {name for name in commands() for text in table if tuple(text.split())[: len(name)] == name}
    assert listed == set(commands())


@pytest.mark.parametrize("text", ["fil MODEL TEXT", "fill MODEL TEXT [--topk 5]", "embed MODEL --data F", "tokenizer"])
def test_wrong_command_is_detected(text):
    assert mistakes(text)


@pytest.mark.parametrize("group", ["", "tokenizer", "arpa", "vectors", "images"])
def test_lists_of_commands_have_whole_summaries(group):
    """In a terminal of 80 columns."""
    from polyseme.cli.main import app

    result = CliRunner().invoke(app, [*group.split(), "--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert not [line for line in result.output.split("Commands:")[1].splitlines() if line.endswith("...")]


def write_inputs(glue: Path) -> None:
    """Write the files that the commands of the guides read, small, into the current folder."""
    animals, places = (
        ("cat", "dog", "bird"),
        ("mat", "table", "tree", "roof", "wall", "chair", "grass", "bridge"),
    )
    texts = [f"The {a} sat on the {b}. Nobody had seen a {a} on it before." for a in animals for b in places]
    Path("TEXT").mkdir()
    for i in range(240):
        Path("TEXT", f"{i:03}.txt").write_text(texts[i % len(texts)], encoding="utf-8")
    rows = [f"{text}\t{'cat' if 'cat' in text else 'other'}\n" for text in texts[::2]]
    for name in ("train.tsv", "dev.tsv"):
        Path(name).write_text("text\tlabel\n" + "".join(rows), encoding="utf-8")
    reviews = [f"{i},{text},{'cat' if 'cat' in text else 'other'}\n" for i, text in enumerate(texts)]
    Path("reviews.csv").write_text("id,review,stars\n" + "".join(reviews), encoding="utf-8")
    Path("lines.txt").write_text("\n".join(texts[:3]), encoding="utf-8")
    Path("occupations.txt").write_text("person\nnurse\nengineer\n", encoding="utf-8")
    Path("new.tsv").write_text("text\n" + "\n".join(texts[:3]) + "\n", encoding="utf-8")
    products = [f"P{i},{text.split('. ')[0]},{text}\n" for i, text in enumerate(texts)]
    for name, part in (("products.csv", products[::2]), ("held-out.csv", products[1::2])):
        Path(name).write_text("id,title,description\n" + "".join(part), encoding="utf-8")
    for name in ("train.conll", "dev.conll", "pos.conll"):
        Path(name).write_text("The\tO\ncat\tB-animal\nsat\tO\n\nA\tO\ndog\tB-animal\n" * 4, encoding="utf-8")
    pair = {"good": "The cat sat.", "bad": "Cat the sat."}
    Path("BLIMP").mkdir()
    for file in (Path("agreement.jsonl"), Path("BLIMP", "order.jsonl")):
        file.write_text(json.dumps(pair) + "\n", encoding="utf-8")
    question = {"text": "The ___ sat on the mat.", "choices": ["cat", "bridge"], "label": "cat"}
    Path("cloze.jsonl").write_text(json.dumps(question) + "\n", encoding="utf-8")
    last_word = {"text": "The cat sat on the", "answer": "mat"}
    Path("last-words.jsonl").write_text(json.dumps(last_word) + "\n", encoding="utf-8")
    Path("EN-WS-353-ALL.txt").write_text("cat\tdog\t8.5\nmat\ttable\t6\ncat\troof\t1\n", encoding="utf-8")
    for part, size in (("train", 240), ("test", 3)):
        english = [f"the {animals[i % 3]} sat on the {places[i % 8]} {i}" for i in range(size)]
        german = [f"auf {places[i % 8]} {i} sitzt {animals[i % 3]}" for i in range(size)]
        Path(f"{part}.en").write_text("\n".join(english) + "\n", encoding="utf-8")
        Path(f"{part}.de").write_text("\n".join(german) + "\n", encoding="utf-8")
    glue.rename("GLUE")
    if find_spec("mido"):
        for seed in range(8):
            notes = [Note(i / 4, i / 4 + 0.2, 48 + i * (seed + 3) % 24, 64) for i in range(60)]
            write_notes(Path("MIDI", f"{seed}.mid"), notes)


def run_lines(program: Callable[..., object], lines: list[str]) -> None:
    """Run commands; if one repeats an earlier one but for its output, copy that."""
    outputs: dict[tuple[str, ...], str] = {}
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        out = words[words.index("--out") + 1] if "--out" in words else ""
        command = tuple(word for word in words if word != out)
        if earlier := outputs.get(command):
            (shutil.copytree if Path(earlier).is_dir() else shutil.copy)(earlier, out)
            continue
        is_training = words[0] in ("pretrain", "distill", "finetune") and words[1] not in NGRAM_RECIPES
        is_training &= "--unfreeze-every" not in words  # which needs an epoch for each layer
        short = ["--set", "steps=2" if "--task" in words else "budget.steps=2"] * is_training
        assert not program([*words, *short], standalone_mode=False), line
        outputs[command] = out


def test_commands_and_examples_of_the_guides_run(tmp_path, monkeypatch, capsys, glue):
    """Run the commands of README and guides in reading order, with two training steps; then the Python examples."""
    from polyseme.cli.main import app

    monkeypatch.chdir(tmp_path)
    write_inputs(glue)
    blocks = [block for page in (README, *guides()) for block in code_blocks(page, "bash")]
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("polyseme ")]
    if not find_spec("mido"):
        lines = [line for line in lines if "music/" not in line]
    assert len(lines) >= 30
    run_lines(typer.main.get_command(app), lines)
    header, *rows = Path("predicted.tsv").read_text(encoding="utf-8").splitlines()
    assert header.split("\t") == ["text", "prediction", "probability", "p(cat)", "p(other)"]
    assert [row.split("\t")[0] for row in rows] == Path("new.tsv").read_text(encoding="utf-8").splitlines()[1:]
    assert "linear" in capsys.readouterr().out
    for page in guides():
        if examples := code_blocks(page, "python"):
            exec(compile("\n".join(examples), page.name, "exec"), {"__name__": page.stem})


def test_every_guide_is_linked_from_the_readme():
    assert sorted(guides()) == sorted(GUIDES.glob("*.md"))


# --------------------------------------------------------------------------------------------------- README


def test_readme_is_short():
    assert len(read(README).splitlines()) <= MAX_README_LINES


def test_readme_python_runs(tmp_path, monkeypatch, capsys):
    (code,) = code_blocks(README, "python")
    plain = [line for line in code.splitlines() if line and not line.startswith(("import ", "from "))]
    assert len(plain) <= MAX_EXAMPLE_LINES
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    exec(compile(code, README.name, "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert "'mat'" in printed and "(2, 128)" in printed


def test_generated_parts_are_up_to_date():
    """To update them: `python tests/design/pages.py`."""
    for (page, part), table in generated().items():
        assert section(page, part).strip() == table, f"{part} of {page.name}: run python tests/design/pages.py"


# ---------------------------------------------------------------------------------------------- other pages


def test_file_map_is_complete():
    paths = "\n".join(row.split("|")[1] for row in section(ARCHITECTURE, "file map").splitlines())
    named = re.findall(r"`([^`\s]+)`", paths)
    assert len(named) > 15
    assert not [path for path in named if not (ROOT / path).exists()]
    packages = [f"src/polyseme/{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")]
    assert not [path for path in packages if path not in named]


def test_pages_name_existing_files_and_tests():
    defined = set()
    for path in (ROOT / "tests").rglob("*.py"):
        defined |= set(re.findall(r"^def (test_\w+)", read(path), re.MULTILINE))
    missing = []
    packages = "|".join(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
    for page in PAGES:
        paths = re.findall(r"`((?:src|tests|docs|benchmarks)/[^`\s:]*)`", read(page))
        paths += [f"src/polyseme/{path}" for path in re.findall(rf"`((?:{packages})/[^`\s:]*)`", read(page))]
        names = re.findall(r"`(test_\w+)`", read(page))
        missing += [f"{page.name}: {path}" for path in paths if "NAME" not in path and not (ROOT / path).exists()]
        missing += [f"{page.name}: {name}" for name in names if name not in defined]
    assert not missing


def test_pages_name_existing_tasks():
    import polyseme
    from polyseme.explain.probing.api import MEASUREMENTS
    from polyseme.explain.probing.items import PROBE_TASKS
    from polyseme.tasks import TASKS

    known = {*TASKS, *polyseme.list_datasets(), *PROBE_TASKS, *MEASUREMENTS, "blimp", "minimal-pairs"}
    for page in (README, *guides()):
        own_names = re.findall(r"--task ([a-z]+)=", read(page))
        named = re.findall(r"--task (?:[a-z]+=)?([a-z][\w/.,-]*\w)(?![\w/])", read(page))
        assert not {name for names in named for name in names.split(",")} - known - {*own_names}, page.name


def test_links_between_pages_resolve():
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", read(page)):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.name}: {target}")
    assert not broken


def test_decisions_are_numbered():
    names = sorted(path.name for path in (ROOT / "docs" / "decisions").iterdir())
    assert names
    for number, name in enumerate(names, 1):
        assert re.fullmatch(rf"{number:03}-[a-z0-9]+(-[a-z0-9]+)*\.md", name), name


def test_pages_name_no_machine():
    for page in PAGES:
        assert not re.findall(r"(?<![\w.])/(?:home|root|work|tmp|usr)/", read(page)), page


BRITISH = r"\w*(?:isation|ising|ised|iser)\b|\w*(?:colour|neighbour|catalogue|learnt|labelled|licence|behaviour)\w*"
AMERICAN_TOO = {"advertising", "arising", "comprised", "comprising", "precised", "promising", "raised", "raising"}
AMERICAN_TOO |= {"revised", "rising", "supervised", "surprised", "surprising", "used", "wiser", "exercised", "advised"}


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "plan.md"], ids=lambda page: page.name)
def test_pages_use_us_spelling(page):
    prose = re.sub(r"`[^`\n]*`", "", read(page))
    words = {match.lower() for match in re.findall(BRITISH, prose, re.IGNORECASE)}
    assert not {word for word in words if word.removeprefix("un") not in AMERICAN_TOO}
