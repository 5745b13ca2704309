"""A description of a corpus: every number against a plain count, and a page that shows any text."""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
from stored import store

from polyseme.cli.describe import SMALLEST, main_figures, write_page
from polyseme.corpus.build.prepare import prepare
from polyseme.corpus.inspect import statistics as module
from polyseme.corpus.inspect.statistics import describe
from polyseme.corpus.store import Corpus, verify
from polyseme.errors import UserError
from polyseme.recipes import RECIPES
from polyseme.report.html import escape
from polyseme.text.tokenizer import Tokenizer

DOCUMENTS = [text[:3000] for _, text in sorted(topics.items())][:18]
DOCUMENTS += ["هذا نص عربي قصير جدا.", "<b>bold</b> & 漢字\x07 end"]
SCRIPT = "<script>alert(1)</script>"


def origin(path: str, lang: str, weight: float, documents: list[str], tokens: int) -> dict[str, Any]:
    counts = {"documents": len(documents), "sentences": 1, "tokens": tokens, "characters": sum(map(len, documents))}
    return {"path": path, "lang": lang, "weight": weight, "key": "text", "split": "file", "counts": counts}


SAID: dict[str, Any] = {
    "origins": [
        origin("a.jsonl", "en", 1.0, DOCUMENTS[:8], 600),
        origin(f"b {SCRIPT}.txt", "en", 2.0, DOCUMENTS[8:18], 300),
        origin("c.txt", "ar", 4.0, DOCUMENTS[18:], 100),
    ],
    "settings": {"clean": "nfc,control"},
    "removed": {
        "blank": 3,
        "bad": 2,
        "bad_rows": ["a.jsonl line 7: malformed JSON", f"a.jsonl line 9: {SCRIPT}"],
        "cleaning": {
            "short": {
                "changed": 0,
                "removed": 5,
                "characters": 70,
                "examples": [{"where": "line 3", "text": "Hm\x00"}],
            },
            "nfc": {"changed": 11, "removed": 0, "characters": 12, "examples": []},
        },
        "duplicates": {
            "exact": 4,
            "near": 6,
            "characters": 1234,
            "examples": [{"where": "a.jsonl line 8", "of": "a.jsonl line 2", "text": "سلام same again"}],
        },
    },
}


@pytest.fixture(scope="module", params=["wordpiece", "bpe"])
def corpus(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    tokenizer = Tokenizer.train(request.param, iter(DOCUMENTS[:19]), 700)
    return store(tmp_path_factory.mktemp(request.param) / "corpus", tokenizer, DOCUMENTS, said=SAID)


@pytest.fixture(scope="module")
def tokens(corpus: Corpus) -> tuple[np.ndarray, np.ndarray]:
    """All of them, and whether each starts a word."""
    borders = corpus.sentences[corpus.documents]
    starts, lengths = borders[:-1], np.diff(borders)
    return corpus.gather(starts, lengths), corpus.gather_words(starts, lengths)


def test_numbers_are_those_of_a_plain_count(corpus: Corpus, tokens: tuple[np.ndarray, np.ndarray]) -> None:
    found = describe(corpus, top=12)
    ids, words = tokens
    counts = Counter(ids.tolist())
    shares = [count / len(ids) for count in counts.values()]
    assert found.counts == corpus.manifest["counts"]
    assert found.counts["characters"] == sum(map(len, DOCUMENTS))
    assert found.bytes == sum(path.stat().st_size for path in corpus.path.glob("shard-*.npy"))
    unigram = found.unigram
    assert unigram.entropy == pytest.approx(-sum(p * math.log2(p) for p in shares))
    assert (unigram.vocab_size, unigram.seen, unigram.words) == (700, len(counts), words.sum())
    unk = Tokenizer.load(corpus.path / "tokenizer").specials.unk
    assert unigram.unknown == (counts[unk] if found.tokenizer == "wordpiece" else 0)
    assert (unigram.unknown > 0) == (found.tokenizer == "wordpiece"), "漢 is in no alphabet"
    for pieces, at in ((unigram.starting, words), (unigram.inside, ~words)):
        expected = sorted(Counter(ids[at].tolist()).items(), key=lambda item: (-item[1], item[0]))
        assert [(piece.id, piece.count) for piece in pieces] == expected[:12]
    assert [at for at, _ in unigram.growth] == [*(1 << i for i in range(8, len(ids).bit_length())), len(ids)]
    assert all(seen == len(set(ids[:at].tolist())) for at, seen in unigram.growth)


def test_lengths(corpus: Corpus) -> None:
    found = describe(corpus)
    for of, lengths in (
        (found.documents, np.diff(corpus.sentences[corpus.documents])),
        (found.sentences, np.diff(corpus.sentences)),
    ):
        assert sum(of.counts) == len(lengths) and of.counts[0] and of.counts[-1]
        for low, high, count in zip(of.borders, of.borders[1:], of.counts):
            assert count == ((lengths >= low) & (lengths < high)).sum()
        assert (of.shortest, of.longest, of.mean) == (lengths.min(), lengths.max(), pytest.approx(lengths.mean()))
        assert of.quarters[1] == sorted(lengths)[(len(lengths) - 1) // 2]
    assert module._lengths(np.array([1])).borders == (1, 2)
    assert module._lengths(np.array([4, 1 << 20])).counts[-1] == 1


def test_slices_do_not_show(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = describe(corpus)
    monkeypatch.setattr(module, "SLICE", 37)
    assert describe(corpus) == whole


def test_sources_and_languages(corpus: Corpus) -> None:
    found = describe(corpus)
    assert [(each.lang, each.weight, each.share) for each in found.sources] == [
        ("en", 1.0, 0.6),
        ("en", 2.0, 0.3),
        ("ar", 4.0, 0.1),
    ]
    assert [each.read for each in found.sources] == pytest.approx([0.375, 0.375, 0.25])
    assert [(each.name, each.weight) for each in found.languages] == [("en", None), ("ar", 4.0)]
    assert found.languages[0].counts["documents"] == 18 and found.languages[0].share == pytest.approx(0.9)


def test_samples_are_documents_by_the_seed(corpus: Corpus) -> None:
    tokenizer = Tokenizer.load(corpus.path / "tokenizer")
    found = describe(corpus, seed=3, samples=6).samples
    assert len(found) == 6 and found == describe(corpus, seed=3, samples=6).samples
    assert found != describe(corpus, seed=4, samples=6).samples
    every = describe(corpus, samples=99).samples
    assert [each.document for each in every] == list(range(1, 21)) and set(found) <= set(every)
    assert [each.source for each in every] == [
        o["path"] for o in SAID["origins"] for _ in range(o["counts"]["documents"])
    ]
    for each, text in zip(every, DOCUMENTS):
        ids = tokenizer.encode_run([text]).ids
        assert each.tokens == len(ids) and each.whole == (len(ids) <= module.SHOWN)
        assert tokenizer.decode(ids[: module.SHOWN].tolist(), skip_specials=False).removesuffix("\ufffd") == each.text
    assert any(not each.whole for each in every) and "هذا نص عربي قصير جدا" in every[18].text


# --------------------------------------------------------------------------------------------------- the page


class Check(HTMLParser):
    """Every tag that is opened is closed again; text by tag."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def check(page: str) -> Check:
    read = Check(page)
    assert not read.open
    page.encode()  # no half of a surrogate pair is left
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", page)
    names = {tag for tag, _ in read.seen}
    assert not names & {"script", "link", "img", "iframe", "b"}
    assert not [
        v for _, attrs in read.seen for k, v in attrs.items() if k in ("src", "href") and not str(v).startswith("#")
    ]
    return read


def test_the_page_shows_everything_and_runs_nothing(corpus: Corpus) -> None:
    page = write_page(describe(corpus, samples=20))
    read = check(page)
    for said in (
        *("Size", "Sources", "Languages", "Lengths", "Tokens", "What was removed", "Random documents", "Settings"),
        *(SCRIPT, "exact duplicates", "1,234", "a.jsonl line 8 repeats a.jsonl line 2", "line 9: <script>", "Hm␀"),
        *(
            "nfc,control",
            "share read",
            "37.50%",
            "Most frequent inside words",
            "هذا نص عربي قصير جدا",
            "سلام same again",
        ),
        f"polyseme pretrain {SMALLEST[describe(corpus).tokenizer]} --corpus",
    ):
        assert said in read.text, said
    if describe(corpus).tokenizer == "bpe":
        assert "<b>bold</b> & 漢字␇ end" in read.text and "␣the" in read.text
    quotes = [attrs for tag, attrs in read.seen if tag == "blockquote"]
    assert len(quotes) == 20 + 2 and all(attrs.get("dir") == "auto" for attrs in quotes)
    assert sum(tag == "svg" for tag, _ in read.seen) == 3
    assert page == write_page(describe(corpus, samples=20)), "the same bytes every time"


def test_without_matplotlib_there_are_tables(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    read = check(write_page(describe(corpus)))
    assert not any(tag == "svg" for tag, _ in read.seen)
    assert "tokens a document" in read.text and "256 to 361" in read.text and "different tokens seen" in read.text


def test_a_manifest_that_says_little(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train("wordpiece", iter(DOCUMENTS[:5]), 400)
    found = describe(store(tmp_path / "corpus", tokenizer, DOCUMENTS[:1]), top=0, samples=0)
    assert found.sources == found.languages == found.samples == found.unigram.starting == () and found.removed == {}
    assert "The manifest does not say." in check(write_page(found)).text
    one = describe(store(tmp_path / "one", tokenizer, ["the"]))
    assert one.unigram.entropy == 0 and math.copysign(1, one.unigram.entropy) == 1
    assert one.unigram.growth == ((1, 1),) and one.unigram.inside == ()
    check(write_page(one))


def test_any_text_can_stand_on_a_page() -> None:
    assert escape("a\ud800\x00<\x7f\n") == "a?␀&lt;␡\n"


def test_recipes_that_are_named_exist() -> None:
    assert set(SMALLEST.values()) <= set(RECIPES)


def test_what_prepare_says_is_shown(tmp_path: Path) -> None:
    rows = [*DOCUMENTS[:6], DOCUMENTS[2], "cafe\u0301 " * 200, "Hm."]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows) + "{\n")
    tokenizer = Tokenizer.train("bpe", iter(DOCUMENTS), 400)
    prepare(
        [f"{tmp_path / 'a.jsonl'}::lang=de,weight=3"], tokenizer, tmp_path / "corpus",
        clean="nfc,short=20", duplicates="exact", skip_bad=True,
    )  # fmt: skip
    found = describe(Corpus.open(tmp_path / "corpus"))
    assert [(each.lang, each.weight, each.share, each.read) for each in found.sources] == [("de", 3.0, 1.0, 1.0)]
    assert found.counts["documents"] == found.sources[0].counts["documents"] == 7
    assert ("documents removed", "2") in main_figures(found)
    text = check(write_page(found)).text
    assert "line 10" in text and "line 7 repeats" in text and "Rows that could not be read: 1." in text


# ------------------------------------------------------------------------------------------------ the command


def test_command(corpus: Corpus, tmp_path: Path, done: Any) -> None:
    before = corpus.manifest_hash
    said = done("describe", corpus.path, "--samples", 2, "--top", 3)
    rows = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in said.splitlines()[1:-1])
    assert rows["tokens"] == f"{corpus.num_tokens:,}" and rows["documents removed"] == "15"
    assert rows["unigram entropy"].startswith(f"{describe(corpus).unigram.entropy:.4f} bits")
    page = corpus.path / "description.html"
    assert str(page) in said.splitlines()[-1] and check(page.read_text(encoding="utf-8"))
    verify(corpus.path)
    assert Corpus.open(corpus.path, verify=True).manifest_hash == before
    page.unlink()
    done("describe", corpus.path, "--out", tmp_path / "new" / "page.html")
    assert (tmp_path / "new" / "page.html").exists() and not page.exists()


@pytest.mark.parametrize(
    "options,says",
    [
        (("--out", "page.txt"), "page.txt.*html"),
        (("--samples", -1), "samples is -1"),
        (("--top", -1), "top is -1"),
        (("--seed", -1), "seed is -1"),
    ],
)
def test_bad_options_are_one_line(options: Any, says: str, corpus: Corpus, refused: Any) -> None:
    refused("describe", corpus.path, *options, says=says)


def test_no_corpus_is_one_line(tmp_path: Path, refused: Any) -> None:
    refused("describe", tmp_path / "nowhere", says="no corpus folder")
    refused("describe", tmp_path, says="manifest.json")


def test_a_token_outside_the_vocabulary_is_damage(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train("bpe", iter(DOCUMENTS[:5]), 400)
    corpus = store(tmp_path / "corpus", tokenizer, DOCUMENTS[:2])
    path = corpus.path / "shard-00000.tokens.npy"
    ids = np.load(path)
    ids[7] = 400
    np.save(path, ids)
    with pytest.raises(UserError, match="is damaged: token 400 is not in its vocabulary"):
        describe(Corpus.open(corpus.path))
