"""Every command of docs/coverage.md: its arguments are valid, and it runs on small files."""

import importlib
import itertools
import re
from importlib.util import find_spec
from inspect import signature

import pytest
import typer

import polyseme
from polyseme.cli.main import app
from polyseme.cli.output import apply_overrides, parse_settings
from polyseme.families import get_family
from polyseme.finetuning.config import FeatureNetworkSettings, FinetuneConfig
from polyseme.recipes import NGRAM_RECIPES
from polyseme.recipes.launch import resolve_arguments
from polyseme.studies.catalog import STUDIES
from polyseme.tasks import TASKS
from tests.design.coverage import ROOT, load_coverage, words_of
from tests.support.lecture_data import save_lecture_models, write_lecture_data

COVERAGE = load_coverage()
LECTURES = ROOT.parent / "shared/seeds"
KINDS = ("system", "mechanism", "table", "figure", "claim")
SLOW = ("tokenizer", "prepare", "pairs", "images", "pretrain", "finetune", "ulmfit", "distill")
SLOW += ("study", "benchmark", "music", "caption", "probe")
SLOW_OPTIONS = ("--schedule", "--ensemble", "--word", "--path-length", "--image")
PROGRAM = typer.main.get_command(app)


def is_slow(words):
    is_training = words[0] in SLOW and words[:2] != ["tokenizer", "inspect"]
    return is_training or any(option in words for option in SLOW_OPTIONS)


def split_command(words):
    """Return the command of the program, and its arguments."""
    command = PROGRAM.commands[words[0]]
    return (command.commands[words[1]], words[2:]) if hasattr(command, "commands") else (command, words[1:])


def test_every_row_is_built():
    """Only a competing system that a deck cites may have no command that trains or shows it."""
    for row in COVERAGE.rows:
        assert row.kind in KINDS and row.what and row.at, row
        assert row.run or row.python, f"not built: {row.what}"
        assert not row.cited or all(command.startswith("polyseme published") for command in row.run), row
    assert {row.deck for row in COVERAGE.rows} == COVERAGE.titles.keys()


def test_python_names_exist():
    for name in {row.python for row in COVERAGE.rows if row.python}:
        module, _, attribute = name.rpartition(".")
        try:
            owner = importlib.import_module(module)
        except ModuleNotFoundError:
            package, _, class_name = module.rpartition(".")
            owner = getattr(importlib.import_module(package), class_name)
        assert callable(getattr(owner, attribute)), name


def test_links_lead_to_sections():
    for page, _, section in {row.see.partition("#") for row in COVERAGE.rows if row.see}:
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        titles = {
            re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in re.findall(r"^#+ (.+)$", text, re.M)
        }
        assert not section or section in titles, f"{page}#{section}"


@pytest.mark.skipif(not LECTURES.is_dir(), reason="needs the lectures")
@pytest.mark.parametrize("deck", COVERAGE.titles)
def test_rows_cover_the_deck(deck):
    """Each row is in the deck, and no long part of the deck is without a row."""
    text = next(LECTURES.glob(f"{deck}_*")).read_text(encoding="utf-8")
    positions = {row.what: text.find(row.at) for row in COVERAGE.rows if row.deck == deck}
    assert not [what for what, position in positions.items() if position < 0]
    ends = [0, *sorted(positions.values()), len(text)]
    words = [len(set(re.findall(r"[a-z]{3,}", text[a:b].lower()))) for a, b in itertools.pairwise(ends)]
    assert max(words) < 150


@pytest.mark.parametrize("command", COVERAGE.commands)
def test_arguments_are_valid(command):
    """Parse the arguments, and check what they name: recipes, tasks, studies, settings."""
    words = words_of(command)
    parsed, arguments = split_command(words)
    options = parsed.make_context(words[0], list(arguments)).params
    settings = options.get("overrides") or []
    if words[0] == "pretrain":
        run = resolve_arguments(options["recipe"], options["corpus"], options["out"], parse_settings(settings))
        if options["recipe"] not in NGRAM_RECIPES:
            known = signature(get_family(run.recipe.family).trunk_config).parameters
            assert run.recipe.model.keys() <= known.keys()
    if words[0] == "finetune":
        assert all(task in TASKS or task in polyseme.list_datasets() for task in options["task"])
        settings = [setting for setting in settings if not setting.startswith("task.")]
        apply_overrides(FinetuneConfig(network=FeatureNetworkSettings()), settings)
    if words[0] == "study":  # tests/studies runs each of them, tiny
        assert options["name"] in STUDIES


def run_commands(commands, cli, short=()):
    """Run commands in the current folder; return those that fail, with their messages."""
    failed = {}
    for command in commands:
        words = words_of(command)
        if not find_spec("mido") and ("music" in command or "MIDI" in command or "performance_rnn" in command):
            continue
        completed = cli(*words, *short(words)) if short else cli(*words)
        if completed.status:
            failed[command] = completed.err.strip().splitlines()[-1:]
    return failed


def test_fast_commands_run(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    write_lecture_data(tmp_path)
    save_lecture_models(tmp_path)
    commands = [command for command in COVERAGE.commands if not is_slow(words_of(command))]
    assert len(commands) > 50
    assert not run_commands(commands, cli)


def shorten(words):
    """Return arguments that make a run short."""
    if words[0] in ("pretrain", "distill") and "--task" not in words and words[1] not in NGRAM_RECIPES:
        return ["--set", "budget.steps=2", "--set", "valid_fraction=0.1"]
    if words[0] in ("finetune", "distill", "benchmark"):
        return ["--set", "steps=2"]
    return ["--budget", "2steps"] if words[0] == "ulmfit" else []


@pytest.mark.slow
def test_all_commands_run_in_the_order_of_the_page(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    write_lecture_data(tmp_path)
    commands = [command for command in COVERAGE.commands if words_of(command)[0] != "study"]
    assert not run_commands(commands, cli, shorten)
