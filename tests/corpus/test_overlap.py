"""Contamination: the counts of a naive reading of the texts, whatever the tokenizer, the shards and the slices."""

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
from stored import store
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from polyseme.corpus.inspect import contamination as module
from polyseme.corpus.inspect.contamination import ContaminationResult, measure_contamination
from polyseme.corpus.inspect.word_hashes import Detokenizer, hash_words
from polyseme.errors import PolysemeError
from polyseme.text.tokenizer import Tokenizer

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


def word(draw: random.Random) -> str:
    found = "".join(draw.choices(SYLLABLES, k=draw.choice([1, 1, 1, 2, 3])))
    if draw.random() < 0.1:
        found = draw.choice([f"{found}'s", found.title(), found.upper(), str(draw.randrange(300)), f"{found}_{found}"])
    return found + draw.choices(["", ",", ".", "!\n", ' "', " - ", ")"], [20, 2, 2, 1, 1, 1, 1])[0]


def text(draw: random.Random, words: int) -> str:
    return " ".join(word(draw) for _ in range(words))


def naive_words(given: str) -> list[str]:
    return re.findall(r"[^\W_]+", given.lower())


def naive(documents: Sequence[str], examples: Sequence[str], n: int) -> dict[str, int]:
    def grams(given: str) -> list[tuple[str, ...]]:
        words = naive_words(given)
        return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]

    there = {gram for document in documents for gram in grams(document)}
    found = [[gram in there for gram in grams(example)] for example in examples]
    return {
        "num_examples": len(examples),
        "num_too_short": sum(len(naive_words(example)) < n for example in examples),
        "num_compared": sum(bool(hits) for hits in found),
        "num_ngrams": sum(map(len, found)),
        "num_unknown": 0,
        "num_matched": sum(map(sum, found)),
        "num_contaminated": sum(any(hits) for hits in found),
        "num_half_contaminated": sum(bool(hits) and 2 * sum(hits) >= len(hits) for hits in found),
    }


def numbers(found: ContaminationResult) -> dict[str, Any]:
    return {name: getattr(found, name) for name in naive([], [], 1)}


@pytest.fixture(scope="module")
def documents() -> list[str]:
    """Short ones, and some that are longer than a small slice."""
    draw = random.Random(0)
    return [text(draw, draw.choice([1, 3, 9, 40, 40, 400])) for _ in range(60)]


@pytest.fixture(scope="module")
def examples(documents: list[str]) -> list[str]:
    """Of this text and of other text, in all mixtures; and too short ones."""
    draw = random.Random(1)
    found = []
    for _ in range(80):
        words = draw.choice(documents).split()
        start = draw.randrange(len(words))
        taken = " ".join(words[start : start + draw.choice([0, 3, 10, 30])])
        found.append(f"{text(draw, draw.choice([0, 2, 12]))} {taken} {text(draw, draw.choice([0, 1, 12]))}".strip())
    return [each for each in found if each]


@pytest.fixture(scope="module", params=["wordpiece", "bpe"])
def tokenizer(request: pytest.FixtureRequest, documents: list[str]) -> Tokenizer:
    marks = (string.punctuation + "“”") * 9
    return Tokenizer.train(request.param, iter([*documents, text(random.Random(2), 2000), marks]), 420)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
@pytest.mark.parametrize("per_shard,tokens", [(60, 1 << 17), (7, 100), (1, 41)])
def test_counts_are_those_of_sets_of_tuples(
    tokenizer: Tokenizer,
    documents: list[str],
    examples: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    n: int,
    per_shard: int,
    tokens: int,
) -> None:
    monkeypatch.setattr(module, "SLICE_TOKENS", tokens)
    monkeypatch.setattr(module, "BATCH_CHARS", 700)
    corpus = store(tmp_path / "corpus", tokenizer, documents, per_shard)
    assert int(np.diff(corpus.sentence_offsets[corpus.document_offsets]).max()) > 500
    both = measure_contamination(corpus, {"a": iter(examples), "b": examples[:9], "none": []}, n)
    assert [numbers(each) for each in both] == [
        naive(documents, part, n) for part in (examples, examples[:9], list[str]())
    ]
    assert n == 1 or (0 < both[0].num_matched < both[0].num_ngrams and both[0].num_too_short)
    assert both[2].rates == {"num_matched": None, "num_contaminated": None, "num_half_contaminated": None}


def test_planted_text_is_found_and_other_text_is_not(
    tokenizer: Tokenizer, documents: list[str], tmp_path: Path
) -> None:
    draw = random.Random(3)
    secret, other = text(draw, 30), text(draw, 300)
    corpus = store(tmp_path / "corpus", tokenizer, [*documents[:3], f"{documents[3]} {secret} {documents[4]}"])
    clean, planted = measure_contamination(corpus, {"clean": [other] * 3, "planted": [other, secret]})
    assert clean.num_matched == clean.num_contaminated == clean.num_half_contaminated == 0 and not clean.worst_examples
    assert (planted.num_contaminated, planted.num_half_contaminated) == (1, 1)
    (match,) = planted.worst_examples
    assert match.example_number == 2 and match.num_matched == match.num_ngrams == len(naive_words(secret)) - 7
    assert match.text == secret and naive_words(match.longest_match) == naive_words(secret)
    assert planted.rates["num_contaminated"] == 0.5


def test_case_marks_and_accents_do_not_count(tokenizer: Tokenizer, tmp_path: Path) -> None:
    corpus = store(tmp_path / "corpus", tokenizer, ["ba do, ki-lu. Me (no) PA: ri su! te vo?"])
    same = ["BA DO KI LU ME NO PA RI", "  “lu” me-no... pa\u200d\nri/su*te", "bá dò ki\u0301 Lü mE no pa ri"]
    (found,) = measure_contamination(corpus, {"same": same}, n=6)
    assert found.num_matched == found.num_ngrams == 3 + 2 + 3 and found.num_half_contaminated == 3
    assert (
        measure_contamination(corpus, {"other": ["ba do kilu me no pa", "ba do ki lu no me"]}, n=6)[0].num_matched == 0
    )


def test_the_first_word_of_a_text_is_the_same_word(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Byte-level BPE has a token for " bado" that is another than that for "bado" at the start."""
    corpus = store(tmp_path / "corpus", tokenizer, ["ki lu bado meno pari", "suteri ki lu"])
    (found,) = measure_contamination(corpus, {"first": ["bado meno pari"], "inner": ["ki lu", "lu suteri"]}, n=2)[:1]
    assert found.num_matched == found.num_ngrams == 2
    inner = measure_contamination(corpus, {"inner": ["the suteri ki", "pari suteri ki lu"]}, n=2)[0]
    assert inner.num_matched == 3, "`pari suteri` would cross from one document to the next"


def test_too_short_and_unknown_are_counted_apart(documents: list[str], tmp_path: Path) -> None:
    tokenizer = Tokenizer.train("wordpiece", iter(documents), 420)
    corpus = store(tmp_path / "corpus", tokenizer, ["ba do ki 漢 lu me no pa ri"])
    (found,) = measure_contamination(
        corpus, {"a": ["ba do ki", "ba do", "do ki 字 lu me no pa", "ba 漢 do", "?!"]}, n=3
    )
    assert (found.num_examples, found.num_too_short, found.num_compared) == (5, 2, 2)
    assert (found.num_ngrams, found.num_unknown) == (1 + 2, 3 + 1)
    assert (found.num_matched, found.num_contaminated, found.num_half_contaminated) == (3, 2, 2)
    assert found.worst_examples[0].longest_match == "lu me no pa" and found.worst_examples[0].num_matched == 2


@pytest.mark.parametrize("tokens", [1 << 17, 30])
def test_every_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    """A vocabulary of hardly more than bytes: most characters are several tokens."""
    monkeypatch.setattr(module, "SLICE_TOKENS", tokens)
    tokenizer = Tokenizer.train("bpe", iter(SCRIPTS), 300)
    corpus = store(tmp_path / "corpus", tokenizer, [" ".join(SCRIPTS), *SCRIPTS], 2)
    same = [*SCRIPTS, *(each.upper().replace("SS", "ß") for each in SCRIPTS)]
    (found,) = measure_contamination(corpus, {"same": same}, n=4)
    assert found.num_matched == found.num_ngrams > 150 and found.num_half_contaminated == len(same)
    (found,) = measure_contamination(corpus, {"other": ["我能吞下石头", "Съешь же ещё этих мягких"]}, n=4)
    assert (found.num_ngrams, found.num_matched) == (3 + 2, 1 + 2)


def subwords(kind: str) -> Tokenizer:
    """Tokenizers of other makes: pieces with ▁ at their front, with </w> at their end, and with bytes for the rest."""
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
    backend.train_from_iterator([*SCRIPTS, text(random.Random(4), 3000)] * 2, trainer)
    return Tokenizer(backend)


@pytest.mark.parametrize("kind", ["unigram", "end of word", "bytes"])
def test_tokens_of_other_makes_are_read_as_the_words_of_the_text(kind: str) -> None:
    writer = Detokenizer(subwords(kind))
    for given in [*SCRIPTS, text(random.Random(5), 400)]:
        written, _ = writer.round_trip([given])
        assert "\ufffd" not in written
        assert hash_words(written).hashes.tolist() == hash_words(given).hashes.tolist()


@pytest.mark.parametrize("name", ["gpt2-tokenizer.json", "t5-tokenizer.json", "bert-base-cased-tokenizer.json"])
def test_tokens_of_published_vocabularies_are_read_as_the_words_of_the_text(name: str) -> None:
    if not (SHARED / name).exists():
        pytest.skip("the shared vocabularies are not here")
    writer = Detokenizer(Tokenizer.load(SHARED / name))
    for given in [SCRIPTS[-1], "It's 3.14 o'clock—isn't IT? snake_case, e-mail"]:
        found, own = hash_words(writer.round_trip([given])[0]), hash_words(given)
        if not name.startswith("gpt2"):  # an unknown character is a word of its own, or a part of one
            kept = ~found.has_unknown
            assert kept.sum() >= 0.7 * len(own.hashes) and set(found.hashes[kept].tolist()) <= set(own.hashes.tolist())
        else:
            assert found.hashes.tolist() == own.hashes.tolist()
    if name.startswith("gpt2"):
        for given in SCRIPTS:
            assert hash_words(writer.round_trip([given])[0]).hashes.tolist() == hash_words(given).hashes.tolist()


def test_words_of_a_text() -> None:
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


def test_command(corpus: Path, documents: list[str], tmp_path: Path, done: Any) -> None:
    long = max(documents, key=len).replace("\n", " ")
    (tmp_path / "dev.jsonl").write_text(json.dumps({"question": long}) + "\n" + json.dumps({"question": "ba do"}))
    (tmp_path / "other.jsonl").write_text(json.dumps({"question": "te te te te te te te te te zavo"}) + "\n")
    options = (
        "--evaluation-set",
        tmp_path / "dev.jsonl",
        "--evaluation-set",
        tmp_path / "other.jsonl",
        "--key",
        "question",
        "--n",
        5,
    )
    said = done("overlap", corpus, *options)
    lines = said.splitlines()
    assert lines[0].split()[:4] == ["set", "examples", "5-grams", "found"]
    assert "100.00%" in lines[1] and "0.00%" in lines[2]
    assert "1 examples of fewer than 5 words are too short" in lines[3]
    assert "line 1: " in lines[4] and len(lines) == 5
    found = json.loads(done("overlap", corpus, *options, "--json"))
    assert [each["rates"]["num_matched"] for each in found] == [1.0, 0.0]
    assert found[0]["worst_examples"][0]["location"] == "line 1" and found[0]["num_too_short"] == 1
    assert naive_words(found[0]["worst_examples"][0]["longest_match"]) == naive_words(long)


@pytest.mark.parametrize(
    "what,says",
    [
        ("corpus", "no corpus folder"),
        ("file", ["there is no", "missing.txt"]),
        ("n", "n is 0"),
        ("empty", "empty.txt"),
        ("blank", ["no text", "blank.txt"]),
        ("row", "line 2"),
    ],
)
def test_bad_input_is_one_line(what: str, says: Any, corpus: Path, tmp_path: Path, refused: Any) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.txt").write_text(" \n\n")
    (tmp_path / "row.jsonl").write_text('{"text": "ba do"}\n{"text"\n')
    (tmp_path / "some.txt").write_text("ba do\n")
    names = {"file": "missing.txt", "empty": "empty.txt", "blank": "blank.txt", "row": "row.jsonl"}
    file = tmp_path / names.get(what, "some.txt")
    where = tmp_path / "nowhere" if what == "corpus" else corpus
    refused("overlap", where, "--evaluation-set", file, *(("--n", 0) if what == "n" else ()), says=says)


def test_a_token_outside_the_vocabulary_is_damage() -> None:
    tokenizer = Tokenizer.train("bpe", iter(SCRIPTS), 300)
    with pytest.raises(PolysemeError, match="token 300 is not in"):
        Detokenizer(tokenizer).decode(np.array([5, 300]), None, np.array([2]))
