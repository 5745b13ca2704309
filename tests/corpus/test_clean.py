"""Cleaning: each step by example, complete counts, and repeated lines against a naive count."""

import json
import random
import sys
from collections import Counter

import numpy as np
import pytest

from polyseme.corpus.clean import clean as language
from polyseme.corpus.clean.clean import (
    DEFAULT_STEPS,
    EXCERPT_CHARS,
    MAX_EXAMPLES,
    Cleaner,
    CleaningConfig,
    CleaningStats,
    find_repeated_lines,
    hash_distinct_lines,
    merge_cleaning_stats,
    parse_cleaning_steps,
)
from polyseme.errors import PolysemeError

ENGLISH = "The river had risen in the night, and nobody in the village could remember when it had last been so high. "
GERMAN = "Der Fluss war in der Nacht gestiegen, und niemand im Dorf wusste noch, wann er zuletzt so hoch gewesen war. "
PORTUGUESE = "O rio tinha subido durante a noite, e ninguém na aldeia se lembrava de quando tinha estado tão alto. "
FOOTER = "We use cookies to make this page better."


def repeated_lines(texts, min_count, path, memory=64 << 20):
    return find_repeated_lines((hash_distinct_lines(text) for text in texts), min_count, path, memory)


def clean(text, steps, lang="en", lines=None):
    """Return the cleaned text and the nonzero statistics; check `transform` and the character counts."""
    cleaner, stats = Cleaner(parse_cleaning_steps(steps), lines), CleaningStats()
    cleaned = cleaner.clean(text, lang, "here", stats)
    if cleaned is not None:
        assert cleaner.transform(text) == cleaned == cleaner.transform(cleaned)
    assert sum(row["characters"] for row in stats.by_step.values()) == len(text) - len(cleaned or "")
    return cleaned, {name: row for name, row in stats.by_step.items() if row["changed"] or row["removed"]}


def noisy_documents(seed, num):
    rng = random.Random(seed)
    lines = [
        FOOTER,
        "  Share this page \t",
        "",
        "* * *",
        "e\u0301clair",
        "a\x00b\x0cc\r\nd",
        "soft\u00adhyphen",
        GERMAN,
    ]
    fresh = [f"Line {index} has more to say. " + ENGLISH * (index % 4) for index in range(num * 4)]
    return ["\n".join(rng.choice([*lines, *rng.sample(fresh, 4)]) for _ in range(rng.randrange(9))) for _ in range(num)]


# ----------------------------------------------------------------------------------------------------- steps


def test_parse_cleaning_steps():
    assert parse_cleaning_steps(DEFAULT_STEPS) == CleaningConfig(nfc=True, control=True)
    assert parse_cleaning_steps("none") == CleaningConfig() and not parse_cleaning_steps("none").boilerplate
    steps = parse_cleaning_steps(" min_chars=20, boilerplate ,language=0.9,max_chars=1000,nfc")
    assert (
        steps == CleaningConfig(nfc=True, boilerplate=10, min_chars=20, max_chars=1000, language=0.9)
        and steps.boilerplate
    )
    assert str(steps) == "nfc,boilerplate=10,min_chars=20,max_chars=1000,language=0.9"
    for row in (steps, CleaningConfig(), parse_cleaning_steps("nfc,control,boilerplate,min_chars,max_chars,language")):
        assert parse_cleaning_steps(str(row)) == row


@pytest.mark.parametrize(
    "text, message",
    [
        ("nfc,contol", "did you mean 'control'"),
        ("", "''"),
        ("nfc,,control", "''"),
        ("none,nfc", "cannot be combined"),
        ("nfc,nfc", "twice"),
        ("nfc=1", "takes no value"),
        ("min_chars=", "min_chars=200"),
        ("min_chars=many", "min_chars=200"),
        ("min_chars=0", "1 or more"),
        ("max_chars=-3", "1 or more"),
        ("boilerplate=1", "2 or more"),
        ("language=1.5", "at most 1"),
        ("language=0", "above 0"),
        ("language=nan", "above 0"),
        ("min_chars=10,max_chars=5", "min_chars is 10, more than max_chars, 5"),
    ],
)
def test_invalid_steps_are_reported(text, message):
    with pytest.raises(PolysemeError, match=message):
        parse_cleaning_steps(text)


def test_nfc():
    cleaned, stats = clean("cafe\u0301 und Bru\u0308cke", "nfc")
    assert cleaned == "café und Brücke"
    assert stats == {"nfc": {"changed": 1, "removed": 0, "characters": 2, "examples": stats["nfc"]["examples"]}}
    assert stats["nfc"]["examples"] == [{"location": "here", "text": "cafe\u0301 und Bru\u0308cke"}]
    longer, stats = clean("\u0958", "nfc")  # a composition exclusion: two characters in NFC
    assert len(longer) == 2 and stats["nfc"]["characters"] == -1


def test_control_characters():
    cleaned, stats = clean("\ufeffone\r\ntwo\rthree\x0cfour\x85fi\x00ve\x1b[0m\tsix\u00ad\x9f", "control")
    assert cleaned == "one\ntwo\nthree\nfour\nfive[0m\tsix"
    assert stats["control"]["characters"] == 6 and stats["control"]["changed"] == 1


@pytest.mark.parametrize(
    "text", ["👩\u200d🚀", "می\u200cخواهم", "\u200fשלום\u200e", "क्\u200dष", "\ud800 lone", "a\u2028b", ENGLISH]
)
def test_joiners_and_direction_marks_stay(text):
    assert clean(text, "nfc,control") == (text, {})


def test_text_is_normalized_after_control_characters_are_removed():
    """Without the soft hyphen between them, the two characters compose."""
    assert clean("e\u00ad\u0301", "nfc,control")[0] == "é"
    assert clean("e\u00ad\u0301", "control")[0] == "e\u0301"


def test_document_that_becomes_empty_is_removed():
    cleaned, stats = clean(" \x00\x01\n", "nfc,control")
    assert cleaned is None and stats["control"]["removed"] == 1 and not stats["control"]["changed"]


def test_repeated_lines_are_removed(tmp_path):
    texts = [f"Own line {i}.\n{FOOTER}\n* * *\nEnd {i}" for i in range(5)] + [f"  {FOOTER}\t\n{FOOTER}", "Own line 1."]
    lines = repeated_lines(texts, 6, tmp_path)
    assert len(lines) == 1
    cleaned, stats = clean(texts[0], "boilerplate=6", lines=lines)
    assert cleaned == "Own line 0.\n* * *\nEnd 0"
    assert stats["boilerplate"]["examples"] == [{"location": "here", "text": FOOTER}]
    assert clean(texts[5], "boilerplate=6", lines=lines)[1]["boilerplate"]["removed"] == 1
    assert clean(texts[6], "boilerplate=6", lines=lines) == ("Own line 1.", {})
    assert clean("last\n" + FOOTER, "boilerplate=6", lines=lines)[1]["boilerplate"]["examples"][0]["text"] == FOOTER
    for hashes in (None, np.empty(0, dtype=np.uint64)):
        assert clean(texts[0], "boilerplate=6", lines=hashes) == (texts[0], {})


def test_short_and_long_documents_are_removed():
    assert clean("x" * 9, "min_chars=10,max_chars=20")[1]["min_chars"]["removed"] == 1
    assert clean("x" * 10, "min_chars=10,max_chars=20") == ("x" * 10, {})
    assert clean("x" * 20, "min_chars=10,max_chars=20") == ("x" * 20, {})
    cleaned, stats = clean("x" * 21, "min_chars=10,max_chars=20")
    assert cleaned is None and stats["max_chars"]["characters"] == 21
    assert clean("x\x00" * 8, "control,min_chars=10")[1]["min_chars"]["characters"] == 8  # counts the output of control


# -------------------------------------------------------------------------------------------------- language


def test_documents_in_another_language_are_removed():
    pytest.importorskip("py3langid")
    cleaned, stats = clean(GERMAN * 3, "language", lang="en")
    assert cleaned is None and stats["language"]["examples"][0]["text"].startswith("de 1.00: Der Fluss")
    for text, lang in ((GERMAN, "de"), (GERMAN, "de_AT"), (PORTUGUESE, "pt_BR"), (ENGLISH, "en-GB"), (GERMAN, "")):
        assert clean(text, "language", lang=lang) == (text, {})
    assert clean(GERMAN, "language", lang="tlh") == (GERMAN, {})  # unknown to the model
    assert clean("1, 2, 3 … 4 + 5", "language", lang="de")[0]
    assert clean("\ud800" * 50 + GERMAN, "language", lang="de")[0]


def test_equivalent_language_codes():
    same = [
        ("pt_BR", "pt"),
        ("zh-Hans", "zh"),
        ("yue", "zh-Hant"),
        ("nb", "no"),
        ("sr_Latn", "hr"),
        ("de_DE.UTF-8", "DE"),
    ]
    assert all(language.normalize_language(a) == language.normalize_language(b) for a, b in same)
    assert language.normalize_language("no") != language.normalize_language("sv")


def test_long_text_is_sampled_at_beginning_middle_and_end():
    text = "a" * 10_000 + "b" * 10_000 + "c" * 10_000
    assert {*language.sample_text(text)} == {*"abc "} and len(language.sample_text(text)) <= language.SAMPLE_CHARS + 2
    assert language.sample_text(text).startswith("a") and language.sample_text(text).endswith("c")
    pytest.importorskip("py3langid")
    identify = language.LanguageDetector()
    cleaned, probability = identify(GERMAN * 1000)
    assert cleaned == "de" and 0.99 < probability <= 1
    assert identify("") == identify("12345 67890 12345 67890 !") == ("", 0.0)


def test_missing_py3langid_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "py3langid", None)
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    language._load_model.cache_clear()
    try:
        with pytest.raises(PolysemeError, match="pip install py3langid"):
            Cleaner(parse_cleaning_steps("language"))
        Cleaner(parse_cleaning_steps("nfc"))
    finally:
        language._load_model.cache_clear()


# ----------------------------------------------------------------------------------------------------- statistics


@pytest.mark.parametrize("cut", [0, 1, 77, 300])
def test_statistics_of_groups_add_up(tmp_path, cut):
    texts = noisy_documents(1, 300)
    steps = parse_cleaning_steps("nfc,control,boilerplate=5,min_chars=60,max_chars=600")
    cleaner_without_lines = Cleaner(steps)
    lines = repeated_lines([cleaner_without_lines.transform(text) for text in texts], 5, tmp_path)
    assert len(lines) > 3

    def clean_documents(numbers):
        cleaner, stats, num_characters = Cleaner(steps, lines), CleaningStats(), 0
        for index in numbers:
            cleaned = cleaner.clean(texts[index], "en", f"line {index}", stats)
            num_characters += len(cleaned or "")
            assert cleaned is None or cleaner.transform(texts[index]) == cleaned
        return stats, num_characters

    whole, num_characters = clean_documents(range(300))
    first, second = clean_documents(range(cut))[0], clean_documents(range(cut, 300))[0]
    assert merge_cleaning_stats([json.loads(json.dumps(first.by_step)), second.by_step]) == whole.by_step
    assert sum(map(len, texts)) == num_characters + sum(row["characters"] for row in whole.by_step.values())
    for name in ("nfc", "control", "boilerplate", "min_chars", "max_chars"):
        row = whole.by_step[name]
        assert row["changed"] + row["removed"] > MAX_EXAMPLES == len(row["examples"])
        assert all(0 < len(row["text"]) <= EXCERPT_CHARS for row in row["examples"] if name != "min_chars")
    assert whole.by_step["boilerplate"]["removed"] and whole.by_step["boilerplate"]["changed"]


def test_examples_can_be_written_as_utf8():
    _, stats = clean("\ud800 a\x00b", "control")
    json.dumps(stats, ensure_ascii=False).encode("utf-8")


# ------------------------------------------------------------------------------------------------------ lines


def test_hash_distinct_lines():
    assert hash_distinct_lines("").tolist() == hash_distinct_lines("\n \n--\n").tolist() == []
    assert hash_distinct_lines("a\n b\na \nb\n\n—").tolist() == sorted(
        np.concatenate([hash_distinct_lines("a"), hash_distinct_lines("b")])
    )
    assert len(hash_distinct_lines("_1_\n第\n\ud800x")) == 3
    assert hash_distinct_lines("a").dtype == np.uint64


@pytest.mark.parametrize("memory", [64 << 20, 1 << 12])
@pytest.mark.parametrize("min_count", [2, 10])
def test_repeated_lines_equal_a_naive_count(tmp_path, memory, min_count):
    texts = noisy_documents(2, 900)
    counts = Counter(hash_ for text in texts for hash_ in hash_distinct_lines(text).tolist())
    expected = sorted(hash_ for hash_, index in counts.items() if index >= min_count)
    assert repeated_lines(texts, min_count, tmp_path, memory).tolist() == expected and len(expected) > 3
    assert not list(tmp_path.iterdir())
    one_array = [np.concatenate([hash_distinct_lines(text) for text in texts])]
    assert find_repeated_lines(one_array, min_count, tmp_path, memory).tolist() == expected


def test_few_or_no_lines(tmp_path):
    assert find_repeated_lines([], 2, tmp_path).tolist() == []
    assert find_repeated_lines([np.array([0, 0], dtype=np.uint64)], 2, tmp_path).tolist() == [0]
    assert find_repeated_lines([np.array([0], dtype=np.uint64)], 2, tmp_path).tolist() == []
