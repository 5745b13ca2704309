"""Documents in the columns of CoNLL-2012, and coreference metrics."""

import itertools
import random

import pytest

from polyseme.datasets.catalog import DATASETS
from polyseme.errors import PolysemeError
from polyseme.tasks.coreference import CoreferenceTask, make_document
from polyseme.tasks.metrics.coreference import ceaf_phi4, coreference_metrics
from polyseme.tasks.readers.conll2012 import format_conll

# two parts of an OntoNotes document: columns aligned by spaces, predicate columns before the last
FILE = """\
#begin document (bc/cctv/00/cctv_0000); part 000
bc/cctv/00/cctv_0000   0    0       Ann   NNP  (TOP(S(NP*)    -    -   -   Speaker#1   (PERSON)   (ARG0*)     (3)
bc/cctv/00/cctv_0000   0    1       saw   VBD       (VP*     see  01   1   Speaker#1       *      (V*)       -
bc/cctv/00/cctv_0000   0    2       the    DT    (NP(NP*     -    -   -   Speaker#1       *      (ARG1*     (4
bc/cctv/00/cctv_0000   0    3       man    NN         *)     -    -   -   Speaker#1       *           *      -
bc/cctv/00/cctv_0000   0    4    -LRB-  -LRB-         *      -    -   -   Speaker#1       *           *      -
bc/cctv/00/cctv_0000   0    5       her  PRP$         *      -    -   -   Speaker#1       *           *   (7|(3)
bc/cctv/00/cctv_0000   0    6   brother    NN        *)))    -    -   -   Speaker#1       *           *)  4)|7)
bc/cctv/00/cctv_0000   0    7        /.     .        *))     -    -   -   Speaker#1       *           *      -

bc/cctv/00/cctv_0000   0    0        he   PRP  (TOP(S*))     -    -   -   Speaker#2       *           *   (4)|(7)

#end document
#begin document (bc/cctv/00/cctv_0000); part 001
bc/cctv/00/cctv_0000   1    0      Rain    NN     (TOP*)     -    -   -   -       *      -

#end document
"""


def write_file(tmp_path, text, name="a.v4_gold_conll"):
    (tmp_path / name).write_text(text)
    return tmp_path / name


def test_columns_round_trip_exactly(tmp_path, capsys):
    first, second = CoreferenceTask.read(write_file(tmp_path, FILE))
    assert first.words == ("Ann", "saw", "the", "man", "(", "her", "brother", ".", "he")
    assert first.document.sentence_lengths == (8, 1) and first.document.genre == "bc"
    assert first.document.speakers == ("Speaker#1",) * 8 + ("Speaker#2",)
    # chains 4 and 7 share "he", so they are merged
    assert first.clusters == (((0, 0), (5, 5)), ((2, 6), (5, 6), (8, 8)))
    assert "merged 1 chains" in capsys.readouterr().err
    assert (second.words, second.clusters, second.id) == (("Rain",), (), "bc/cctv/00/cctv_0000;001")
    back = "".join(format_conll(e.document, e.clusters) for e in (first, second))
    assert [line[:90] for line in back.splitlines()] == [line[:90] for line in FILE.splitlines()]
    again = CoreferenceTask.read(write_file(tmp_path, back))
    assert [e.clusters for e in again] == [e.clusters for e in (first, second)]
    assert "".join(format_conll(e.document, e.clusters) for e in again) == back
    (unread, _) = CoreferenceTask.read(write_file(tmp_path, FILE.replace("4)|7)", "junk")), needs_labels=False)
    assert unread.clusters is None


@pytest.mark.parametrize(
    "changed, message",
    [
        (("(3)", "3)"), ":2: '3)' closes a mention of 3 that was never opened"),
        (("4)|7)", "7)"), ":4: '(4' opens a mention that is not closed"),
        (("4)|7)", "4)|7)|x"), ":8: the mention 'x'"),
        (("(3)", "()"), ":2: the mention '()'"),
        (("#end document\n#begin", "#begin"), ":13: a document begins before that of line 1 has ended"),
        (("Rain    NN     (TOP*)     -    -   -   -       *      -", "Rain"), ":15: 4 columns"),
        (("#begin document (bc/cctv/00/cctv_0000); part 000", "#begin document bc"), ":1: '#begin document bc'"),
        (("#begin document (bc/cctv/00/cctv_0000); part 000", ""), ":2: a word outside of a document"),
        (
            ("Rain    NN     (TOP*)     -    -   -   -       *      -\n\n#end document", "Rain NN x x\n"),
            ":14: the docu",
        ),
    ],
)
def test_errors_name_file_and_line(tmp_path, changed, message):
    assert changed[0] in FILE
    path = write_file(tmp_path, FILE.replace(*changed, 1))
    with pytest.raises(PolysemeError) as caught:
        CoreferenceTask.read(path)
    assert f"{path}{message}" in str(caught.value)


def test_bad_documents_can_be_skipped(tmp_path, capsys):
    path = write_file(tmp_path, FILE.replace("(3)", "3)", 1))
    assert [e.words for e in CoreferenceTask.read(path, skip_bad=True)] == [("Rain",)]
    assert "skipped 1 bad of 2 rows" in capsys.readouterr().err


def test_named_dataset_reads_a_folder_tree(tmp_path):
    for part, name in (("train", "a"), ("development", "b")):
        folder = tmp_path / "conll-2012" / "v4" / "data" / part / "data" / "english" / "annotations" / "bc" / "cctv"
        folder.mkdir(parents=True)
        write_file(folder, FILE, f"{name}.v4_gold_conll")
        write_file(folder, "not this one", "a.v4_auto_skel")
    train, dev = DATASETS["conll-2012"].read(tmp_path)
    assert [len(e.words) for e in train] == [len(e.words) for e in dev] == [9, 1]
    (tmp_path / "empty").mkdir()
    with pytest.raises(PolysemeError, match=r"holds no files \*gold_conll"):
        CoreferenceTask.read(tmp_path / "empty")


@pytest.mark.parametrize("seed", range(20))
def test_nested_mentions_survive_the_round_trip(tmp_path, seed):
    """Mentions that do not cross, including nested ones of the same cluster."""
    draw = random.Random(seed)
    sizes = [draw.randint(1, 6) for _ in range(4)]
    number = sum(sizes)
    spans: list[tuple[int, int]] = []
    for _ in range(40):
        a = draw.randrange(number)
        b = draw.randint(a, number - 1)
        if (a, b) not in spans and not any(a < c <= b < d or c < a <= d < b for c, d in spans):
            spans.append((a, b))
    clusters: list[list[tuple[int, int]]] = [[] for _ in range(4)]
    for span in spans:
        draw.choice(clusters).append(span)
    words = iter(f"w{i}" for i in range(number))
    example = make_document([[next(words) for _ in range(size)] for size in sizes], "here")
    truth = tuple(sorted(tuple(sorted(cluster)) for cluster in clusters if cluster))
    path = write_file(tmp_path, format_conll(example.document, clusters))
    (reread,) = CoreferenceTask.read(path)
    assert (reread.words, reread.clusters, reread.document.sentence_lengths) == (example.words, truth, tuple(sizes))


def letters(*clusters):
    return [[(ord(c), ord(c)) for c in cluster] for cluster in clusters]


KEY = ("a", "bc", "def")
TWELVE = ("abcde", "fg", "hijkl")
NAMES = [f"{metric}_{side}" for metric in ("muc", "b_cubed", "ceaf") for side in ("recall", "precision")]


@pytest.mark.parametrize(
    "key, response, expected",
    [
        # recall and precision of MUC, B³ and CEAF as the official scorer's own tests have them, A1 to A9
        (KEY, KEY, (1, 1, 1, 1, 1, 1)),
        (KEY, ("a", "de"), (1 / 3, 1, 7 / 18, 1, 1.8 / 3, 1.8 / 2)),
        (KEY, ("a", "bcx", "defy", "z"), (1, 3 / 5, 1, (4 + 7 / 12) / 9, (9 / 5 + 6 / 7) / 3, (9 / 5 + 6 / 7) / 4)),
        (KEY, ("a", "bcx", "dy", "z"), (1 / 3, 1 / 3, 5 / 9, 17 / 42, 2.2 / 3, 2.2 / 4)),
        (KEY, ("a", "bcxB", "dy", "z"), (1 / 3, 1 / 4, 5 / 9, 5 / 16, 31 / 15 / 3, 31 / 15 / 4)),
        (KEY, ("a", "bcx", "dy", "Bz"), (1 / 3, 1 / 4, 5 / 9, 17 / 48, 2.2 / 3, 2.2 / 4)),
        (KEY, ("a", "bcxb", "dy", "z"), (1 / 3, 1 / 3, 5 / 9, 17 / 42, 2.2 / 3, 2.2 / 4)),
        (KEY, ("a", "bcx", "dy", "bz"), (1 / 3, 1 / 3, 5 / 9, 17 / 42, 2.2 / 3, 2.2 / 4)),
        (KEY, ("a", "bcx", "dy", "bbbbbbbbbbz"), (1 / 3, 1 / 3, 5 / 9, 17 / 42, 2.2 / 3, 2.2 / 4)),
        # A10 and A11: all apart, all together; by hand for CEAF: one mention aligned of each, and {def} with all six
        (KEY, "abcdef", (0, 0, 1 / 2, 1, (1 + 2 / 3 + 2 / 4) / 3, (1 + 2 / 3 + 2 / 4) / 6)),
        (KEY, ("abcdef",), (1, 3 / 5, 1, 14 / 36, 6 / 9 / 3, 6 / 9)),
        # the example of Bagga and Baldwin 1998: two ways to be wrong by one link
        (TWELVE, ("abcde", "fghijkl"), (1, 9 / 10, 1, 16 / 21, None, None)),
        (TWELVE, ("abcdehijkl", "fg"), (1, 9 / 10, 1, 7 / 12, None, None)),
    ],
)
def test_scores_match_the_official_scorer(key, response, expected):
    metrics = coreference_metrics([letters(*key)], [letters(*response)])
    assert [metrics[name] for name, value in zip(NAMES, expected) if value is not None] == pytest.approx(
        [value for value in expected if value is not None], abs=1e-12
    )
    means = [metrics[f"{name}_f1"] for name in ("muc", "b_cubed", "ceaf")]
    assert metrics["f1"] == pytest.approx(sum(means) / 3, abs=1e-12)


def random_clusters(draw, mentions):
    drawn = [m for m in mentions if draw.random() < 0.8]
    draw.shuffle(drawn)
    cuts = sorted(draw.choices(range(len(drawn) + 1), k=2))
    return [part for part in (drawn[: cuts[0]], drawn[cuts[0] : cuts[1]], drawn[cuts[1] :]) if part]


def test_scores_are_order_invariant_and_between_0_and_1():
    draw = random.Random(0)
    for _ in range(200):
        mentions = [(i, i + draw.randint(0, 2)) for i in range(draw.randint(2, 9))]
        key, response = [[random_clusters(draw, mentions) for _ in range(2)] for _ in range(2)]
        metrics = coreference_metrics(key, response)
        assert all(0 <= value <= 1 + 1e-12 for value in metrics.values())
        shuffled = [[draw.sample(c, len(c)) for c in draw.sample(d, len(d))] for d in response]
        assert coreference_metrics(key, shuffled) == pytest.approx(metrics, abs=1e-12)
        assert coreference_metrics(key[::-1], response[::-1]) == pytest.approx(metrics, abs=1e-12)
        turned = coreference_metrics(response, key)
        assert turned["ceaf_f1"] == pytest.approx(metrics["ceaf_f1"], abs=1e-12)
        assert turned["muc_precision"] == pytest.approx(metrics["muc_recall"], abs=1e-12)
        perfect = coreference_metrics(key, key)
        if any(key):
            assert [perfect[f"{name}_f1"] for name in ("b_cubed", "mentions", "ceaf")] == pytest.approx([1.0] * 3)
        assert perfect["muc_f1"] == (1.0 if any(len(c) > 1 for d in key for c in d) else 0.0)
    assert coreference_metrics([()], [()])["f1"] == 0.0 == coreference_metrics([letters("ab")], [()])["f1"]


def test_scores_are_summed_over_documents_before_division():
    key, response = [letters("abcd"), letters("ab")], [letters("ab", "cd"), letters("ab")]
    metrics = coreference_metrics(key, response)
    assert metrics["muc_recall"] == (2 + 1) / (3 + 1) and metrics["b_cubed_recall"] == (4 * 2 / 4 + 2) / 6


def test_ceaf_alignment_is_optimal():
    """Compare CEAF with every one-to-one alignment of a few clusters."""
    draw = random.Random(0)
    for _ in range(60):
        mentions = [(i, i) for i in range(draw.randint(1, 9))]
        key, response = ({}, {})
        for clusters in (key, response):
            for mention in mentions:
                clusters.setdefault(draw.randrange(4), []).append(mention)
        key, response = ([set(cluster) for cluster in clusters.values()] for clusters in (key, response))
        short, long = sorted((key, response), key=len)
        best = max(
            sum(2 * len(a & b) / (len(a) + len(b)) for a, b in zip(short, order))
            for order in itertools.permutations(long, len(short))
        )
        total, size = ceaf_phi4(key, response)
        assert total == pytest.approx(best, abs=1e-12) and size == len(key)
