"""Semantic roles: columns of both shared tasks, scores of srl-eval, and models that learn the task."""

import gzip
import random

import numpy as np
import pytest

from polyseme.datasets.catalog import DATASETS
from polyseme.errors import PolysemeError
from polyseme.evaluation.comparison.finetuning_runs import read_run
from polyseme.evaluation.comparison.significance import bootstrap_scores
from polyseme.evaluation.predict import evaluate
from polyseme.families import FAMILIES
from polyseme.finetuning.config import FeatureNetworkSettings, FinetuneConfig
from polyseme.finetuning.experiment import TaskData
from polyseme.finetuning.finetune import finetune
from polyseme.finetuning.frozen import FEATURE_DEFAULTS, FeatureInputs, train_on_features
from polyseme.inference.feature_model import FeatureModel
from polyseme.inference.prediction import predict
from polyseme.tasks.metrics.srl import brackets_to_tags, extract_arguments, srl_scores, tags_to_brackets
from polyseme.tasks.readers.columns import Columns
from polyseme.tasks.semantic_roles import PredicateExample, SemanticRolesTask
from polyseme.tasks.tagging import TaggingTask
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.optimizer import OptimizerConfig
from polyseme.weights.folder import load_model, read_model_config, save_model
from tests.support.cases import supported_args
from tests.support.tasks import compute_logits

# words, names, parts of speech, chunks, clauses, parse, sense, targets, props: two predicates, one discontinuous
# argument, a currency sign first, a sentence without a predicate
SET_2005 = """\
#           *  #    (NP*   (S*   (S(NP*    -   -       *       *
1.4         *  CD      *     *        *    -   -    (A0*    (A0*
-LRB-       *  -LRB-   *     *        *    -   -       *       *
craft       *  NN      *)    *        *)   -   -       *)      *)
faces       *  VBZ  (VP*)    *     (VP*    01  face  (V*)      *
six\\/seven  *  JJ   (NP*     *     (NP*    -   -    (A1*       *
years       *  NNS     *)    *        *    -   -       *)      *
to          *  TO   (VP*   (S*   (S(VP*    -   -       *       *
explore     *  VB      *)    *        *    01  explore *     (V*)
Venus   (LOC*) NNP  (NP*)    *)  *)))))    -   -  (C-A1*)  (A1*)

Yes         *  UH      *     *    (S*)     -   -
"""
PROPS_2005 = "\n".join(" ".join(line.split()[7:]) for line in SET_2005.split("\n"))
WORDS_2005 = "\n".join(" ".join(line.split()[:1]) for line in SET_2005.split("\n"))
WORDS = ("#", "1.4", "(", "craft", "faces", "six/seven", "years", "to", "explore", "Venus")
FACES = ("O", "B-A0", "I-A0", "I-A0", "B-V", "B-A1", "I-A1", "O", "O", "B-C-A1")

# `campaign` has a lemma and a sense, but no frameset, so it is no predicate; `/.` is a full stop
GOLD_2012 = """\
#begin document (bc/cctv/00/cctv_0001); part 000
bc/cctv/00/cctv_0001   0   0       The    DT  (TOP(S(NP*          -    -   -   Speaker#1   *   (ARG0*   (ARG0*   (12
bc/cctv/00/cctv_0001   0   1  campaign    NN           *)  campaign    -   1   Speaker#1   *        *)       *)   12)
bc/cctv/00/cctv_0001   0   2     began   VBD        (VP*      begin   01   1   Speaker#1   *      (V*)       *    -
bc/cctv/00/cctv_0001   0   3        to    TO      (S(VP*          -    -   -   Speaker#1   *   (ARG1*        *    -
bc/cctv/00/cctv_0001   0   4      grow    VB      (VP*))))     grow   01   2   Speaker#1   *        *)     (V*)   -
bc/cctv/00/cctv_0001   0   5        /.     .          *))         -    -   -   Speaker#1   *        *        *    -

#end document
#begin document (bc/cctv/00/cctv_0001); part 001
bc/cctv/00/cctv_0001   1   0       Yes    UH  (TOP(INTJ*))        -    -   -   Speaker#1   *    -

#end document
"""


def write_conll_2005(path, packed=True):
    for kind, content in (("words", WORDS_2005), ("props", PROPS_2005)):
        (path / "devel" / kind).mkdir(parents=True)
        with gzip.open(path / "devel" / kind / f"devel.24.{kind}.gz", "wt") as file:
            file.write(content)


@pytest.mark.parametrize("form", ["folders", "set", "file"])
def test_conll_2005(tmp_path, form):
    name, path = "srl/conll-2005", tmp_path
    if form == "folders":
        write_conll_2005(tmp_path / "conll05st-release")
    elif form == "set":
        with gzip.open(tmp_path / "devel-set.gz", "wt") as file:
            file.write(SET_2005)
    else:
        name, path = "srl", tmp_path / "any.txt"
        path.write_text(SET_2005)
    first, second = DATASETS[name].read_split(path)
    assert first.words == second.words == WORDS and first.location == second.location
    assert first.tags == FACES and first.predicate == (4, "face")
    assert second.predicate == (8, "explore") and extract_arguments(second.tags) == {
        ("A0", ((1, 3),)),
        ("A1", ((9, 9),)),
    }
    assert extract_arguments(first.tags) == {("A0", ((1, 3),)), ("A1", ((5, 6), (9, 9)))}
    third = DATASETS[name].read_split(path, needs_labels=False)[2]
    assert (third.words, third.predicate, third.tags) == (("Yes",), None, None)


@pytest.mark.parametrize("form", ["folders", "file"])
def test_conll_2012(tmp_path, form):
    path = tmp_path / "one.v4_gold_conll"
    if form == "folders":
        path = tmp_path / "conll-2012/v4/data/development/data/english/annotations/bc/cctv/00/cctv_0001.v4_gold_conll"
        path.parent.mkdir(parents=True)
    path.write_text(GOLD_2012)
    first, second = DATASETS["srl/conll-2012" if form == "folders" else "srl"].read_split(
        tmp_path if form == "folders" else path
    )
    assert first.words == ("The", "campaign", "began", "to", "grow", ".")
    assert first.predicate == (2, "begin") and first.tags == ("B-ARG0", "I-ARG0", "B-V", "B-ARG1", "I-ARG1", "O")
    assert second.predicate == (4, "grow") and second.tags == ("B-ARG0", "I-ARG0", "O", "O", "B-V", "O")
    bare = "\n".join(" ".join([*r.split()[:11], "-"]) if r[:2] == "bc" else r for r in GOLD_2012.split("\n"))
    path.write_text(bare)  # as the test set is distributed: predicates, but no arguments
    examples = DATASETS["srl/conll-2012"].read_split(path, needs_labels=False)
    assert [(e.predicate, e.tags) for e in examples] == [((2, "begin"), None), ((4, "grow"), None), (None, None)]


def test_predicates_without_frameset_are_found_by_their_v_tag(tmp_path):
    path = tmp_path / "x.conll"
    path.write_text(GOLD_2012.replace("grow   01", "grow    -"))
    assert DATASETS["srl"].read_split(path)[1].predicate == (4, "grow")


def test_brackets_round_trip():
    draw = random.Random(0)
    for _ in range(300):
        cells = []
        while len(cells) < 12:
            size = draw.randint(1, 3)
            role = draw.choice(["A0", "C-A0", "AM-TMP", "V", ""])
            part = ["*"] * size
            if role:
                part[0], part[-1] = f"({role}{part[0]}", part[-1] + ")"
                part = [f"({role}*)"] if size == 1 else part
            cells += part
        assert tags_to_brackets(brackets_to_tags(cells, [f"f:{i}" for i in range(len(cells))])) == cells
    assert brackets_to_tags(["(A0*", "*A0)"], "ab") == ("B-A0", "I-A0")  # as it was written in 2004


@pytest.mark.parametrize(
    "cells,says",
    [
        (["(A0*", "(A1*)", "*)"], r"f:1: '\(A1\*\)' opens an argument inside another"),
        (["(A0(A1*))"], r"f:0: .* opens an argument inside another"),
        (["(A0*", "*"], r"f:1: the argument A0 is never closed"),
        (["*)"], r"f:0: '\*\)' closes an argument that is not open"),
        (["(A0*)", "(A0"], r"f:1: '\(A0' is no argument"),
        (["O"], r"f:0: 'O' is no argument"),
    ],
)
def test_malformed_brackets(cells, says):
    with pytest.raises(PolysemeError, match=says):
        brackets_to_tags(cells, [f"f:{i}" for i in range(len(cells))])


def test_malformed_files_name_the_line(tmp_path):
    path, base = tmp_path / "x.conll", "He - *\nruns run (V*)\n\nHe - (A0*)\nruns run (V*)\n\n"
    cases = {
        base + "He - *\nruns run (V*) *\n": r"x\.conll:8: 4 columns, but 3 are needed here",
        base + "He -\nruns run\n": r"x\.conll:7: 1 predicates, but 0 columns of arguments",
        base + "He - *\nruns run (V)\n": r"x\.conll:8: '\(V\)' is no argument",
        base + "He it *\nruns run *\n": r"x\.conll:7: 2 predicates, but 1 columns of arguments",
        "- *\nrun (V*)\n": r"x\.conll:1: there are no columns of words and predicates",
    }
    for content, says in cases.items():
        path.write_text(content)
        with pytest.raises(PolysemeError, match=says):
            DATASETS["srl"].read_split(path)
    path.write_text(base + "He - *\nruns run (V)\n")
    assert len(DATASETS["srl"].read_split(path, skip_bad=True)) == 2
    with pytest.raises(PolysemeError, match="there is no folder"):
        DATASETS["srl"].read(path)
    write_conll_2005(tmp_path)
    (tmp_path / "devel/words/devel.25.words").write_text("a\n")
    (tmp_path / "devel/props/devel.25.props").write_text("-\n\n-\n")
    with pytest.raises(PolysemeError, match=r"devel\.25\.words and .*devel\.25\.props do not have the same sentences"):
        DATASETS["srl/conll-2005"].read_split(tmp_path)
    (tmp_path / "r.jsonl").write_text('{"words": ["a", "b"], "tags": ["O", "B-V"], "predicate": 1}\n')
    assert SemanticRolesTask.read(tmp_path / "r.jsonl")[0].predicate == (1, "b")
    (tmp_path / "r.jsonl").write_text('{"words": ["a", "b"], "tags": ["O", "B-V"], "predicate": 2}\n')
    with pytest.raises(PolysemeError, match=r"r\.jsonl:1: predicate is '2', not the index of a word, 0 to 1"):
        SemanticRolesTask.read(tmp_path / "r.jsonl")


def srl_eval_counts(gold, predicted):
    """Count correct, excess and missed arguments by the rules of srl-eval."""

    def read(cells):
        phrases, begun = [], None
        for i, cell in enumerate(cells):
            if cell.startswith("("):
                begun = (i, cell[1 : cell.index("*")])
            if cell.endswith(")"):
                phrases.append([begun[1], begun[0], i])
        arguments, by_type = [], {}
        for role, first, last in phrases:
            kind = role[2:] if role.startswith("C-") else role
            if role.startswith("C-") and kind in by_type:
                by_type[kind][1].append((first, last))
            else:
                by_type[kind] = [kind, [(first, last)]]
                arguments.append(by_type[kind])
        return [each for each in arguments if each[0] != "V"]

    true, guess = read(gold), read(predicted)
    right = sum(each in true for each in guess)
    return right, len(guess) - right, len(true) - right


def test_scores_match_srl_eval():
    draw, columns = random.Random(1), []
    for _ in range(400):
        pair = []
        for _ in range(2):
            tags = draw.choices(["O", "B-A0", "B-A1", "B-C-A1", "B-V", "B-C-V", "I", "I"], k=draw.randint(3, 7))
            for i, tag in enumerate(tags):
                before = tags[i - 1] if i else "O"
                tags[i] = tag if tag != "I" else "O" if before == "O" else f"I{before[1:]}"
            pair.append(tags)
        columns.append([tags[: min(map(len, pair))] for tags in pair])
    totals = np.sum([srl_eval_counts(*map(tags_to_brackets, pair)) for pair in columns], axis=0)
    metrics = srl_scores([tuple(gold) for gold, _ in columns], [predicted for _, predicted in columns])
    right, over, missed = totals
    assert right > 40 and metrics["precision"] == pytest.approx(right / (right + over), abs=1e-12)
    assert metrics["recall"] == pytest.approx(right / (right + missed), abs=1e-12)
    assert metrics["f1"] == pytest.approx(2 * right / (2 * right + over + missed), abs=1e-12)
    assert srl_scores([("B-A0", "B-V")], [(None, "B-V")])["f1"] == 0  # cut off: wrong


VERBS, NOUNS = ["chases", "sees", "pleases", "scares"], ["cat", "dog", "fish", "bird", "wolf", "bear"]


def clauses(n, seed=0, most=3):
    """Clauses of a verb and two nouns, whose roles depend on the verb; only the clause of the predicate has roles."""
    draw, examples = random.Random(seed), []
    for i in range(n):
        verbs = draw.choices(VERBS, k=draw.randint(1, most))
        words = [w for verb in verbs for w in (verb, *draw.choices(NOUNS, k=2))]
        place = draw.randrange(len(verbs))
        roles = ["B-A0", "B-A1"] if verbs[place] in VERBS[:2] else ["B-A1", "B-A0"]
        tags = ["O"] * len(words)
        tags[3 * place : 3 * place + 3] = ["B-V", *roles]
        examples.append(
            PredicateExample(f"d:{i}", words=tuple(words), tags=tuple(tags), predicate=(3 * place, verbs[place]))
        )
    return examples


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folders_by_family = {}
    for name in ("bert", "roberta", "gpt2", "t5", "elmo"):
        family = FAMILIES[name]
        kind = family.tokenizer.replace("events", "bpe")
        words = [*VERBS, *NOUNS]
        tokenizer = Tokenizer.train(
            kind, iter([" ".join(words), *words] * 30), 120 if kind.startswith("unigram") else 300
        )
        tokenizer = tokenizer.with_cls_position(family.cls_position)
        sizes = {"num_layers": 2, "dim": 32, "num_heads": 2, "vocab_size": tokenizer.vocab_size, "max_len": 48}
        usual = supported_args(family, **sizes, dropout=0.0, attention_dropout=0.0)
        folders_by_family[name] = tmp_path_factory.mktemp(name)
        save_model(
            folders_by_family[name],
            family.model_config(**usual | ({"init_std": 0.1} if name == "bert" else {})).build(0),
            tokenizer,
        )
    return folders_by_family


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "t5", "elmo"])
def test_the_predicate_matters_and_batching_does_not(folders, name):
    trunk = read_model_config(folders[name])[0].trunk
    folder = load_model(folders[name], heads={"tag": FAMILIES[name].task_head("tag", ("O", "B-A0"), trunk)}, seed=1)
    task = SemanticRolesTask(("O", "B-A0"))
    words = ("sees", "cat", "dog", "sees", "fish")
    data = [PredicateExample("e", words=words, predicate=(i, "see")) for i in (0, 3)]
    encoded = task.encode([*data, PredicateExample("e", words=words)], folder.tokenizer, 40, use_labels=False)
    assert all(len(e.positions) == 5 for e in encoded)
    assert all(np.array_equal(e.ids[e.positions], encoded[2].ids[encoded[2].positions]) for e in encoded)
    logits = compute_logits(folder.model.double().eval(), task, encoded)
    for one, scores in zip(encoded, logits):
        np.testing.assert_allclose(compute_logits(folder.model, task, [one])[0], scores, atol=1e-9)
    assert all(np.abs(logits[0] - logits[1]).max(1)[3:] > 1e-9), (
        "the scores depend on which of two equal words is the predicate"
    )


@pytest.mark.parametrize(
    "name", ["bert", pytest.param("gpt2", marks=pytest.mark.slow), pytest.param("t5", marks=pytest.mark.slow)]
)
def test_semantic_roles_are_learned(folders, tmp_path, name, run_cli):
    data = clauses(460, most=2)
    size = 16 if name == "bert" else 8  # the others learn more slowly
    settings = FinetuneConfig(epochs=12, batch_size=size, optimizer=OptimizerConfig(lr=5e-3))
    task_data = TaskData(SemanticRolesTask(), data[:400], data[400:], dataset_name="srl")
    results = finetune(folders[name], task_data, tmp_path / "run", settings)
    assert results["mean"]["f1"] > 0.95 and results["mean"]["perfect"] > 0.9
    folder = load_model(tmp_path / "run/model")
    assert evaluate(folder, data[400:])["f1"] == pytest.approx(results["mean"]["f1"])
    if name == "bert":
        asked = "sees see\ncat -\ndog -\nscares scare\nbear -\nfish -\n\nYes -\n"
        (tmp_path / "test.conll").write_text(asked)
        for ending in ("props", "conll", "jsonl"):
            out = tmp_path / f"said.{ending}"
            run_cli("predict", tmp_path / "run/model", "--task", "srl", "--data", tmp_path / "test.conll", "--out", out)
        rows = [line.split("\t") for line in (tmp_path / "said.props").read_text().split("\n")]
        assert [row[0] for row in rows] == ["see", "-", "-", "scare", "-", "-", "", "-", ""]
        assert [row[1] for row in rows[:6]] == ["(V*)", "(A0*)", "(A1*)", "*", "*", "*"]
        assert [row[2] for row in rows[:6]] == ["*", "*", "*", "(V*)", "(A1*)", "(A0*)"]
        again = DATASETS["srl"].read_split(tmp_path / "said.conll")
        assert [e.predicate for e in again] == [(0, "see"), (3, "scare")]
        predictions = predict(folder, DATASETS["srl"].read_split(tmp_path / "test.conll", needs_labels=False))
        assert [e.tags for e in again] == [p.tags for p in predictions[:2]]
        again = SemanticRolesTask.read(f"{tmp_path / 'said.jsonl'}::label=prediction")
        assert again[1].predicate == (3, "scares") and [e.tags for e in again] == [p.tags for p in predictions]


@pytest.mark.parametrize("source", ["elmo", pytest.param("none", marks=pytest.mark.slow)])
def test_network_over_frozen_features_learns_roles(folders, tmp_path, source):
    data = clauses(460, 1)
    settings = FEATURE_DEFAULTS.replace(
        epochs=9.0, network=FeatureNetworkSettings(lstm_dim=24, word_dim=16, dropout=0.0)
    )
    settings = settings.with_override("optimizer.lr", "5e-3")
    encoders = [folders[source]] if source in folders else []
    results = train_on_features(
        FeatureInputs(encoders),
        TaskData(SemanticRolesTask(decoder="crf"), data[:400], data[400:]),
        tmp_path / "run",
        settings,
    )
    assert results["mean"]["f1"] > 0.95
    opened = FeatureModel.load(tmp_path / "run/model")
    assert opened.model.config.trunk.features.indicator_dim == 100
    assert opened.evaluate(data[400:])["f1"] == pytest.approx(results["mean"]["f1"])
    plain = [PredicateExample(e.location, words=e.words, tags=e.tags) for e in data[400:]]
    assert opened.evaluate(plain)["f1"] < 0.6


def test_commands(folders, tmp_path, run_cli):
    rows = ["\n".join(f"{w}\t-\tsee\t(V*)" if t == "B-V" else f"{w}\t-\t-\t{'*' if t == 'O' else f'({t[2:]}*)'}"
                      for w, t in zip(e.words, e.tags)) for e in clauses(20)]  # fmt: skip
    for name in ("train", "dev"):
        (tmp_path / f"{name}.conll").write_text("\n\n".join(rows) + "\n")
    options = ("--task", "srl", "--data", tmp_path, "--set", "steps=1")
    output = run_cli("finetune", folders["bert"], *options, "--out", tmp_path / "run")
    assert "perfect" in output
    run = read_run(tmp_path / "run")
    scores = bootstrap_scores([run], num_resamples=100)
    assert run.metric == "f1" and scores.min() <= run.mean <= scores.max()
    assert run.mean == srl_scores(run.gold, run.predictions[0])["f1"]
    assert run.mean == run.task_config.score(run.gold, run.predictions[0])["f1"]
    output = run_cli("evaluate", tmp_path / "run/model", "--task", "srl", "--data", tmp_path)
    assert output.startswith("20 examples") and "perfect: " in output
    assert "srl/conll-2012" in run_cli("tasks")


def test_a_causal_model_predicts_a_word_at_its_last_piece(tiny_folders):
    """It has not read the word before; models that read both ways predict at the first piece, as in BERT's paper."""
    words, tags = ("the", "catdogs", "hide"), ("O", "B-A", "O")
    tokenizer = Tokenizer.load(tiny_folders["gpt2"])
    pieces = np.bincount(tokenizer.encode_words(words)[1]).tolist()
    assert max(pieces) > 1
    for task in (TaggingTask(labels=("O", "B-A")), SemanticRolesTask(labels=("O", "B-A"))):
        fitted = {
            name: task.fit_model(tiny_folders[name]).predicted_piece for name in ("gpt2", "bert", "xlnet", "ulmfit")
        }
        assert fitted == {"gpt2": "last", "bert": "first", "xlnet": "first", "ulmfit": "last"}
        assert task.replace(predicted_piece="first").fit_model(tiny_folders["gpt2"]).predicted_piece == "first"
        record = {"words": list(words), "tags": list(tags), "predicate": 1}
        example = task.from_record(record, "here", Columns(), True)
        positions = {}
        for piece in ("first", "last"):
            chosen = task.replace(predicted_piece=piece)
            ((encoded, _),) = chosen.encode_truncated([example], [chosen.target(example)], tokenizer, 40)
            positions[piece] = encoded.positions
        assert (positions["last"] - positions["first"]).tolist() == [number - 1 for number in pieces]
