"""Corpus statistics against naive counts, and the HTML page that shows them."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest

from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.corpus.inspect import statistics
from polyseme.corpus.inspect.page import SMALLEST_RECIPE, render_page, summary_rows
from polyseme.corpus.inspect.statistics import compute_statistics
from polyseme.corpus.store import Corpus, verify_corpus
from polyseme.errors import PolysemeError
from polyseme.recipes import RECIPES
from polyseme.report.html import escape
from polyseme.text.tokenizer import Tokenizer
from tests.support.pages import parse_page
from tests.support.stored_corpus import store

DOCUMENTS = [text[:3000] for _, text in sorted(topics.items())][:18]
DOCUMENTS += ["هذا نص عربي قصير جدا.", "<b>bold</b> & 漢字\x07 end"]
SCRIPT = "<script>alert(1)</script>"


def source_entry(path: str, lang: str, weight: float, documents: list[str], tokens: int) -> dict[str, Any]:
    counts = {"documents": len(documents), "sentences": 1, "tokens": tokens, "characters": sum(map(len, documents))}
    return {"path": path, "lang": lang, "weight": weight, "key": "text", "split": "file", "counts": counts}


MANIFEST_FIELDS: dict[str, Any] = {
    "sources": [
        source_entry("a.jsonl", "en", 1.0, DOCUMENTS[:8], 600),
        source_entry(f"b {SCRIPT}.txt", "en", 2.0, DOCUMENTS[8:18], 300),
        source_entry("c.txt", "ar", 4.0, DOCUMENTS[18:], 100),
    ],
    "settings": {"clean": "nfc,control"},
    "removed": {
        "num_blank": 3,
        "num_bad": 2,
        "bad_row_messages": ["a.jsonl line 7: malformed JSON", f"a.jsonl line 9: {SCRIPT}"],
        "cleaning": {
            "min_chars": {
                "changed": 0,
                "removed": 5,
                "characters": 70,
                "examples": [{"location": "line 3", "text": "Hm\x00"}],
            },
            "nfc": {"changed": 11, "removed": 0, "characters": 12, "examples": []},
        },
        "duplicates": {
            "exact": 4,
            "near": 6,
            "characters": 1234,
            "examples": [{"location": "a.jsonl line 8", "duplicate_of": "a.jsonl line 2", "text": "سلام same again"}],
        },
    },
}


@pytest.fixture(scope="module", params=["wordpiece", "bpe"])
def corpus(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    tokenizer = Tokenizer.train(request.param, iter(DOCUMENTS[:19]), 700)
    return store(
        tmp_path_factory.mktemp(request.param) / "corpus", tokenizer, DOCUMENTS, manifest_fields=MANIFEST_FIELDS
    )


@pytest.fixture(scope="module")
def tokens(corpus: Corpus) -> tuple[np.ndarray, np.ndarray]:
    """All token ids, and whether each starts a word."""
    borders = corpus.sentence_offsets[corpus.document_offsets]
    starts, lengths = borders[:-1], np.diff(borders)
    return corpus.gather_tokens(starts, lengths), corpus.gather_word_starts(starts, lengths)


def test_statistics_equal_a_naive_count(corpus: Corpus, tokens: tuple[np.ndarray, np.ndarray]) -> None:
    stats = compute_statistics(corpus, top_k=12)
    ids, words = tokens
    counts = Counter(ids.tolist())
    shares = [count / len(ids) for count in counts.values()]
    assert stats.counts == corpus.manifest["counts"]
    assert stats.counts["characters"] == sum(map(len, DOCUMENTS))
    assert stats.num_bytes == sum(path.stat().st_size for path in corpus.path.glob("shard-*.npy"))
    unigram = stats.unigram
    assert unigram.entropy == pytest.approx(-sum(p * math.log2(p) for p in shares))
    assert (unigram.vocab_size, unigram.num_types, unigram.num_words) == (700, len(counts), words.sum())
    unk = Tokenizer.load(corpus.path / "tokenizer").special_token_ids.unk
    assert unigram.num_unknown == (counts[unk] if stats.tokenizer_kind == "wordpiece" else 0)
    assert (unigram.num_unknown > 0) == (stats.tokenizer_kind == "wordpiece"), "漢 is unknown"
    for pieces, at in ((unigram.top_word_initial, words), (unigram.top_word_internal, ~words)):
        expected = sorted(Counter(ids[at].tolist()).items(), key=lambda item: (-item[1], item[0]))
        assert [(piece.id, piece.count) for piece in pieces] == expected[:12]
    assert [at for at, _ in unigram.vocabulary_growth] == [*(1 << i for i in range(8, len(ids).bit_length())), len(ids)]
    assert all(seen == len(set(ids[:at].tolist())) for at, seen in unigram.vocabulary_growth)


def test_length_histograms(corpus: Corpus) -> None:
    stats = compute_statistics(corpus)
    for histogram, lengths in (
        (stats.document_lengths, np.diff(corpus.sentence_offsets[corpus.document_offsets])),
        (stats.sentence_lengths, np.diff(corpus.sentence_offsets)),
    ):
        assert sum(histogram.counts) == len(lengths) and histogram.counts[0] and histogram.counts[-1]
        for low, high, count in zip(histogram.bin_edges, histogram.bin_edges[1:], histogram.counts):
            assert count == ((lengths >= low) & (lengths < high)).sum()
        assert (histogram.min, histogram.max, histogram.mean) == (
            lengths.min(),
            lengths.max(),
            pytest.approx(lengths.mean()),
        )
        assert histogram.quartiles[1] == sorted(lengths)[(len(lengths) - 1) // 2]
    assert statistics._length_histogram(np.array([1])).bin_edges == (1, 2)
    assert statistics._length_histogram(np.array([4, 1 << 20])).counts[-1] == 1


def test_statistics_do_not_depend_on_slices(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = compute_statistics(corpus)
    monkeypatch.setattr(statistics, "SLICE_TOKENS", 37)
    assert compute_statistics(corpus) == expected


def test_sources_and_languages(corpus: Corpus) -> None:
    stats = compute_statistics(corpus)
    assert [(row.lang, row.weight, row.token_share) for row in stats.sources] == [
        ("en", 1.0, 0.6),
        ("en", 2.0, 0.3),
        ("ar", 4.0, 0.1),
    ]
    assert [row.weighted_share for row in stats.sources] == pytest.approx([0.375, 0.375, 0.25])
    assert [(row.name, row.weight) for row in stats.languages] == [("en", None), ("ar", 4.0)]
    assert stats.languages[0].counts["documents"] == 18 and stats.languages[0].token_share == pytest.approx(0.9)


def test_sampled_documents_depend_on_the_seed(corpus: Corpus) -> None:
    tokenizer = Tokenizer.load(corpus.path / "tokenizer")
    stats = compute_statistics(corpus, seed=3, num_samples=6).samples
    assert len(stats) == 6 and stats == compute_statistics(corpus, seed=3, num_samples=6).samples
    assert stats != compute_statistics(corpus, seed=4, num_samples=6).samples
    all_samples = compute_statistics(corpus, num_samples=99).samples
    assert [row.document_number for row in all_samples] == list(range(1, 21)) and set(stats) <= set(all_samples)
    assert [row.source for row in all_samples] == [
        o["path"] for o in MANIFEST_FIELDS["sources"] for _ in range(o["counts"]["documents"])
    ]
    for row, text in zip(all_samples, DOCUMENTS):
        ids = tokenizer.encode_corpus([text]).ids
        assert row.num_tokens == len(ids) and row.is_complete == (len(ids) <= statistics.MAX_SAMPLE_TOKENS)
        assert (
            tokenizer.decode(ids[: statistics.MAX_SAMPLE_TOKENS].tolist(), skip_special_tokens=False).removesuffix(
                "\ufffd"
            )
            == row.text
        )
    assert any(not row.is_complete for row in all_samples) and "هذا نص عربي قصير جدا" in all_samples[18].text


# --------------------------------------------------------------------------------------------------- the page


def test_page_shows_everything_and_escapes_text(corpus: Corpus) -> None:
    page = render_page(compute_statistics(corpus, num_samples=20))
    parsed = parse_page(page)
    for expected in (
        *("Size", "Sources", "Languages", "Lengths", "Tokens", "What was removed", "Random documents", "Settings"),
        *(SCRIPT, "exact duplicates", "1,234", "a.jsonl line 8 repeats a.jsonl line 2", "line 9: <script>", "Hm␀"),
        *(
            "nfc,control",
            "weighted share",
            "37.50%",
            "Most frequent inside words",
            "هذا نص عربي قصير جدا",
            "سلام same again",
        ),
        f"polyseme pretrain {SMALLEST_RECIPE[compute_statistics(corpus).tokenizer_kind]} --corpus",
    ):
        assert expected in parsed.text, expected
    if compute_statistics(corpus).tokenizer_kind == "bpe":
        assert "<b>bold</b> & 漢字␇ end" in parsed.text and "␣the" in parsed.text
    quotes = [attrs for tag, attrs in parsed.seen if tag == "blockquote"]
    assert len(quotes) == 20 + 2 and all(attrs.get("dir") == "auto" for attrs in quotes)
    assert sum(tag == "svg" for tag, _ in parsed.seen) == 3 and not any(tag == "b" for tag, _ in parsed.seen)
    assert page == render_page(compute_statistics(corpus, num_samples=20)), "the same bytes every time"


def test_manifest_without_optional_fields(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train("wordpiece", iter(DOCUMENTS[:5]), 400)
    stats = compute_statistics(store(tmp_path / "corpus", tokenizer, DOCUMENTS[:1]), top_k=0, num_samples=0)
    assert (
        stats.sources == stats.languages == stats.samples == stats.unigram.top_word_initial == ()
        and stats.removed == {}
    )
    assert "The manifest does not list them." in parse_page(render_page(stats)).text
    one = compute_statistics(store(tmp_path / "one", tokenizer, ["the"]))
    assert one.unigram.entropy == 0 and math.copysign(1, one.unigram.entropy) == 1
    assert one.unigram.vocabulary_growth == ((1, 1),) and one.unigram.top_word_internal == ()
    parse_page(render_page(one))


def test_escape_any_text() -> None:
    assert escape("a\ud800\x00<\x7f\n") == "a?␀&lt;␡\n"


def test_suggested_recipes_exist() -> None:
    assert set(SMALLEST_RECIPE.values()) <= set(RECIPES)


def test_manifest_of_prepare_is_shown(tmp_path: Path) -> None:
    rows = [*DOCUMENTS[:6], DOCUMENTS[2], "cafe\u0301 " * 200, "Hm."]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows) + "{\n")
    tokenizer = Tokenizer.train("bpe", iter(DOCUMENTS), 400)
    config = PrepareConfig(clean="nfc,min_chars=20", dedup="exact", skip_bad=True)
    prepare([f"{tmp_path / 'a.jsonl'}::lang=de,weight=3"], tokenizer, tmp_path / "corpus", config)
    stats = compute_statistics(Corpus.open(tmp_path / "corpus"))
    assert [(row.lang, row.weight, row.token_share, row.weighted_share) for row in stats.sources] == [
        ("de", 3.0, 1.0, 1.0)
    ]
    assert stats.counts["documents"] == stats.sources[0].counts["documents"] == 7
    assert ("documents removed", "2") in summary_rows(stats)
    text = parse_page(render_page(stats)).text
    assert "line 10" in text and "line 7 repeats" in text and "Bad rows: 1." in text


# ------------------------------------------------------------------------------------------------ the command


def test_command(corpus: Corpus, tmp_path: Path, run_cli: Any) -> None:
    before = corpus.manifest_hash
    output = run_cli("describe", corpus.path, "--num-samples", 2, "--top-k", 3)
    rows = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in output.splitlines()[1:-1])
    assert rows["tokens"] == f"{corpus.num_tokens:,}" and rows["documents removed"] == "15"
    assert rows["unigram entropy"].startswith(f"{compute_statistics(corpus).unigram.entropy:.4f} bits")
    page = corpus.path / "description.html"
    assert str(page) in output.splitlines()[-1] and parse_page(page.read_text(encoding="utf-8"))
    verify_corpus(corpus.path)
    verify_corpus(corpus.path)
    assert Corpus.open(corpus.path).manifest_hash == before
    page.unlink()
    run_cli("describe", corpus.path, "--out", tmp_path / "new" / "page.html")
    assert (tmp_path / "new" / "page.html").exists() and not page.exists()


@pytest.mark.parametrize(
    "options,message",
    [
        (("--out", "page.txt"), "page.txt.*html"),
        (("--num-samples", -1), "num_samples is -1"),
        (("--top-k", -1), "top_k is -1"),
        (("--seed", -1), "--seed"),
    ],
)
def test_bad_options_give_one_line_errors(options: Any, message: str, corpus: Corpus, rejects: Any) -> None:
    rejects("describe", corpus.path, *options, match=message)


def test_missing_corpus_gives_a_one_line_error(tmp_path: Path, rejects: Any) -> None:
    rejects("describe", tmp_path / "nowhere", match="nowhere does not exist")
    rejects("describe", tmp_path, match="manifest.json")


def test_token_outside_the_vocabulary_is_reported(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train("bpe", iter(DOCUMENTS[:5]), 400)
    corpus = store(tmp_path / "corpus", tokenizer, DOCUMENTS[:2])
    path = corpus.path / "shard-00000.tokens.npy"
    ids = np.load(path)
    ids[7] = 400
    np.save(path, ids)
    with pytest.raises(PolysemeError, match="is damaged: token 400 is not in its vocabulary"):
        compute_statistics(Corpus.open(corpus.path))
