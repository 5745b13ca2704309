"""Minimal pairs: reading, scoring, ties, aggregation, and the table next to published results."""

import json

import pytest

import polyseme
from polyseme.datasets.minimal_pairs import MinimalPair, read_minimal_pairs
from polyseme.datasets.published import published_table
from polyseme.errors import ConfigError, DataError
from polyseme.evaluation.minimal_pairs import aggregate, evaluate_minimal_pairs, minimal_pairs_table
from polyseme.inference.base import LanguageModel
from polyseme.inference.results import TextScore

PAIRS = [
    ("the cat sees the dog", "the cat see the dog", "agreement_1", "agreement"),
    ("the dogs see a bird", "the dogs sees a bird", "agreement_1", "agreement"),
    ("a bird sings", "a bird sing", "agreement_2", "agreement"),
    ("the old dog", "old the dog", "order", "s-selection"),
]


class LengthModel(LanguageModel):
    """A model that gives each character −1 and calls every word a token, to count by hand."""

    capabilities = ("score",)
    description, tokenizer = "a toy", None

    def __init__(self, has_pll_metric=False):
        super().__init__("toy")
        self._has_pll_metric, self.metrics = has_pll_metric, []

    @property
    def has_pll_metric(self):
        return self._has_pll_metric

    def _score(self, texts, pll_metric, spans):
        self.metrics.append(pll_metric)
        parts = texts if spans is None else [text[start:end] for text, (start, end) in zip(texts, spans)]
        return [TextScore(-float(len(part)), len(part.split()), len(part)) for part in parts]


@pytest.fixture
def blimp(tmp_path):
    """A folder like BLiMP's: one file per paradigm below `data`."""
    (tmp_path / "blimp/data").mkdir(parents=True)
    for good, bad, paradigm, phenomenon in PAIRS:
        row = {"sentence_good": good, "sentence_bad": bad, "UID": paradigm, "linguistics_term": phenomenon}
        with (tmp_path / f"blimp/data/{paradigm}.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
    return tmp_path / "blimp"


def write_rows(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_accuracy_is_the_mean_of_paradigms_and_a_tie_counts_half(blimp):
    pairs = read_minimal_pairs(blimp)
    assert pairs[0] == MinimalPair(*PAIRS[0]) and len(pairs) == 4
    # shorter is better here: "see" beats "sees" twice of three, and both orders of "the old dog" tie
    result = evaluate_minimal_pairs(LengthModel(), pairs)
    assert result.paradigms == {"agreement_1": 0.5, "agreement_2": 0.0, "order": 0.5}
    assert result.accuracy == pytest.approx(1 / 3)
    assert result.phenomena == {"agreement": 0.25, "argument_structure": 0.5}, "s-selection counts as in the paper"
    assert (result.num_pairs, result.num_ties) == (4, 1)


def test_normalization_by_length():
    pair = MinimalPair("aa aa", "aaaa", "p")  # 5 characters in 2 tokens, and 4 in 1
    assert evaluate_minimal_pairs(LengthModel(), [pair]).accuracy == 0.0
    assert evaluate_minimal_pairs(LengthModel(), [pair], normalization="length").accuracy == 1.0
    with pytest.raises(ConfigError, match="normalization is 'words'"):
        evaluate_minimal_pairs(LengthModel(), [pair], normalization="words")


def test_the_metric_is_passed_to_models_that_have_it():
    masked, causal = LengthModel(True), LengthModel()
    for model in (masked, causal):
        evaluate_minimal_pairs(model, [MinimalPair("a", "b", "p")], "within_word_l2r")
    assert (masked.metrics, causal.metrics) == (["within_word_l2r"], [None])


def test_aggregation():
    accuracy, phenomena = aggregate({"a": 1.0, "b": 0.5, "c": 0.0, "d": 0.5}, {"a": "x", "b": "x", "c": "y", "d": ""})
    assert (accuracy, phenomena) == (0.5, {"x": 0.75, "y": 0.0})


def test_groups(tmp_path):
    """A paradigm may occur in several phenomena, is the phenomenon by default, and null is no value."""
    rows = [{"good": "a", "bad": "bb", "phenomenon": name, "paradigm": "simple"} for name in ("x", "y")]
    rows += [{"good": "aa", "bad": "b", "phenomenon": "z", "paradigm": None, "region": None, "template": None}]
    result = evaluate_minimal_pairs(LengthModel(), read_minimal_pairs(write_rows(tmp_path / "pairs.jsonl", *rows)))
    assert result.paradigms == {"simple (x)": 1.0, "simple (y)": 1.0, "z": 0.0}
    assert result.phenomena == {"x": 1.0, "y": 1.0, "z": 0.0}


@pytest.mark.parametrize("family", ["gpt2", "roberta", "t5", "xlnet", "bert", "albert", "xlm_roberta"])
def test_all_tokens_of_a_region_are_compared(family, tiny_folders, tmp_path):
    """A space before a word is a part of its first token, or a token of its own: both are counted."""
    model = polyseme.load(tiny_folders[family], device="cpu")
    counts = []
    for region in range(3):
        row = {"good": ["dragon", "the", "hides"], "bad": ["cat", "the", "hides"], "region": region}
        (pair,) = read_minimal_pairs(write_rows(tmp_path / f"{region}.jsonl", row))
        counts.append(model.score(pair.good, spans=pair.spans[0]).num_tokens)
    assert sum(counts) == model.score("dragon the hides").num_tokens


def test_templates_and_regions(tmp_path):
    template = {"template": "The keys ___ here.", "good": "are", "bad": "is"}
    regions = {"good": ["The keys", "are", "here."], "bad": ["The keys", "is", "here."], "region": 1}
    pairs = read_minimal_pairs(write_rows(tmp_path / "agreement.jsonl", template, regions))
    assert pairs[0] == MinimalPair("The keys are here.", "The keys is here.", "agreement")
    assert pairs[1].good == pairs[0].good and pairs[1].spans == ((8, 12), (8, 11)), "with the space before them"
    result = evaluate_minimal_pairs(LengthModel(), pairs)
    assert result.accuracy == 0.0 and result.phenomena == {}


def test_tables(tmp_path):
    """CSV, TSV and Parquet give the same pairs as JSON lines, also with columns of other names."""
    rows = [{"good": good, "bad": bad, "paradigm": "p", "phenomenon": "x"} for good, bad, *_ in PAIRS]
    expected = read_minimal_pairs(write_rows(tmp_path / "pairs.jsonl", *rows))
    for suffix, separator in ((".csv", ","), (".tsv", "\t")):
        lines = [separator.join(rows[0]), *(separator.join(row.values()) for row in rows)]
        (tmp_path / f"pairs{suffix}").write_text("\n".join(lines))
        assert read_minimal_pairs(tmp_path / f"pairs{suffix}") == expected
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "pairs.parquet")
    assert read_minimal_pairs(tmp_path / "pairs.parquet") == expected
    (tmp_path / "own.txt").write_text("1\tyes\tno\n")
    spec = f"{tmp_path}/own.txt::format=tsv,header=false,text=2,pair=3"
    assert read_minimal_pairs(spec) == [MinimalPair("yes", "no", "own")]


def test_templates_and_regions_in_tables(tmp_path):
    path = tmp_path / "agreement.csv"
    path.write_text(
        "good,bad,template,region\nare,is,The keys ___ here.,\n"
        """"[""The keys"", ""are""]","[""The keys"", ""is""]",,1\nfine,not fine,,\n"""
    )
    pairs = read_minimal_pairs(path)
    assert [pair.good for pair in pairs] == ["The keys are here.", "The keys are", "fine"]
    assert [pair.spans for pair in pairs] == [None, ((8, 12), (8, 11)), None]
    path.write_text("good,bad,region\na,b,0\n")
    with pytest.raises(DataError, match=r"agreement\.csv:2: good is 'a', not a list of texts"):
        read_minimal_pairs(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "right,wrong\na,b\n", "x.csv:1: there is no column 'good'.*::text=COLUMN"),
        ("x.txt", "a\tb\n", "rows with a good and a bad sentence.*::format=NAME"),
        ("x.csv::label=y", "good,bad\na,b\n", "`label` has no effect on minimal pairs"),
        ("x.csv", "good,bad\na\n", "x.csv:2: 1 columns, but the first line has 2"),
        ("x.csv", "good,bad\na,\n", "x.csv:2: bad is ''"),
    ],
)
def test_bad_tables(name, content, message, tmp_path):
    (tmp_path / name.partition("::")[0]).write_text(content)
    with pytest.raises((ConfigError, DataError), match=message):
        read_minimal_pairs(f"{tmp_path}/{name}")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"good": "a"}, "no key 'bad'"),
        ({"good": "a", "bad": " "}, "bad is ' '"),
        ({"good": "a", "bad": "b", "template": "no gap"}, "template has 0 gaps"),
        ({"good": ["a"], "bad": ["b"], "region": 1}, "region is 1, expected an index into good"),
        ({"good": ["a", " "], "bad": ["a", "b"], "region": 1}, "critical region 1 of good is empty"),
        ({"good": ["a"], "bad": ["b"], "region": True}, "region is True"),
        ({"good": ["a"], "bad": ["b"], "region": 0, "template": "the ___"}, "a region or a template, not both"),
        ([1], "expected a JSON object"),
    ],
)
def test_bad_rows(row, message, tmp_path):
    write_rows(tmp_path / "pairs.jsonl", {"good": "a", "bad": "b"}, row)
    with pytest.raises(DataError, match=f"pairs.jsonl:2.*{message}"):
        read_minimal_pairs(tmp_path / "pairs.jsonl")
    assert len(read_minimal_pairs(tmp_path / "pairs.jsonl", skip_bad=True)) == 1


def test_empty_folders_and_missing_files(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no files of minimal pairs"):
        read_minimal_pairs(tmp_path / "empty")
    (tmp_path / "empty/header.csv").write_text("good,bad\n")
    with pytest.raises(DataError, match=r"header\.csv holds no examples"):
        read_minimal_pairs(tmp_path / "empty")
    for name in ("nowhere.jsonl", "nowhere"):
        with pytest.raises(DataError, match=f"{name} is missing"):
            read_minimal_pairs(tmp_path / name)


def test_table_next_to_published_results(blimp):
    result = evaluate_minimal_pairs(LengthModel(), read_minimal_pairs(blimp))
    header, rows = minimal_pairs_table("blimp", [result])
    assert header == ["", "toy", "5-gram", "LSTM", "Transformer-XL", "GPT-2 large", "RoBERTa-large", "human"]
    assert rows[0] == ["accuracy", "33.3", "61.2", "69.8", "69.6", "83.0", "86.5", "88.6"]
    assert rows[2] == ["argument_structure", "50.0", "71.9", "73.2", "72.2", "81.8", "", "90.0"]
    assert [row[:2] for row in rows[-3:]] == [["paradigms", "3 of 67"], ["pairs", "4"], ["ties", "1"]]
    assert minimal_pairs_table("minimal-pairs", [result])[0] == ["", "toy"]


def test_published_means_of_phenomena_give_the_published_mean():
    """The overall accuracy is the mean of 67 paradigms: of the phenomena, weighted by their number of paradigms."""
    sizes = {
        "anaphor_agreement": 2, "argument_structure": 9, "binding": 7, "control_raising": 5, "ellipsis": 2,
        "determiner_noun_agreement": 8, "filler_gap_dependency": 7, "irregular_forms": 2, "island_effects": 8,
        "npi_licensing": 7, "quantifiers": 4, "subject_verb_agreement": 6,
    }  # fmt: skip
    assert sum(sizes.values()) == 67
    for row in published_table("blimp").rows:
        if len(row.values) > 1:
            mean = sum(row.values[name] * size for name, size in sizes.items()) / 67
            assert mean == pytest.approx(row.values["accuracy"], abs=0.06), row.system


def test_command(blimp, tiny_folders, run_cli, rejects, tmp_path):
    models = [tiny_folders["bert"], tiny_folders["gpt2"]]
    results = json.loads(run_cli("evaluate", *models, "--task", "blimp", "--data", blimp, "--json"))
    assert [result["model"] for result in results] == list(map(str, models))
    expected = polyseme.evaluate(models, blimp, task="blimp")
    assert [result["accuracy"] for result in results] == [result.accuracy for result in expected]
    table = run_cli("evaluate", models[0], "--task", "minimal-pairs", "--data", blimp / "data/order.jsonl")
    assert "accuracy" in table and "human" not in table
    rejects("evaluate", models[0], "--task", "blimp", "--data", blimp, "--pll-metric", "x", match="pll.metric is 'x'")
    rejects(
        "evaluate", models[0], "--task", "blmp", "--data", blimp, match="no task or data set 'blmp'; did you mean 'b"
    )
    rejects("evaluate", models[0], "--task", "blimp", "--data", blimp, "--no-header", match="--no-header has no effect")
    assert [(result["task"], result["pll_metric"]) for result in results] == [("blimp", "original"), ("blimp", None)]
    write_rows(tmp_path / "long.jsonl", {"good": "a cat", "bad": "the cat " * 60})
    long = ("--task", "minimal-pairs", "--data", tmp_path / "long.jsonl")
    rejects("evaluate", models[0], *long, match=r"long\.jsonl:1: a text of .* tokens is longer")


@pytest.mark.parametrize(
    ("task", "options", "match"),
    [
        ("blimp", {"ensemble": True}, "`ensemble` has no effect on the task blimp"),
        ("blimp", {"text_column": "x"}, "`text_column` has no effect"),
        ("minimal-pairs", {"truncate": "head"}, "`truncate` has no effect on the task minimal-pairs"),
        ("blimp", {"header": False}, "`header` has no effect"),
        ("blimp", {"typo": 1}, "`typo` has no effect"),
        ("classification", {"pll_metric": "original"}, "`pll_metric` is for the tasks blimp and minimal-pairs"),
        ("classification", {"normalization": "length"}, "`normalization` is for the tasks"),
    ],
)
def test_options_without_effect(task, options, match, blimp, tiny_folders):
    with pytest.raises(ConfigError, match=match):
        polyseme.evaluate(tiny_folders["bert"], blimp, task=task, **options)


def test_one_model_gives_one_result(blimp, tiny_folders):
    folder = tiny_folders["bert"]
    single = polyseme.evaluate(str(folder), blimp, task="blimp")
    assert [single] == polyseme.evaluate([folder], blimp, task="blimp")
    with pytest.raises(ConfigError, match="is for masked models"):
        polyseme.evaluate(tiny_folders["gpt2"], blimp, task="blimp", pll_metric="original")
