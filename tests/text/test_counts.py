"""Counting words: what the tokenizer would count, in bounded memory and work, the same each time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest
from mixed import english, generated
from tokenizers import Tokenizer as Backend
from tokenizers import models, trainers

from polyseme.errors import PolysemeError
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


def counted(kind: str, texts: list[str], **given) -> WordCounts:
    counts = WordCounts(kind, **given)
    for text in texts:
        counts.add(text)
    return counts


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
@pytest.mark.parametrize("lowercase", [False, True])
def test_counts_are_those_of_the_tokenizers_own_words(kind: str, lowercase: bool) -> None:
    texts = [text for text in ODD + generated(600, seed=8) + english(200) if text.strip()]
    frame = build_untrained(kind, lowercase)
    expected: Counter[str] = Counter()
    for text in texts:
        cleaned = frame.normalizer.normalize_str(text) if frame.normalizer is not None else text
        expected.update(word for word, _ in frame.pre_tokenizer.pre_tokenize_str(cleaned))
    found = counted(kind, texts, lowercase=lowercase).smoothed_counts()
    if kind == "unigram":  # the sign for a space, written in the text, at the front of a unit: no word
        found.pop("▁"), expected.pop("▁")
    assert found == dict(expected)


def test_counts_do_not_depend_on_how_text_is_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = english(400)
    whole = counted("bpe", texts).smoothed_counts()
    monkeypatch.setattr("polyseme.text.counts._BATCH_CHARS", 500)
    assert counted("bpe", texts).smoothed_counts() == whole


def test_a_vocabulary_is_what_the_trainer_makes_of_the_text() -> None:
    """Through counts or straight from the text: the same BPE."""
    texts = english(1500)
    made = Tokenizer.train("bpe", texts, 900)
    straight = build_untrained("bpe", False)
    alphabet = sorted(piece for piece in made.vocabulary if len(piece) == 1)
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        min_frequency=2,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    straight.train_from_iterator(texts, trainer)
    assert Tokenizer(straight).hash == made.hash


def test_sampling_bounds_the_work_and_not_the_estimate() -> None:
    texts = [f"common word{number % 10} rare{number}" for number in range(20_000)]
    size = sum(map(len, texts))
    budget = size // 20
    counts = counted("wordpiece", texts, max_sample_chars=budget)
    words = counts.smoothed_counts()
    assert counts.num_chars == size
    assert (
        4 * budget < counts.num_sampled_chars < 6 * budget
    )  # 1 + 2 + 4 + 8 = 15 budgets at four rates, the rest at 1/16
    assert words["common"] == pytest.approx(20_000, rel=0.05)
    assert all(words[f"word{i}"] == pytest.approx(2_000, rel=0.15) for i in range(10))
    assert counted("wordpiece", texts, max_sample_chars=budget).smoothed_counts() == words
    assert counted("wordpiece", texts).smoothed_counts()["common"] == 20_000


def test_a_stratum_is_sampled_alone() -> None:
    """What else is read does not change which of its documents are looked at."""
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
    assert beside.groups[german].word_counts == alone.groups[german].word_counts
    assert 0 < len(alone.groups[german].word_counts) < 2_000


def test_the_table_is_bounded_and_frequent_words_stay() -> None:
    texts = [f"often frequent rare{number} seldom{number // 2}" for number in range(4_000)]
    counts = counted("wordpiece", texts, max_words=1_000)
    words = counts.smoothed_counts()
    assert len(words) <= 1_000
    assert words["often"] == words["frequent"] == 4_000
    assert 0.2 < counts.dropped_fraction < 0.5  # nearly all of the other half
    assert counted("wordpiece", texts).dropped_fraction == 0


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
    up = 5**0.3  # German is a fifth of English: its share goes with (1/5)^0.7
    assert table(0.7) == {"klein": round(100 * up), "large": 1_000, "nicht": round(100 * up)}
    assert table(0.0) == {"klein": 500, "large": 1_000, "nicht": 500}
    assert table(1.0, weight=3) == {"klein": 300, "large": 1_000, "nicht": 100}
    assert table(1.0, weight=0.5) == {"klein": 100, "large": 2_000, "nicht": 200}


def test_only_large_totals_are_scaled() -> None:
    counts = counted("wordpiece", ["one two two three three three"] * 100)
    assert counts.smoothed_counts(max_total=600) == {"one": 100, "two": 200, "three": 300}
    assert counts.smoothed_counts(max_total=60) == {"one": 10, "two": 20, "three": 30}
    assert counts.smoothed_counts(max_total=2) == {"three": 1, "two": 1}


def test_a_sample_of_every_stratum_is_kept() -> None:
    counts = WordCounts("bpe", num_groups=2)
    for number in range(3_000):
        counts.add(f"text {number}", TextGroup("en"))
    counts.add("ein Text", TextGroup("de"))
    sample = counts.sample_texts()
    assert len(sample) == 101 and sample[-1] == "ein Text" and len(set(sample)) == 101


def test_lone_surrogates_are_counted_as_replacements() -> None:
    assert counted("bpe", ["a\ud800b"]).smoothed_counts() == counted("bpe", ["a\ufffdb"]).smoothed_counts()
    assert counted("characters", ["a\ud800b", "c"]).smoothed_counts() == {"a": 1, "b": 1, "c": 1, "\ufffd": 1}


def test_unknown_characters_stop_the_training() -> None:
    """An alphabet that is too small for a text of ideographs would make it unknown."""
    texts = ["".join(chr(0x4E00 + (number * 7 + i) % 500) for i in range(50)) for number in range(100)]
    with pytest.raises(PolysemeError, match=r"of a sample of the text would be \[UNK\] .most often for the characters"):
        Tokenizer.train("wordpiece", texts, 3_000, max_alphabet=300)
    with pytest.raises(PolysemeError, match="is too small for this text of 500 different characters"):
        Tokenizer.train("wordpiece", texts, 1_000)
    assert Tokenizer.train("wordpiece", texts, 3_000).vocab_size > 1_000


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_another_process_learns_the_same(kind: str) -> None:
    """The library seeds its hash maps by chance, differently in each process."""
    if kind == "unigram":
        pytest.importorskip("sentencepiece")
    code = f"""
from pydoc_data.topics import topics
from polyseme.text.counts import TextGroup, WordCounts
from polyseme.text.tokenizer import Tokenizer
counts = WordCounts({kind!r}, max_sample_chars=200_000, num_groups=2, max_words=3_000)
for number, (_, text) in enumerate(sorted(topics.items())):
    for line in text.split("\\n\\n"):
        counts.add(line, TextGroup("en" if number % 3 else "de"))
print(Tokenizer.from_counts(counts, 800).hash, counts.dropped_fraction > 0, counts.num_sampled_chars < counts.num_chars)
"""
    environment = os.environ | {"RAYON_NUM_THREADS": "1"}
    runs = [
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1] and runs[0].endswith(" True True\n")


def test_the_state_of_the_counting_trainer_is_as_it_was() -> None:
    """The counts are read from what a trainer gives to pickle: a release that changes it shows here first."""
    backend = Backend(models.WordLevel({}, unk_token=""))
    trainer = trainers.WordLevelTrainer(vocab_size=0, show_progress=False)
    backend.train_from_iterator(["one two"], trainer)
    assert b'"words":{' in trainer.__getstate__()
