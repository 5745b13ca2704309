"""N-gram runs: the run folder, the commands, the model from `polyseme.load`, and parity with NLTK."""

from __future__ import annotations

import gzip
import json
import math
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import polyseme
from polyseme.errors import PolysemeError
from polyseme.generation.config import GenerationConfig
from polyseme.inference.ngram_lm import NgramLM
from polyseme.io.json import read_json
from polyseme.ngram.count import count_ngrams
from polyseme.ngram.estimate import estimate_kneser_ney
from polyseme.ngram.train import NgramRecipe, train_ngram
from polyseme.ngram.trie import NgramVocab
from polyseme.recipes import get_recipe, get_training_recipe
from polyseme.text.tokenizer import Tokenizer
from tests.ngram.reference import ReferenceKneserNey
from tests.support.folders import copy_unhashed
from tests.support.stored_corpus import store
from tests.support.text import ADJECTIVES, ANIMALS, PLACES, VERBS
from tests.support.toy_ngram import next_token_probs

WIKITEXT = Path(__file__).parents[3] / "shared" / "data" / "wikitext-2"


def texts(num_documents: int) -> list[str]:
    rng = np.random.default_rng(0)
    documents = []
    for _ in range(num_documents):
        parts = [rng.choice(part) for part in (ADJECTIVES, ANIMALS, VERBS, ADJECTIVES, ANIMALS, PLACES)]
        adjective, one, verb, other, two, place = parts
        documents.append(f"The {adjective} {one} {verb} the {other} {two}. It lives in the {place}.")
    return documents


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("counted")
    documents = texts(400)
    manifest = {"sources": [{"weight": 1, "counts": {"documents": 400}}]}
    return store(
        folder / "corpus",
        Tokenizer.train("wordpiece", iter(documents), 150),
        documents,
        per_shard=90,
        manifest_fields=manifest,
    )


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory, run_cli):
    out = tmp_path_factory.mktemp("run") / "run"
    return out, run_cli("pretrain", "ngram-3", "--corpus", corpus.path, "--out", out)


def test_spans_with_a_tokenizer_that_has_spaces_in_its_tokens(tmp_path):
    """The score of a part is that of the text up to its end, minus that of the text before it."""
    documents = texts(200)
    tokenizer = Tokenizer.train("byte-bpe-roberta", iter(documents), 330)
    manifest = {"sources": [{"weight": 1, "counts": {"documents": 200}}]}
    corpus = store(tmp_path / "corpus", tokenizer, documents, per_shard=100, manifest_fields=manifest)
    train_ngram(get_recipe("ngram-3"), corpus.path, tmp_path / "run")
    model, text = polyseme.load(tmp_path / "run"), documents[0]
    words = text.split()
    for i, word in enumerate(words[1:], 1):
        before = " ".join(words[:i])
        expected = model.score(f"{before} {word}").log_prob - model.score(before).log_prob
        assert expected < 0
        for start in (len(before), len(before) + 1):
            score = model.score(text, spans=(start, len(before) + 1 + len(word)))
            assert score.log_prob == pytest.approx(expected), (word, start)
    spans = [(0, len(text)), (0, 3), (3, len(text)), (len(before), len(text))]
    whole, *parts, last = model.score([text] * len(spans), spans=spans)
    assert whole == model.score(text) and sum(part.num_tokens for part in parts) == whole.num_tokens
    assert sum(part.log_prob for part in parts) == pytest.approx(whole.log_prob)
    assert last.log_prob == pytest.approx(score.log_prob)


def test_spans_of_whole_tokens(run):
    """A part has whole tokens, and is scored after the sentences before it, however they end."""
    model = polyseme.load(run[0])
    assert model.score("\u200b cat", spans=(1, 5)).log_prob == pytest.approx(model.score("cat").log_prob)
    text, start = "It ( lives here. The cat ) finds it.", 24  # a sentence only before the closing parenthesis
    parts = model.score([text, text], spans=[(0, start), (start, len(text))])
    assert sum(part.log_prob for part in parts) != pytest.approx(model.score(text).log_prob), "it is split"
    assert parts[1].num_tokens == len(model.tokenizer.encode(") finds it."))
    for text, span in (("the small hare", (6, 9)), ("the \u200b hare", (3, 5))):
        with pytest.raises(PolysemeError, match=f"characters {span[0]} to {span[1]} of the text are no whole tokens"):
            model.score(["the cat", text], spans=[(0, 3), span])


def test_run_folder(run, corpus):
    out, stdout = run
    assert {path.name for path in out.iterdir()} == {
        "model",
        "README.md",
        "recipe.json",
        "report.html",
        "results.json",
        "SHA256SUMS",
    }
    results = read_json(out / "results.json")
    assert results["ngrams"][0] == 150 - 3 and len(results["ngrams"]) == 3
    assert results["valid"]["perplexity"] == pytest.approx(math.exp(results["valid"]["next"]))
    assert results["valid"]["perplexity"] < results["valid"]["perplexity_words"] < 15
    assert f"valid perplexity: {results['valid']['perplexity']:.4f}" in stdout
    assert not [path for path in (out / "model").rglob("*") if path.suffix in (".pkl", ".pt", ".bin")]
    assert get_recipe(str(out / "recipe.json")) == get_recipe("ngram-3")


def test_held_out_perplexity_equals_the_reference(run, corpus):
    """The loss over ids equals the reference; the score of the held-out texts lacks the end and counts words only."""
    out, _ = run
    train_corpus, valid_corpus = corpus.split(0.01)
    model = polyseme.load(out / "model")
    vocab = model.ngrams.vocab
    reference = ReferenceKneserNey(
        sentences_of(train_corpus), 3, vocab.bos_id, vocab.eos_id, np.flatnonzero(vocab.is_predicted)
    )
    logs, events, words = 0.0, 0, 0
    for sentence in sentences_of(valid_corpus):
        text = [vocab.bos_id, *sentence, vocab.eos_id]
        token_logs = [math.log(reference.prob(text[i], text[:i])) for i in range(1, len(text))]
        logs += sum(token_logs)
        events += len(text) - 1
        words += len(sentence)
    assert read_json(out / "results.json")["valid"]["next"] == pytest.approx(-logs / events, rel=1e-5)
    scores = model.score([" ".join(texts(400)[i] for i in np.flatnonzero(valid_mask(400, 4)))])
    assert scores[0].num_tokens == words
    assert scores[0].log_prob == pytest.approx(logs - token_logs[-1], rel=1e-5)


def valid_mask(num_documents: int, num_valid: int) -> np.ndarray:
    is_valid = np.zeros(num_documents, bool)
    is_valid[((np.arange(num_valid) + 0.5) * num_documents / num_valid).astype(int)] = True
    return is_valid


def sentences_of(corpus) -> list[list[int]]:
    lengths = np.diff(corpus.sentence_offsets)
    ids = corpus.gather_tokens(corpus.sentence_offsets[:-1], lengths)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def test_supported_and_unsupported_commands(run, cli, run_cli, tmp_path):
    out, _ = run
    model = polyseme.load(out / "model")
    assert isinstance(model, NgramLM)
    (tmp_path / "lines.txt").write_text("It lives in the river.\nriver the in lives It.\n")
    rows = [
        json.loads(line)
        for line in run_cli("score", out / "model", "--data", tmp_path / "lines.txt", "--json").splitlines()
    ]
    assert rows[0]["perplexity"] < 5 < rows[1]["perplexity"]
    assert "intact" in run_cli("verify", out / "model")
    for verb in (["fill", out / "model", "a [MASK]"], ["next", out / "model", "a", "b"]):
        completed = cli(*verb)
        assert completed.status == 2 and completed.err.startswith("error: ") and "is an n-gram model" in completed.err
    completed = cli("finetune", out / "model", "--task", "classification", "--train", "x", "--dev", "x", "--out", "y")
    assert completed.status == 2 and completed.err.count("\n") == 1
    with pytest.raises(PolysemeError, match="has no tokens"):
        model.score(["the cat", " "])


def test_generate(run, cli, run_cli, tmp_path):
    """Sampling, greedy search, beam search and streaming, from Python and the command line."""
    out, _ = run
    model = polyseme.load(out / "model")
    drawn = [GenerationConfig(40, do_sample=True, seed=seed, num_return_sequences=200) for seed in (1, 2)]
    texts = [[g.text for g in model.generate("", search)] for search in drawn]
    assert texts[0] == [g.text for g in model.generate("", drawn[0])] != texts[1]
    starts = Counter(text.split()[0] for text in texts[0])
    assert starts["the"] > 70 and starts["it"] > 70, "an empty prompt is the start of a sentence"
    (likeliest,) = model.generate("It lives")
    assert likeliest.is_finished and likeliest.text.startswith(" in the ") and not likeliest.score > 0
    (beam,) = model.generate("It lives", GenerationConfig(num_beams=1))
    assert beam == likeliest
    (wide,) = model.generate("It lives", GenerationConfig(num_beams=8, length_penalty=0.0))
    assert wide.score >= likeliest.score
    assert "".join(model.stream("It lives")) == likeliest.text == "".join(model.stream("It", prefix=" lives"))
    whole, before = model.score(["it lives" + likeliest.text, "it lives"])
    sentence = model.tokenizer.encode("it lives" + likeliest.text)
    end = np.array([model.ngrams.vocab.bos_id, *sentence, model.ngrams.vocab.eos_id])
    generated = whole.log_prob - before.log_prob + math.log(10) * model.ngrams.log10_probs(end)[-1]
    assert likeliest.score == pytest.approx(generated, abs=1e-5)
    assert model.generate("A cat. It lives") == [likeliest], "a previous sentence has no effect"
    (short,) = model.generate("It lives", GenerationConfig(1))
    assert len(short.tokens) == 1 and not short.is_finished
    stdout = run_cli("generate", out / "model", "--prompt", "It lives")
    assert stdout == "It lives" + likeliest.text + "\n"
    (tmp_path / "x").write_text("It\n")
    rows = run_cli(
        "generate", out / "model", "--prompt", "It", "--num-beams", 3, "--num-return-sequences", 2, "--json"
    ).splitlines()
    assert len(rows) == 2 and json.loads(rows[0])["log_prob"] <= 0
    for wrong, message in (
        (["generate", out / "model", "--prompt", "It", "--temperature", "-1"], "temperature"),
        (["generate", out / "model", "--prompt", "It", "--num-beams", 2, "--do-sample"], "does not sample"),
        (["translate", out / "model", "--data", tmp_path / "x"], "is an n-gram model"),
        (["explain", out / "model", "--text", "It", "--out", tmp_path / "p.html"], "cannot show attention"),
    ):
        completed = cli(*wrong)
        assert completed.status == 2 and message in completed.err and completed.err.count("\n") == 1, completed.err
    assert not (tmp_path / "p.html").exists()
    with pytest.raises(
        PolysemeError, match="cannot embed texts: it is an n-gram model of order 3, which supports encode"
    ):
        model.embed("It")
    with pytest.raises(PolysemeError, match="without a source"):
        model.generate("It", GenerationConfig(0))


def test_arpa_commands_round_trip(run, run_cli, cli, tmp_path):
    out, _ = run
    run_cli("arpa", "export", out / "model", "--out", tmp_path / "m.arpa.gz")
    run_cli("arpa", "import", tmp_path / "m.arpa.gz", "--out", tmp_path / "m", "--tokenizer", out / "model")
    text = ["It lives in the river."]
    assert polyseme.load(tmp_path / "m").score(text) == polyseme.load(out / "model").score(text)
    for wrong in (
        ["export", out / "model", "--out", tmp_path / "m.arpa.gz"],
        ["export", tmp_path, "--out", tmp_path / "n.arpa"],
        ["import", tmp_path / "m.arpa.gz", "--out", tmp_path / "m"],
        ["import", out / "results.json", "--out", tmp_path / "n"],
    ):
        completed = cli("arpa", *wrong)
        assert completed.status == 2 and completed.err.count("\n") == 1, completed.err
    assert not (tmp_path / "n").exists() and not (tmp_path / "n.arpa").exists()


@pytest.mark.parametrize(
    "options,message",
    [
        (["--set", "order=9"], "order is 9"),
        (["--set", "order=0"], "order is 0"),
        (["--set", "cutoffs=[0,2,1]"], "must not decrease"),
        (["--set", "ordre=2"], "did you mean 'order'?"),
        (["--set", "valid_fraction=1"], "valid_fraction is 1"),
        (["--set", "memory_mb=0"], "memory_mb is 0"),
        (["--budget", "5m"], "budget, resume and init_from do not apply"),
        (["--set", "budget.steps=5"], "budget, resume and init_from do not apply"),
        (["--resume"], "budget, resume and init_from do not apply"),
    ],
)
def test_invalid_settings_raise(options, message, corpus, cli, tmp_path):
    completed = cli("pretrain", "ngram-5", "--corpus", corpus.path, "--out", tmp_path / "run", *options)
    assert completed.status == 2 and message in completed.err and completed.err.count("\n") == 1
    assert not list(tmp_path.iterdir()), "no partial output"


def test_scores_do_not_depend_on_company(run, monkeypatch, tmp_path, run_cli):
    """A text has the same score alone, among others, and in any batch; the command prints what is counted."""
    model, batch = polyseme.load(run[0]), texts(30)
    together = model.score(batch)
    monkeypatch.setattr("polyseme.inference.ngram_lm._TEXTS_PER_BATCH", 7)
    for text, score, other in zip(batch, together, model.score(batch), strict=True):
        assert [score.num_tokens, score.num_characters] == [other.num_tokens, len(text)]
        for again in (other, model.score(text)):
            assert again.log_prob == pytest.approx(score.log_prob, abs=1e-5)
    (tmp_path / "texts.txt").write_text("\n".join(batch))
    row = json.loads(run_cli("score", run[0], "--data", tmp_path / "texts.txt", "--json").splitlines()[0])
    assert row["num_tokens"] == together[0].num_tokens and row["num_characters"] == len(batch[0])
    assert row["bits_per_character"] == pytest.approx(together[0].bits_per_character)


def test_ngram_recipe_is_not_a_training_recipe(run, corpus, cli):
    out, _ = run
    completed = cli("pretrain", "ngram-3", "--corpus", corpus.path, "--out", out)
    assert completed.status == 2 and "already exists" in completed.err
    with pytest.raises(PolysemeError, match="nothing to train"):
        get_training_recipe("ngram-5")
    with pytest.raises(PolysemeError, match="did you mean 'ngram-5'"):
        get_training_recipe("ngrams-5")


def _damage(name, change):
    def do(folder):
        change(folder / name)

    return do


DAMAGE = {
    "an array is cut": (_damage("3.logp.npy", lambda p: p.write_bytes(p.read_bytes()[:-8])), "3.logp.npy is damaged"),
    "an array is missing": (_damage("2.child_offsets.npy", Path.unlink), "2.child_offsets.npy"),
    "another type": (_damage("3.logp.npy", lambda p: np.save(p, np.load(p).astype(int))), "3.logp.npy is damaged"),
    "begins do not fit": (
        _damage("3.child_offsets.npy", lambda p: np.save(p, np.load(p) + np.uint32(1))),
        "its offsets are not ascending",
    ),
    "a number that is not finite": (
        _damage("2.logp.npy", lambda p: np.save(p, np.append(np.load(p)[:-1], np.float32("nan")))),
        "1 of its",
    ),
    "a word outside the vocabulary": (
        _damage("2.words.npy", lambda p: np.save(p, np.append(np.load(p)[:-1], np.uint16(60_000)))),
        "it has the id 60000",
    ),
    "a pickle": (_damage("3.words.npy", lambda p: np.save(p, np.array([{}], object))), "3.words.npy is damaged"),
    "a strange order": (
        _damage("config.json", lambda p: p.write_text(p.read_text().replace('"order": 3', '"order": "3"'))),
        "order is '3'",
    ),
    "another mark": (
        _damage("config.json", lambda p: p.write_text(p.read_text().replace('"bos_token_id": 2', '"bos_token_id": 7'))),
        "bos_token_id 7",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_folders_raise(case, run, tmp_path, cli):
    damage, message = DAMAGE[case]
    copy_unhashed(run[0] / "model", tmp_path / "model")
    damage(tmp_path / "model")
    (tmp_path / "x").write_text("a\n")
    completed = cli("score", tmp_path / "model", "--data", tmp_path / "x")
    assert completed.status == 2 and message in completed.err and completed.err.count("\n") == 1


def test_verify_detects_a_changed_number(run, tmp_path, cli):
    shutil.copytree(run[0] / "model", tmp_path / "model")
    array = np.load(tmp_path / "model" / "2.logp.npy")
    array[3] -= 1
    np.save(tmp_path / "model" / "2.logp.npy", array)
    completed = cli("verify", tmp_path / "model")
    assert completed.status == 2 and "2.logp.npy was changed" in completed.err


def test_killed_run_leaves_no_partial_output(corpus, tmp_path):
    code = (
        "import sys, time, polyseme.ngram.train as r; from pathlib import Path; plain = r.estimate_kneser_ney\n"
        "def slow(*args):\n    print('counted', flush=True); time.sleep(60)\n"
        "r.estimate_kneser_ney = slow\n"
        "r.train_ngram(r.NgramRecipe('x', order=3), Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    out = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", code, corpus.path, out], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "counted\n"
    assert list(tmp_path.iterdir()), "the run has started"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not out.exists()
    train_ngram(NgramRecipe("x", order=3), corpus.path, out)
    assert [path.name for path in tmp_path.iterdir()] == ["run"], "the leftovers of the killed run are removed"


# ------------------------------------------------------------------------------------------- parity with other code


def test_nltk_gives_the_same_probabilities(tmp_path):
    """NLTK has one discount and does not smooth unigrams, so the discounts are fixed. It pads sentences with two BOS
    and counts differently at the first word, so the comparison begins at the second."""
    lm = pytest.importorskip("nltk.lm")
    size, start, end, discount, rng = 30, 1, 2, 0.4, np.random.default_rng(0)
    sentences = [(3 + (size - 3) * rng.random(rng.integers(2, 9)) ** 2).astype(int).tolist() for _ in range(150)]
    grams = []
    for sentence in sentences:
        text = [start, start, *sentence, end]
        ngrams = [tuple(text[i : i + n]) for n in (1, 2, 3) for i in range(len(text) - n + 1)]
        grams.append([gram for gram in ngrams if gram not in ((start,), (start, start))])
    nltk_model = lm.KneserNeyInterpolated(3, discount=discount)
    nltk_model.fit([[tuple(map(str, gram)) for gram in part] for part in grams], [str(i) for i in range(1, size)])
    vocab = NgramVocab(size, start, end, np.arange(size) > start)
    stream = vocab.add_bos_eos(np.concatenate(sentences), np.array(list(map(len, sentences))))
    discounts = [(0.0,) * 3, (discount,) * 3, (discount,) * 3]
    with np.errstate(divide="ignore"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("polyseme.ngram.estimate.estimate_level_discounts", lambda level: discounts.pop(0))
        model, _ = estimate_kneser_ney(count_ngrams([stream], vocab, 3, tmp_path), vocab, tmp_path)
    seen = {word for sentence in sentences for word in sentence}
    histories = [sentence[i - 2 : i] for sentence in sentences[:12] for i in range(2, len(sentence))]
    histories += [[start, sentence[0]] for sentence in sentences[:5]]
    probs = next_token_probs(model, np.array(histories))
    for history, row in zip(histories, probs):
        for word in [*sorted(seen)[::4], end]:
            expected = nltk_model.score(str(word), [str(w) for w in history])
            assert row[word] == pytest.approx(expected, rel=1e-5)


@pytest.mark.skipif(not WIKITEXT.exists(), reason="WikiText-2 is not available")
def test_trigram_perplexity_on_wikitext_equals_the_reference(tmp_path):
    """Train on half of the validation set, measure on the other; words that occur once are unknown."""
    with gzip.open(WIKITEXT / "wiki.valid.raw.gz", "rt", encoding="utf-8") as file:
        lines = [line.split() for line in file if line.split()]
    counts = Counter(word for line in lines[::2] for word in line)
    known = {word: i for i, word in enumerate([w for w, n in counts.items() if n > 1], start=3)}
    train, test = ([[known.get(w, 0) for w in line] for line in lines[i::2]] for i in (0, 1))
    size = len(known) + 3
    vocab = NgramVocab(size, 1, 2, np.arange(size) != 1)

    def stream(part):
        return vocab.add_bos_eos(np.concatenate(part), np.array(list(map(len, part))))

    model, _ = estimate_kneser_ney(count_ngrams([stream(train)], vocab, 3, tmp_path), vocab, tmp_path)
    logs = model.log10_probs(stream(test))
    events = int((stream(test) != 1).sum())
    reference = ReferenceKneserNey(train, 3, 1, 2, np.flatnonzero(vocab.is_predicted))
    total = 0.0
    for line in test:
        text = [1, *line, 2]
        total += sum(math.log10(reference.prob(text[i], text[max(i - 2, 0) : i])) for i in range(1, len(text)))
    assert 10 ** (-logs.sum() / events) == pytest.approx(10 ** (-total / events), rel=1e-5)
    assert 50 < 10 ** (-total / events) < 300
