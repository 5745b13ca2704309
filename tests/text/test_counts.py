"""Word counts equal those of the tokenizer's pre-tokens, within bounds on memory and time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec

import pytest
from multilingual import english_lines, generate_lines
from tokenizers import Tokenizer as Backend
from tokenizers import models, trainers

from polyseme.errors import PolysemeError
from polyseme.io.limits import MAX_WORD_CHARS
from polyseme.text.counts import TextGroup, WordCounts
from polyseme.text.pipelines import TOKENIZER_KINDS, build_untrained
from polyseme.text.tokenizer import Tokenizer

ODD = [
    "a  b   c\n    indented\n\n  twice\t\ttabs \n",
    " leading, trailing ",
    "it's  they've\u00a0no-break\u3000wide \u2028line\x0bv\x1cc\x85n",
    "\n\n",
    "x" * 300 + " " + "é" * 30,
    "A\u0301 \u0301b \u200d c\u200d",
]


def count_words(kind: str, texts: list[str], **options) -> WordCounts:
    counts = WordCounts(kind, **options)
    for text in texts:
        counts.add(text)
    return counts


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
@pytest.mark.parametrize("lowercase", [False, True])
def test_counts_equal_those_of_pretokens(kind: str, lowercase: bool) -> None:
    texts = [text for text in ODD + generate_lines(600, seed=8) + english_lines(200) if text.strip()]
    untrained = build_untrained(kind, lowercase)
    expected: Counter[str] = Counter()
    for text in texts:
        cleaned = untrained.normalizer.normalize_str(text) if untrained.normalizer is not None else text
        expected.update(word for word, _ in untrained.pre_tokenizer.pre_tokenize_str(cleaned))
    word_counts = count_words(kind, texts, lowercase=lowercase).smoothed_counts()
    if kind.startswith("unigram"):  # a metaspace written in the text is not a word
        word_counts.pop("▁"), expected.pop("▁")
    assert word_counts == dict(expected)


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_long_words_are_counted_in_parts(kind: str) -> None:
    long_word, end = "ab" * MAX_WORD_CHARS, "c" * (MAX_WORD_CHARS // 2)
    word_counts = count_words(kind, [f"short {long_word}{end} short", long_word]).smoothed_counts()
    assert sum(count for word, count in word_counts.items() if word.strip("Ġ▁") == "short") == 2
    if kind in ("wordpiece", "bpe", "byte-bpe-roberta"):
        assert max(map(len, word_counts)) == MAX_WORD_CHARS
        num_letters = sum(len(word.strip("Ġ")) * count for word, count in word_counts.items())
        assert num_letters == 2 * len("short") + 2 * len(long_word) + len(end)
    else:
        assert {long_word, long_word + end} <= {word.strip("▁") for word in word_counts}


def test_counts_do_not_depend_on_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = english_lines(400)
    whole = count_words("bpe", texts).smoothed_counts()
    monkeypatch.setattr("polyseme.text.counts._BATCH_CHARS", 500)
    assert count_words("bpe", texts).smoothed_counts() == whole


def test_training_on_counts_equals_training_on_text() -> None:
    texts = english_lines(1500)
    tokenizer = Tokenizer.train("bpe", texts, 900)
    direct = build_untrained("bpe", False)
    alphabet = sorted(piece for piece in tokenizer.vocabulary if len(piece) == 1)
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        min_frequency=2,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    direct.train_from_iterator(texts, trainer)
    assert Tokenizer(direct).hash == tokenizer.hash


def test_sampled_counts_estimate_full_counts() -> None:
    texts = [f"common word{number % 10} rare{number}" for number in range(20_000)]
    size = sum(map(len, texts))
    budget = size // 20
    counts = count_words("wordpiece", texts, max_sample_chars=budget)
    words = counts.smoothed_counts()
    assert counts.num_chars == size
    # 1 + 2 + 4 + 8 = 15 budgets of text at four rates, the rest at 1/16
    assert 4 * budget < counts.num_sampled_chars < 6 * budget
    assert words["common"] == pytest.approx(20_000, rel=0.05)
    assert all(words[f"word{i}"] == pytest.approx(2_000, rel=0.15) for i in range(10))
    assert count_words("wordpiece", texts, max_sample_chars=budget).smoothed_counts() == words
    assert count_words("wordpiece", texts).smoothed_counts()["common"] == 20_000


def test_groups_are_sampled_independently() -> None:
    texts = [f"word{number}" for number in range(2_000)]
    alone, beside = (WordCounts("wordpiece", max_sample_chars=2_000, num_groups=2) for _ in range(2))
    german = TextGroup("de", 1)
    for number, text in enumerate(texts):
        alone.add(text, german)
        beside.add(text, german)
        if number % 3:
            beside.add("andere Wörter", TextGroup("de", 0))
    beside.smoothed_counts(1.0)
    alone.smoothed_counts(1.0)
    assert beside.groups[german].words == alone.groups[german].words
    assert 0 < len(alone.groups[german].words) < 2_000


def test_pruning_keeps_frequent_words() -> None:
    texts = [f"often frequent rare{number} seldom{number // 2}" for number in range(4_000)]
    counts = count_words("wordpiece", texts, max_words=1_000)
    words = counts.smoothed_counts()
    assert len(words) <= 1_000
    assert words["often"] == words["frequent"] == 4_000
    assert 0.2 < counts.dropped_fraction < 0.5  # nearly all of the rare half
    assert count_words("wordpiece", texts).dropped_fraction == 0


def test_languages_are_smoothed_and_sources_weighted() -> None:
    def table(smoothing: float, weight: float = 1.0) -> dict[str, int]:
        counts = WordCounts("wordpiece", num_groups=3)
        for _ in range(1_000):
            counts.add("large", TextGroup("en", 0))
        for _ in range(100):
            counts.add("klein", TextGroup("de", 1, weight))
        for _ in range(100):
            counts.add("nicht", TextGroup("de", 2))
        return counts.smoothed_counts(smoothing)

    assert table(1.0) == {"klein": 100, "large": 1_000, "nicht": 100}
    factor = 5**0.3  # German is a fifth of English: its share is (1/5)^0.7
    assert table(0.7) == {"klein": round(100 * factor), "large": 1_000, "nicht": round(100 * factor)}
    assert table(0.0) == {"klein": 500, "large": 1_000, "nicht": 500}
    assert table(1.0, weight=3) == {"klein": 300, "large": 1_000, "nicht": 100}
    assert table(1.0, weight=0.5) == {"klein": 100, "large": 2_000, "nicht": 200}


def test_only_large_totals_are_scaled() -> None:
    counts = count_words("wordpiece", ["one two two three three three"] * 100)
    assert counts.smoothed_counts(max_total=600) == {"one": 100, "two": 200, "three": 300}
    assert counts.smoothed_counts(max_total=60) == {"one": 10, "two": 20, "three": 30}
    assert counts.smoothed_counts(max_total=2) == {"three": 1, "two": 1}


def test_sample_has_texts_of_every_group() -> None:
    counts = WordCounts("bpe", num_groups=2)
    for number in range(3_000):
        counts.add(f"text {number}", TextGroup("en"))
    counts.add("ein Text", TextGroup("de"))
    sample = counts.sample_texts()
    assert len(sample) == 101 and sample[-1] == "ein Text" and len(set(sample)) == 101


def test_lone_surrogates_are_counted_as_replacements() -> None:
    assert count_words("bpe", ["a\ud800b"]).smoothed_counts() == count_words("bpe", ["a\ufffdb"]).smoothed_counts()
    assert count_words("characters", ["a\ud800b", "c"]).smoothed_counts() == {"a": 1, "b": 1, "c": 1, "\ufffd": 1}


def test_alphabet_too_small_for_the_text_is_an_error() -> None:
    texts = ["".join(chr(0x4E00 + (number * 7 + i) % 500) for i in range(50)) for number in range(100)]
    with pytest.raises(PolysemeError, match=r"of the tokens of a sample are \[UNK\] .most often for the characters"):
        Tokenizer.train("wordpiece", texts, 3_000, max_alphabet=300)
    with pytest.raises(PolysemeError, match="vocab_size is 1000, too small for a text of 500 different characters"):
        Tokenizer.train("wordpiece", texts, 1_000)
    assert Tokenizer.train("wordpiece", texts, 3_000).vocab_size > 1_000


def test_training_is_deterministic_across_processes() -> None:
    """`tokenizers` seeds its hash maps randomly in each process."""
    has_sentencepiece = find_spec("sentencepiece") is not None
    kinds = [kind for kind in TOKENIZER_KINDS if has_sentencepiece or not kind.startswith("unigram")]
    code = f"""
from pydoc_data.topics import topics
from polyseme.text.counts import TextGroup, WordCounts
from polyseme.text.tokenizer import Tokenizer
from polyseme.text.trainers import VocabularyConfig
for kind in {kinds!r}:
    counts = WordCounts(kind, max_sample_chars=200_000, num_groups=2, max_words=3_000)
    for number, (_, text) in enumerate(sorted(topics.items())):
        for line in text.split("\\n\\n"):
            counts.add(line, TextGroup("en" if number % 3 else "de"))
    tokenizer = Tokenizer.from_counts(counts, VocabularyConfig(kind, 800))
    print(kind, tokenizer.hash, counts.dropped_fraction > 0, counts.num_sampled_chars < counts.num_chars)
"""
    environment = os.environ | {"RAYON_NUM_THREADS": "1"}
    runs = [
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    rows = [run.splitlines() for run in runs]
    assert rows[0] == rows[1] and [row.split()[0] for row in rows[0]] == kinds
    assert all(row.endswith(" True True") for row in rows[0])


def test_pickled_trainer_contains_counts() -> None:
    """`WordCounts` reads the counts from the pickled trainer; a release of `tokenizers` could change its format."""
    backend = Backend(models.WordLevel({}, unk_token=""))
    trainer = trainers.WordLevelTrainer(vocab_size=0, show_progress=False)
    backend.train_from_iterator(["one two"], trainer)
    assert b'"words":{' in trainer.__getstate__()
