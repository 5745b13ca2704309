"""Contamination equals naive counts, whatever the tokenizer, shards and slices."""

from __future__ import annotations

import json
import random
import re
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from polyseme.corpus.inspect import contamination as contamination_module
from polyseme.corpus.inspect.contamination import ContaminationResult, Detokenizer, hash_words, measure_contamination
from polyseme.errors import PolysemeError
from polyseme.text.tokenizer import Tokenizer
from tests.support.stored_corpus import store

SHARED = Path(__file__).parents[3] / "shared" / "vocab"
SYLLABLES = ["ba", "do", "ki", "lu", "me", "no", "pa", "ri", "su", "te", "vo", "za"]
SCRIPTS = [
    "Съешь же ещё этих мягких французских булок, да выпей чаю!",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता",
    "می‌خواهم بدانم که آیا این متن، درست خوانده می‌شود؟ \u200fنعم بالتأكيد",
    "我能吞下玻璃而不伤身体。吾輩は猫である。名前はまだ無い。",
    "ฉันกินกระจกได้ แต่มันไม่ทำให้ฉันเจ็บ",
    "Ein 👩‍👩‍👧‍👦 Größenmaß für naïve Façade—2½ Mal “so” groß wie Ångström’s cafe\u0301.",
]


def random_word(rng: random.Random) -> str:
    contamination = "".join(rng.choices(SYLLABLES, k=rng.choice([1, 1, 1, 2, 3])))
    if rng.random() < 0.1:
        contamination = rng.choice(
            [
                f"{contamination}'s",
                contamination.title(),
                contamination.upper(),
                str(rng.randrange(300)),
                f"{contamination}_{contamination}",
            ]
        )
    return contamination + rng.choices(["", ",", ".", "!\n", ' "', " - ", ")"], [20, 2, 2, 1, 1, 1, 1])[0]


def random_text(rng: random.Random, words: int) -> str:
    return " ".join(random_word(rng) for _ in range(words))


def naive_words(passage: str) -> list[str]:
    return re.findall(r"[^\W_]+", passage.lower())


def naive_counts(documents: Sequence[str], examples: Sequence[str], n: int) -> dict[str, int]:
    def grams(passage: str) -> list[tuple[str, ...]]:
        words = naive_words(passage)
        return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]

    corpus_ngrams = {gram for document in documents for gram in grams(document)}
    contamination = [[gram in corpus_ngrams for gram in grams(example)] for example in examples]
    return {
        "num_examples": len(examples),
        "num_too_short": sum(len(naive_words(example)) < n for example in examples),
        "num_compared": sum(bool(hits) for hits in contamination),
        "num_ngrams": sum(map(len, contamination)),
        "num_unknown": 0,
        "num_matched": sum(map(sum, contamination)),
        "num_contaminated": sum(any(hits) for hits in contamination),
        "num_half_contaminated": sum(bool(hits) and 2 * sum(hits) >= len(hits) for hits in contamination),
    }


def result_counts(contamination: ContaminationResult) -> dict[str, Any]:
    return {name: getattr(contamination, name) for name in naive_counts([], [], 1)}


@pytest.fixture(scope="module")
def documents() -> list[str]:
    """Short documents, and some longer than a small slice."""
    rng = random.Random(0)
    return [random_text(rng, rng.choice([1, 3, 9, 40, 40, 400])) for _ in range(60)]


@pytest.fixture(scope="module")
def examples(documents: list[str]) -> list[str]:
    """Mixtures of corpus text and other text, some too short."""
    rng = random.Random(1)
    contamination = []
    for _ in range(80):
        words = rng.choice(documents).split()
        start = rng.randrange(len(words))
        copied = " ".join(words[start : start + rng.choice([0, 3, 10, 30])])
        contamination.append(
            f"{random_text(rng, rng.choice([0, 2, 12]))} {copied} {random_text(rng, rng.choice([0, 1, 12]))}".strip()
        )
    return [item for item in contamination if item]


@pytest.fixture(scope="module", params=["wordpiece", "bpe"])
def tokenizer(request: pytest.FixtureRequest, documents: list[str]) -> Tokenizer:
    marks = (string.punctuation + "“”") * 9
    return Tokenizer.train(request.param, iter([*documents, random_text(random.Random(2), 2000), marks]), 420)


@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.slow), 5, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("per_shard,tokens", [(60, 1 << 17), (7, 100), (1, 41)])
def test_counts_equal_naive_counts(
    tokenizer: Tokenizer,
    documents: list[str],
    examples: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    n: int,
    per_shard: int,
    tokens: int,
) -> None:
    monkeypatch.setattr(contamination_module, "SLICE_TOKENS", tokens)
    monkeypatch.setattr(contamination_module, "BATCH_CHARS", 700)
    corpus = store(tmp_path / "corpus", tokenizer, documents, per_shard)
    assert int(np.diff(corpus.sentence_offsets[corpus.document_offsets]).max()) > 500
    set_results = measure_contamination(corpus, {"a": iter(examples), "b": examples[:9], "none": []}, n)
    assert [result_counts(item) for item in set_results] == [
        naive_counts(documents, part, n) for part in (examples, examples[:9], list[str]())
    ]
    assert n == 1 or (0 < set_results[0].num_matched < set_results[0].num_ngrams and set_results[0].num_too_short)
    assert set_results[2].rates == {"num_matched": None, "num_contaminated": None, "num_half_contaminated": None}


def test_planted_text_is_detected_and_other_text_is_not(
    tokenizer: Tokenizer, documents: list[str], tmp_path: Path
) -> None:
    rng = random.Random(3)
    secret, other = random_text(rng, 30), random_text(rng, 300)
    corpus = store(tmp_path / "corpus", tokenizer, [*documents[:3], f"{documents[3]} {secret} {documents[4]}"])
    clean_result, planted_result = measure_contamination(corpus, {"clean": [other] * 3, "planted": [other, secret]})
    assert (
        clean_result.num_matched == clean_result.num_contaminated == clean_result.num_half_contaminated == 0
        and not clean_result.worst_examples
    )
    assert (planted_result.num_contaminated, planted_result.num_half_contaminated) == (1, 1)
    (match,) = planted_result.worst_examples
    assert match.example_number == 2 and match.num_matched == match.num_ngrams == len(naive_words(secret)) - 7
    assert match.text == secret and naive_words(match.longest_match) == naive_words(secret)
    assert planted_result.rates["num_contaminated"] == 0.5


def test_case_punctuation_and_accents_are_ignored(tokenizer: Tokenizer, tmp_path: Path) -> None:
    corpus = store(tmp_path / "corpus", tokenizer, ["ba do, ki-lu. Me (no) PA: ri su! te vo?"])
    variants = ["BA DO KI LU ME NO PA RI", "  “lu” me-no... pa\u200d\nri/su*te", "bá dò ki\u0301 Lü mE no pa ri"]
    (contamination,) = measure_contamination(corpus, {"same": variants}, n=6)
    assert (
        contamination.num_matched == contamination.num_ngrams == 3 + 2 + 3 and contamination.num_half_contaminated == 3
    )
    assert (
        measure_contamination(corpus, {"other": ["ba do kilu me no pa", "ba do ki lu no me"]}, n=6)[0].num_matched == 0
    )


def test_first_word_of_a_text_matches_the_same_word_elsewhere(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Byte-level BPE has different tokens for " bado" and for "bado" at the start of a text."""
    corpus = store(tmp_path / "corpus", tokenizer, ["ki lu bado meno pari", "suteri ki lu"])
    (contamination,) = measure_contamination(
        corpus, {"first": ["bado meno pari"], "inner": ["ki lu", "lu suteri"]}, n=2
    )[:1]
    assert contamination.num_matched == contamination.num_ngrams == 2
    inner = measure_contamination(corpus, {"inner": ["the suteri ki", "pari suteri ki lu"]}, n=2)[0]
    assert inner.num_matched == 3, "`pari suteri` would cross from one document to the next"


def test_short_examples_and_unknown_words_are_counted_separately(documents: list[str], tmp_path: Path) -> None:
    tokenizer = Tokenizer.train("wordpiece", iter(documents), 420)
    corpus = store(tmp_path / "corpus", tokenizer, ["ba do ki 漢 lu me no pa ri"])
    (contamination,) = measure_contamination(
        corpus, {"a": ["ba do ki", "ba do", "do ki 字 lu me no pa", "ba 漢 do", "?!"]}, n=3
    )
    assert (contamination.num_examples, contamination.num_too_short, contamination.num_compared) == (5, 2, 2)
    assert (contamination.num_ngrams, contamination.num_unknown) == (1 + 2, 3 + 1)
    assert (contamination.num_matched, contamination.num_contaminated, contamination.num_half_contaminated) == (3, 2, 2)
    assert (
        contamination.worst_examples[0].longest_match == "lu me no pa"
        and contamination.worst_examples[0].num_matched == 2
    )


@pytest.mark.parametrize("tokens", [1 << 17, 30])
def test_all_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    """With a vocabulary of little more than bytes, most characters are several tokens."""
    monkeypatch.setattr(contamination_module, "SLICE_TOKENS", tokens)
    tokenizer = Tokenizer.train("bpe", iter(SCRIPTS), 300)
    corpus = store(tmp_path / "corpus", tokenizer, [" ".join(SCRIPTS), *SCRIPTS], 2)
    variants = [*SCRIPTS, *(item.upper().replace("SS", "ß") for item in SCRIPTS)]
    (contamination,) = measure_contamination(corpus, {"same": variants}, n=4)
    assert contamination.num_matched == contamination.num_ngrams > 150 and contamination.num_half_contaminated == len(
        variants
    )
    (contamination,) = measure_contamination(corpus, {"other": ["我能吞下石头", "Съешь же ещё этих мягких"]}, n=4)
    assert (contamination.num_ngrams, contamination.num_matched) == (3 + 2, 1 + 2)


def train_tokenizer(kind: str) -> Tokenizer:
    """Train tokenizers of other kinds: with ▁ before words, with </w> after words, with byte fallback."""
    trainer: Any
    if kind == "unigram":
        backend = Backend(models.Unigram())
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=500, special_tokens=["<unk>"], unk_token="<unk>")
    elif kind == "end of word":
        backend = Backend(models.BPE(end_of_word_suffix="</w>", unk_token="<unk>"))
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.BertPreTokenizer(), decoders.BPEDecoder("</w>")
        trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>"], end_of_word_suffix="</w>")
    else:
        names = [f"<0x{byte:02X}>" for byte in range(256)]
        backend = Backend(models.BPE({p: i for i, p in enumerate(["<unk>", "▁", *"abdeiklmnoprstuvz", *names])}, [],
                                     unk_token="<unk>", byte_fallback=True))  # fmt: skip
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        return Tokenizer(backend)
    backend.train_from_iterator([*SCRIPTS, random_text(random.Random(4), 3000)] * 2, trainer)
    return Tokenizer(backend)


@pytest.mark.parametrize("kind", ["unigram", "end of word", "bytes"])
def test_words_of_other_tokenizers_equal_those_of_the_text(kind: str) -> None:
    detokenizer = Detokenizer(train_tokenizer(kind))
    for passage in [*SCRIPTS, random_text(random.Random(5), 400)]:
        written, _ = detokenizer.round_trip([passage])
        assert "\ufffd" not in written
        assert hash_words(written).hashes.tolist() == hash_words(passage).hashes.tolist()


@pytest.mark.parametrize("name", ["gpt2-tokenizer.json", "t5-tokenizer.json", "bert-base-cased-tokenizer.json"])
def test_words_of_published_tokenizers_equal_those_of_the_text(name: str) -> None:
    if not (SHARED / name).exists():
        pytest.skip("shared vocabularies not available")
    detokenizer = Detokenizer(Tokenizer.load(SHARED / name))
    for passage in [SCRIPTS[-1], "It's 3.14 o'clock—isn't IT? snake_case, e-mail"]:
        contamination, text_words = hash_words(detokenizer.round_trip([passage])[0]), hash_words(passage)
        if not name.startswith("gpt2"):  # unknown characters are words or parts of words
            known = ~contamination.has_unknown
            assert known.sum() >= 0.7 * len(text_words.hashes) and set(contamination.hashes[known].tolist()) <= set(
                text_words.hashes.tolist()
            )
        else:
            assert contamination.hashes.tolist() == text_words.hashes.tolist()
    if name.startswith("gpt2"):
        for passage in SCRIPTS:
            assert (
                hash_words(detokenizer.round_trip([passage])[0]).hashes.tolist() == hash_words(passage).hashes.tolist()
            )


def test_hash_words() -> None:
    words = hash_words("Don't! 漢字 x_1\U0010ffff \U0010ffffa\ufffdb Ü")
    assert words.starts.tolist() == [0, 4, 7, 8, 10, 12, 16, 20]
    assert words.document_ids.tolist() == [0, 0, 0, 0, 0, 0, 2, 2]
    assert words.has_unknown.tolist() == [False] * 6 + [True, False]
    assert len(set(words.hashes.tolist())) == 8
    assert hash_words("").hashes.size == hash_words("\U0010ffff?!").hashes.size == 0
    assert hash_words(" a b").touches_edges == (False, True) and hash_words("\U0010ffffa b ").touches_edges == (
        True,
        False,
    )


# ------------------------------------------------------------------------------------------------ the command


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Path:
    tokenizer = Tokenizer.train("wordpiece", iter(documents), 420)
    return store(tmp_path_factory.mktemp("cli") / "corpus", tokenizer, documents).path


def test_command(corpus: Path, documents: list[str], tmp_path: Path, run_cli: Any) -> None:
    longest = max(documents, key=len).replace("\n", " ")
    (tmp_path / "dev.jsonl").write_text(json.dumps({"question": longest}) + "\n" + json.dumps({"question": "ba do"}))
    (tmp_path / "other.jsonl").write_text(json.dumps({"question": "te te te te te te te te te zavo"}) + "\n")
    options = (
        "--evaluation-set",
        tmp_path / "dev.jsonl",
        "--evaluation-set",
        tmp_path / "other.jsonl",
        "--text-column",
        "question",
        "--n",
        5,
    )
    output = run_cli("overlap", corpus, *options)
    lines = output.splitlines()
    assert lines[0].split()[:4] == ["set", "examples", "5-grams", "found"]
    assert "100.00%" in lines[1] and "0.00%" in lines[2]
    assert "1 examples of fewer than 5 words are too short" in lines[3]
    assert "line 1: " in lines[4] and len(lines) == 5
    contamination = json.loads(run_cli("overlap", corpus, *options, "--json"))
    assert [item["rates"]["num_matched"] for item in contamination] == [1.0, 0.0]
    assert contamination[0]["worst_examples"][0]["location"] == "line 1" and contamination[0]["num_too_short"] == 1
    assert naive_words(contamination[0]["worst_examples"][0]["longest_match"]) == naive_words(longest)


def test_skipped_rows_are_reported(corpus: Path, tmp_path: Path, cli: Any) -> None:
    (tmp_path / "row.jsonl").write_text('{"text": "ba do"}\n{"text"\n')
    options = (corpus, "--evaluation-set", tmp_path / "row.jsonl", "--skip-bad")
    for extra in ((), ("--json",)):
        command = cli("overlap", *options, *extra)
        assert command.status == 0 and "1 bad rows were skipped, the first: " in command.err


@pytest.mark.parametrize(
    "case,message",
    [
        ("corpus", "nowhere does not exist"),
        ("file", ["does not exist", "missing.txt"]),
        ("n", "n is 0"),
        ("empty", "empty.txt"),
        ("blank", ["no text", "blank.txt"]),
        ("row", "line 2"),
    ],
)
def test_bad_input_gives_one_line_errors(case: str, message: Any, corpus: Path, tmp_path: Path, rejects: Any) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.txt").write_text(" \n\n")
    (tmp_path / "row.jsonl").write_text('{"text": "ba do"}\n{"text"\n')
    (tmp_path / "some.txt").write_text("ba do\n")
    names = {"file": "missing.txt", "empty": "empty.txt", "blank": "blank.txt", "row": "row.jsonl"}
    file = tmp_path / names.get(case, "some.txt")
    corpus_path = tmp_path / "nowhere" if case == "corpus" else corpus
    rejects("overlap", corpus_path, "--evaluation-set", file, *(("--n", 0) if case == "n" else ()), match=message)


def test_token_outside_the_vocabulary_is_reported() -> None:
    tokenizer = Tokenizer.train("bpe", iter(SCRIPTS), 300)
    with pytest.raises(PolysemeError, match="token 300 is not in"):
        Detokenizer(tokenizer).decode(np.array([5, 300]), None, np.array([2]))
