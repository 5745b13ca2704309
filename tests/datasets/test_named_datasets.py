"""Other named data sets: small files in the published formats, with oddities and errors."""

# ruff: noqa: E501  # rows of tables as they are distributed

import csv
import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest

from polyseme.datasets.catalog import DATASETS
from polyseme.datasets.glue import wnli_warnings
from polyseme.errors import PolysemeError
from tests.support.tasks import compute_metrics

REAL = Path(__file__).parents[2].parent / "shared/data"
MNLI = ["index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse",
        "sentence2_parse", "sentence1", "sentence2", "label1", "gold_label"]  # fmt: skip


def tsv(*rows):
    return "".join("\t".join(row) + "\n" for row in rows)


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def commas(*rows):
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue()


def mnli(label, i=0):
    cells = [
        str(i),
        "1",
        "1n",
        "fiction",
        "( a )",
        "( b )",
        "(ROOT a)",
        "(ROOT b)",
        'He said "go',
        "He spoke",
        label,
        label,
    ]
    return tsv(MNLI, cells)


RECORD = {
    "source": "Daily mail", "idx": 3,
    "passage": {"text": "Ann met Bob in Paris.\n@highlight\nBob left", "entities": [{"start": 0, "end": 2},
                {"start": 8, "end": 10}, {"start": 15, "end": 19}, {"start": 33, "end": 35}]},
    "qas": [{"query": "It was @placeholder who left", "idx": 7, "answers": [{"start": 33, "end": 35, "text": "Bob"}]}],
}  # fmt: skip
MULTIRC = {
    "idx": 2,
    "passage": {"text": "A day.", "questions": [
        {"question": "When?", "idx": 0, "answers": [{"text": "day", "idx": 0, "label": 1}, {"text": "night", "idx": 1, "label": 0}]},
        {"question": "Who?", "idx": 1, "answers": [{"text": "me", "idx": 2, "label": 0}]}]},
}  # fmt: skip
ARTICLE = {"article": "Tom ran.", "id": "high1.txt", "answers": ["B", "A"], "questions": ["Tom  _  .", "Who ran?"],
           "options": [["sat", "ran", "ate", "hid"], ["Tom", "Tim", "Ann", "Bob"]]}  # fmt: skip
SWAG = [
    "",
    "video-id",
    "fold-ind",
    "startphrase",
    "sent1",
    "sent2",
    "gold-source",
    "ending0",
    "ending1",
    "ending2",
    "ending3",
    "label",
]
CASES = {  # the file of one part, its content, and what its first and last example must be: text, pair, choices, label
    "glue/qqp": ("dev.tsv", tsv(["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
                 ["1", "2", "3", 'Is "x" so?', "Is x so?", "1"]), ('Is "x" so?', "Is x so?", None, "1")),
    "glue/mnli": ("dev_matched.tsv", mnli("neutral"), ('He said "go', "He spoke", None, "neutral")),
    "glue/mnli-mm": ("dev_mismatched.tsv", mnli("contradiction"), ('He said "go', "He spoke", None, "contradiction")),
    "glue/qnli": ("dev.tsv", tsv(["index", "question", "sentence", "label"], ["0", "Who?", "Me.", "entailment"]),
                  ("Who?", "Me.", None, "entailment")),
    "glue/rte": ("dev.tsv", tsv(["index", "sentence1", "sentence2", "label"], ["0", "A.", "B.", "not_entailment"]),
                 ("A.", "B.", None, "not_entailment")),
    "glue/diagnostic": ("diagnostic-full.tsv", tsv(
        ["Lexical Semantics", "Predicate-Argument Structure", "Logic", "Knowledge", "Domain", "Premise", "Hypothesis", "Label"],
        ["", "", "Negation", "", "", "It is.", "It is not.", "contradiction"]), ("It is.", "It is not.", None, "contradiction")),
    "snli": ("snli_1.0_dev.jsonl", lines({"gold_label": "-", "sentence1": "x", "sentence2": "y"},
             {"gold_label": "entailment", "sentence1": "A man.", "sentence2": "A person.", "pairID": "1"}),
             ("A man.", "A person.", None, "entailment")),
    "sick": ("dev.txt", tsv(["A man", "A dog", "2"]), ("A man", "A dog", None, "2")),
    "superglue/boolq": ("val.jsonl", lines({"question": "is it", "passage": "It is.", "idx": 0, "label": True}),
                        ("It is.", "is it", None, "true")),
    "superglue/cb": ("val.jsonl", lines({"premise": "p", "hypothesis": "h", "label": "neutral", "idx": 1}),
                     ("p", "h", None, "neutral")),
    "superglue/copa": ("val.jsonl", lines({"premise": "It fell.", "choice1": "a", "choice2": "b", "question": "cause",
                       "label": 1, "idx": 0}), ("It fell. What was the cause of this?", None, ("a", "b"), "1")),
    "superglue/multirc": ("val.jsonl", lines(MULTIRC), ("A day.", "When? day", None, "1")),
    "superglue/record": ("val.jsonl", lines(RECORD), ("Ann met Bob in Paris.\n\nBob left It was @placeholder who left",
                         None, ("Ann", "Bob", "Paris"), "1")),
    "superglue/rte": ("val.jsonl", lines({"premise": "p", "hypothesis": "h", "label": "entailment", "idx": 1}),
                      ("p", "h", None, "entailment")),
    "superglue/wic": ("val.jsonl", lines({"word": "bed", "sentence1": "a bed", "sentence2": "bed of roses", "start1": 2,
                      "end1": 5, "start2": 0, "end2": 3, "label": False, "idx": 0}), ("bed: a bed", "bed of roses", None, "false")),
    "superglue/wsc": ("val.jsonl", lines({"text": "Mark told Pete he lied", "idx": 0, "label": True, "target": {
                      "span1_index": 0, "span1_text": "Mark", "span2_index": 3, "span2_text": "he"}}),
                      ("Mark told Pete * he * lied", "Mark", None, "true")),
    "swag": ("val.csv", commas(SWAG, ["0", "v1", "2", "s", "He runs.", "She", "gold", "sits, calmly", 'says "no"', "c", "d", "2"]),
             ("He runs.", None, ("She sits, calmly", 'She says "no"', "She c", "She d"), "2")),
    "arct": ("dev-full.txt", tsv(["#id", "warrant0", "warrant1", "correctLabelW0orW1", "reason", "claim", "debateTitle", "debateInfo"],
             ["1_2", "w0", "w1", "1", "Because.", "So.", "t", "i"]), ("Because. So.", None, ("w0", "w1"), "1")),
    "story-cloze": ("cloze_test_test__spring2016 - cloze_test_ALL_test.csv", commas(
        ["InputStoryid", "InputSentence1", "InputSentence2", "InputSentence3", "InputSentence4", "RandomFifthSentenceQuiz1",
         "RandomFifthSentenceQuiz2", "AnswerRightEnding"], ["x", "A.", "B.", "C.", "D.", "E.", "F.", "2"]),
        ("A. B. C. D.", None, ("E.", "F."), "1")),
    "sst-5": ("dev.txt", "(3 (2 It) (4 (3 -LRB-) (2 1\\/2)))\n", ("It ( 1/2", None, None, "3")),
    "yelp-full": ("test.csv", '"4","Good\\n\\nbut ""dear"""\n', ('Good\n\nbut "dear"', None, None, "4")),
    "yelp-2": ("test.csv", '"1","Bad"\n', ("Bad", None, None, "1")),
    "trec-6": ("TREC_10.label", "NUM:dist How far is Malm\u00f6 ?\n", ("How far is Malm\u00f6 ?", None, None, "NUM")),
    "trec-50": ("TREC_10.label", "NUM:dist How far ?\n", ("How far ?", None, None, "NUM:dist")),
}  # fmt: skip
TAGS = {
    "conll-2003": ("eng.testa", "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\n. . O O\n\n", [(("EU", "."), ("I-ORG", "O"))]),
    "wnut-17": ("emerging.dev.conll", "Ann\tB-person\n#x\tO\n\t\nHi\tO\n", [(("Ann", "#x"), ("B-person", "O")), (("Hi",), ("O",))]),
    "ner": ("dev.conll", "Ann B-PER\n", [(("Ann",), ("B-PER",))]),
    "conll-2000": ("test.txt", "He PRP B-NP\nran VBD B-VP\n\n", [(("He", "ran"), ("B-NP", "B-VP"))]),
    "ud-pos": ("en_ewt-ud-dev.conllu", "# text = don't\n1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_\n1\tdo\tdo\tAUX\tV\t_\t0\troot\t_\t_\n"
               "2\tn't\tnot\tPART\tR\t_\t1\tadv\t_\t_\n2.1\tgo\tgo\tVERB\t_\t_\t_\t_\t_\t_\n\n", [(("do", "n't"), ("AUX", "PART"))]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_texts_pairs_and_choices(name, tmp_path):
    data = DATASETS[name]
    file, content, expected = CASES[name]
    path = tmp_path / data.folder / file
    path.parent.mkdir(parents=True)
    path.write_bytes(content.encode("latin-1" if name.startswith("trec") else "utf-8"))
    examples = data.read_split(tmp_path)
    first = examples[0]
    assert (first.text, getattr(first, "pair", None), getattr(first, "choices", None), first.label) == expected
    assert data.read_split(tmp_path / data.folder) == examples
    extra = data.extra_metrics(examples, [e.label for e in examples]) if data.extra_metrics else {}
    assert data.metric in compute_metrics(data.task, ["0", "1"], ["0", "1"], ("0", "1")) | extra
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert [e.text for e in data.read_split(tmp_path)] == [e.text for e in examples]


@pytest.mark.parametrize("name", TAGS)
def test_tags(name, tmp_path):
    data = DATASETS[name]
    file, content, expected = TAGS[name]
    (tmp_path / file).write_text(content)
    assert [(e.words, e.tags) for e in data.read_split(tmp_path)] == expected


def test_invalid_tags_of_a_named_dataset_are_repaired(tmp_path, capsys):
    (tmp_path / "dev.conll").write_text("Ann O\nLee I-PER\n\nBo B-PER\n")
    assert [e.tags for e in DATASETS["ner"].read_split(tmp_path)] == [("O", "B-PER"), ("B-PER",)]
    assert "repaired 1 tags in 1 of 2 sentences" in capsys.readouterr().err
    with pytest.raises(PolysemeError, match=r"dev\.conll:1: 'I-PER' at word 2 cannot stand there"):
        DATASETS["ner"].read_split(tmp_path, strict=True)


def test_every_dataset_is_tested():
    other = {"glue/cola", "glue/sst-2", "glue/mrpc", "glue/sts-b", "glue/wnli"}  # in test_catalogue
    other |= {"conll-2012", "easy-vqa"}  # in test_coreference_files and test_visual_qa
    here = {"squad/1.1", "squad/2.0", "squad-shifts", "triviaqa", "imdb", "race", "wic"}
    roles = {"srl", "srl/conll-2005", "srl/conll-2012"}  # in test_roles
    assert {*CASES, *TAGS, *other, *here, *roles} == set(DATASETS)


def test_folders_of_texts(tmp_path):
    for part, label, name, text in (("train", "pos", "1_9.txt", "Good.<br /><br />Yes"), ("train", "unsup", "2_0.txt", "?"),
                                    ("train", "neg", "0_1.txt", "Bad"), ("test", "pos", "0_8.txt", "Fine")):  # fmt: skip
        path = tmp_path / "aclImdb" / part / label / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    train, dev = DATASETS["imdb"].read(tmp_path)
    assert [(e.label, e.text) for e in train] == [("neg", "Bad"), ("pos", "Good.\n\nYes")] and len(dev) == 1
    assert DATASETS["imdb"].extra_metrics(train, ["neg", "neg"]) == {"error": 0.5}


@pytest.mark.parametrize("packed", [False, True])
def test_race(tmp_path, packed):
    path = tmp_path / "RACE/dev/high/1.txt"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(ARTICLE))
    if packed:
        with tarfile.open(tmp_path / "RACE.tar.gz", "w:gz") as archive:
            archive.add(tmp_path / "RACE", "RACE")
        path.unlink()
        path.parent.rmdir()
        path.parent.parent.rmdir()
        path.parent.parent.parent.rmdir()
    first, second = DATASETS["race"].read_split(tmp_path)
    assert first.choices[1] == "Tom  ran  ." and first.label == "1" and first.text == "Tom ran."
    assert second.choices[0] == "Who ran? Tom" and second.label == "0"


def test_official_metrics_of_superglue(tmp_path):
    for name, record in (("MultiRC", MULTIRC), ("ReCoRD", RECORD)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "val.jsonl").write_text(lines(record))
    many = DATASETS["superglue/multirc"]
    examples = many.read_split(tmp_path)
    assert many.extra_metrics(examples, ["1", "0", "0"]) == {"exact": 1.0}
    assert many.extra_metrics(examples, ["1", "1", "0"]) == {"exact": 0.5}
    record = DATASETS["superglue/record"]
    asked = record.read_split(tmp_path)
    assert (
        record.extra_metrics(asked, ["1"]) == {"exact": 1.0, "f1": 1.0}
        and record.extra_metrics(asked, ["0"])["f1"] == 0
    )
    assert record.read_split(tmp_path, needs_labels=False)[0].accepted_answers == ("Bob",)


def test_wic_in_its_original_format(tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dev.data.txt").write_text("bed\tN\t1-0\tA bed\tBed of roses\n")
    (tmp_path / "dev/dev.gold.txt").write_text("F\n")
    (example,) = DATASETS["wic"].read_split(tmp_path)
    assert (example.text, example.pair, example.label) == ("bed: A bed", "Bed of roses", "F")
    (tmp_path / "dev/dev.gold.txt").write_text("F\nT\n")
    with pytest.raises(PolysemeError, match=r"has 1 lines, but .*dev\.gold\.txt has 2"):
        DATASETS["wic"].read_split(tmp_path)


def test_errors_name_file_and_line(tmp_path, capsys):
    cases = {
        "swag": ("val.csv", commas(SWAG, ["0"] * 12, ["1"]), r"val\.csv:3: 1 columns, but the first line has 12"),
        "superglue/copa": ("val.jsonl", lines({"premise": "x", "question": "why", "choice1": "a", "choice2": "b"}),
                           r"val\.jsonl:1: question is 'why', neither cause nor effect"),
        "superglue/boolq": ("val.jsonl", lines({"passage": "x", "qestion": "y"}),
                            r"val\.jsonl:1: there is no key 'question'; did you mean 'qestion'\?"),
        "superglue/wsc": ("val.jsonl", "[]\n", r"val\.jsonl:1: expected a JSON object"),
        "snli": ("snli_1.0_dev.jsonl", "{\n", r"snli_1\.0_dev\.jsonl:1: malformed JSON"),
        "arct": ("dev-full.txt", tsv(["#id", "warrant0"], ["1", "2"]), r"dev-full\.txt:1: there is no column 'warrant1'"),
        "sst-5": ("dev.txt", "(9 (2 x))\n", r"dev\.txt:1: not a tree"),
        "trec-6": ("TREC_10.label", "NUM How\n", r"TREC_10\.label:1: not a class with a colon"),
        "yelp-2": ("test.csv", '"x","y"\n', r"test\.csv:1: not a label and a text"),
        "ud-pos": ("en_ewt-ud-dev.conllu", "1\tdo\n\n", r"conllu:1: 2 columns, not 10"),
        "imdb": ("x", "", r"there is no folder .*test$"),
        "race": ("x", "", r"there is neither a folder .*dev nor race\.tar\.gz"),
        "triviaqa": ("x", "", r"squad-wikipedia-dev-4096\.json is missing"),
    }  # fmt: skip
    for name, (file, content, message) in cases.items():
        folder = tmp_path / name.replace("/", "-")
        folder.mkdir()
        (folder / file).write_text(content)
        with pytest.raises(PolysemeError, match=message):
            DATASETS[name].read_split(folder)
    with pytest.raises(PolysemeError, match="there is no split 'dve' of swag; did you mean 'dev'"):
        DATASETS["swag"].read_split(tmp_path, "dve")
    (tmp_path / "swag/val.csv").write_text(commas(SWAG, ["1"], ["0", *"bcdefghijk", "1"]))
    assert len(DATASETS["swag"].read_split(tmp_path / "swag", skip_bad=True)) == 1
    assert "skipped 1 bad of 2 rows" in capsys.readouterr().err


def test_test_files_have_no_labels(tmp_path):
    for folder, header in (("CoLA", ["index", "sentence"]), ("SST-2", ["index", "sentence"]), ("QNLI", ["index", "question", "sentence"]),
                           ("STS-B", ["index", "genre", "sentence1", "sentence2"])):  # fmt: skip
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "test.tsv").write_text(tsv(header, [f"c{i}" for i in range(len(header))]))
        (example,) = DATASETS[f"glue/{folder.lower()}"].read_split(tmp_path, "test", needs_labels=False)
        assert example.label is None and example.text in ("c1", "c2")


def test_wnli_warnings():
    if not (REAL / "glue/WNLI").is_dir():
        pytest.skip("the real files are not here")
    train, dev = DATASETS["glue/wnli"].read(REAL / "glue")
    shared, below = wnli_warnings(train, dev, 0.3)
    assert shared.startswith("48 of 71") or "of 71 dev examples have their first sentence in train" in shared
    assert below == "accuracy 0.300 is below 0.563, that of the majority label"
    assert len(wnli_warnings(train, dev, 0.9)) == 1


ROWS = {  # from the README beside the files; the published count of WNUT's training sentences is 3,394
    "sick": {"train": 4439, "dev": 495, "test": 4906},
    "wic": {"train": 5428, "dev": 638},
    "trec-6": {"train": 5452},
    "wnut-17": {"train": 3394, "dev": 1009, "test": 1287},
    "ud-pos": {"dev": 2001, "test": 2077},
    "squad-shifts": {"train": 7936, "dev": 10056, "test": 9877},
}


@pytest.mark.parametrize("name", ROWS)
def test_real_rows(name):
    if not REAL.is_dir():
        pytest.skip("the real files are not here")
    assert {part: len(DATASETS[name].read_split(REAL, part)) for part in ROWS[name]} == ROWS[name]


def test_real_articles():
    if not (REAL / "race.tar.xz").is_file():
        pytest.skip("the real files are not here")
    examples = DATASETS["race"].read_split(REAL, "dev")
    assert len({e.location.rpartition(",")[0] for e in examples}) == 700 and len(examples) == 1383


def test_real_trees():
    path = REAL / "ud-ewt/en_ewt-ud-train.rebuilt.conllu.gz"
    if not path.is_file():
        pytest.skip("the real files are not here")
    assert sum(1 for _ in DATASETS["ud-pos"].iter_rows(path, True)) == 12544


OTHER_NAMES = {
    "conll-2003": ({"train": "train.txt", "dev": "valid.txt", "test": "test.txt"}, "Ann NNP I-NP I-PER\n\n"),
    "wnut-17": ({"train": "train.txt", "dev": "dev.txt", "test": "test.txt"}, "Ann\tB-person\n\n"),
    "ner": ({"train": "train.bio", "dev": "valid.conll", "test": "test.txt.gz"}, "Ann B-PER\n\n"),
    "ud-pos": (
        {"train": "fr_gsd-ud-train.conllu", "dev": "fr_gsd-ud-dev.conllu.gz", "test": "fr_gsd-ud-test.conllu"},
        "1\tla\t_\tDET\t_\t_\t_\t_\t_\t_\n\n",
    ),
    "sick": (
        {"train": "SICK_train.txt", "dev": "SICK_trial.txt", "test": "SICK_test_annotated.txt"},
        "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n1\ta b\tc\t4.5\tNEUTRAL\n",
    ),
    "glue/cola": ({"train": "raw/in_domain_train.tsv", "dev": "in_domain_dev.tsv"}, "x\t1\t\tThe cat sat.\n"),
    "conll-2012": (
        {"train": "train.english.v4_gold_conll", "dev": "dev.english.v4_gold_conll"},
        "#begin document (d); part 000\nd 0 0 Ann NNP - - - - s (0)\n\n#end document\n",
    ),
    "story-cloze": (
        {"dev": "cloze_test_test__spring2016_ALL.csv"},
        commas(["InputStoryid", *(f"InputSentence{i}" for i in range(1, 5)), "RandomFifthSentenceQuiz1",
                "RandomFifthSentenceQuiz2", "AnswerRightEnding"], [*"abcdefg", "1"]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_other_released_names(name, tmp_path):
    dataset, (files, content) = DATASETS[name], OTHER_NAMES[name]
    for split, file in files.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        encoded = content.encode()
        (tmp_path / file).write_bytes(gzip.compress(encoded) if file.endswith(".gz") else encoded)
        (example,) = dataset.read_split(tmp_path, split)
        assert example.gold is not None and str(tmp_path / file) in example.location
    (tmp_path / dataset.splits["dev"]).parent.mkdir(exist_ok=True, parents=True)
    (tmp_path / dataset.splits["dev"]).write_bytes(b"")
    with pytest.raises(PolysemeError, match="which are both names of its dev examples: keep one of them"):
        dataset.read_split(tmp_path, "dev")


def test_missing_files_are_listed_by_their_names(tmp_path):
    with pytest.raises(PolysemeError, match=r"has no dev examples: none of eng\.testa, valid\.txt, dev\.txt$"):
        DATASETS["conll-2003"].read_split(tmp_path, "dev")
