"""Parallel text: every format gives the same pairs, and pairs can be stored as a corpus."""

import gettext
import json
import struct

import numpy as np
import pytest

from polyseme.corpus.build.parallel import TextPair, prepare_parallel, read_pairs
from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.corpus.sources.gettext_catalogs import read_po
from polyseme.corpus.store import Corpus, verify_corpus
from polyseme.errors import PolysemeError
from polyseme.text.tokenizer import Tokenizer
from tests.support.text import documents

PAIRS = [("the cat", "die Katze"), ("the old dog", "der alte Hund"), ("a bird's nest", "ein Nest; „schön“")]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train("bpe", iter(documents(20)), 300)


def write_pair_files(folder):
    """Write the same pairs in each format."""
    (folder / "x.en").write_text("".join(a + "\n" for a, _ in PAIRS))
    (folder / "x.de").write_text("".join(b + "\n" for _, b in PAIRS))
    (folder / "x.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS))
    (folder / "named.tsv").write_text("id\tde\ten\n" + "".join(f"7\t{b}\t{a}\n" for a, b in PAIRS))
    (folder / "x.jsonl").write_text("".join(json.dumps({"source": a, "target": b}) + "\n" for a, b in PAIRS))
    (folder / "x.csv").write_text("\nsource,target\n\n" + "".join(f'"{a}","{b}"\n\n' for a, b in PAIRS))
    (folder / "x.json").write_text((folder / "x.jsonl").read_text())
    (folder / "t.jsonl").write_text("".join(json.dumps({"translation": {"en": a, "de": b}}) + "\n" for a, b in PAIRS))
    header = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    entries = [f'#: place\nmsgid "{a}"\nmsgstr ""\n"{b[:4]}"\n"{b[4:]}"\n' for a, b in PAIRS]
    (folder / "x.po").write_text(header + "\n".join(entries))
    keys = sorted([("", "Content-Type: text/plain; charset=UTF-8\n"), *PAIRS])
    tables, strings = b"", b""
    base = 28 + 16 * len(keys)
    for side in (0, 1):
        for pair in keys:
            text = pair[side].encode()
            tables += struct.pack("<2I", len(text), base + len(strings))
            strings += text + b"\0"
    (folder / "x.mo").write_bytes(
        struct.pack("<7I", 0x950412DE, 0, len(keys), 28, 28 + 8 * len(keys), 0, 0) + tables + strings
    )


@pytest.mark.parametrize(
    "files,keys",
    [(("x.en", "x.de"), None), (("x.tsv",), None), (("named.tsv",), ("en", "de")), (("x.jsonl",), None),
     (("x.csv",), None), (("x.json",), None),
     (("t.jsonl",), ("en", "de")), (("x.po",), None), (("x.mo",), None)],
)  # fmt: skip
def test_every_format_gives_the_same_pairs(files, keys, tmp_path):
    write_pair_files(tmp_path)
    pairs = [(p.source, p.target) for p in read_pairs([str(tmp_path / f) for f in files], keys)]
    assert sorted(pairs) == sorted(PAIRS)


def test_po_contexts_plurals_escapes_and_skipped_entries(tmp_path):
    (tmp_path / "a.po").write_text(
        'msgid ""\nmsgstr "charset=UTF-8"\n\n# said\nmsgctxt "menu"\nmsgid "open\\t\\"it\\"\\n"\nmsgstr "auf\\x21"\n'
        'msgid "one file"\nmsgid_plural "%d files"\nmsgstr[0] "eine Datei"\nmsgstr[1] "%d Dateien"\n\n'
        '#, fuzzy\nmsgid "no"\nmsgstr "nein"\n\n#~ msgid "gone"\n#~ msgstr "weg"\n\nmsgid "bare"\nmsgstr ""\n'
    )
    expected = [('open\t"it"\n', "auf!"), ("one file", "eine Datei"), ("%d files", "%d Dateien")]
    assert list(read_po(tmp_path / "a.po")) == expected
    escaped = "caf\\303\\251 \\xe2\\x82\\xac\\\\303 \\x"  # as `msgcat --escape` writes it
    (tmp_path / "a.po").write_text(f'msgid "a"\nmsgstr "{escaped}"\n')
    assert list(read_po(tmp_path / "a.po")) == [("a", "café €\\303 x")]
    obsolete = '#, fuzzy\n#~ msgid "gone"\n#~ msgstr "weg"\n\n'
    (tmp_path / "a.po").write_text(f'{obsolete}msgid "cat"\nmsgstr "Katze"\n{obsolete}')
    assert list(read_po(tmp_path / "a.po")) == [("cat", "Katze")]
    (tmp_path / "b.po").write_text('msgid "a"\nmsgid "b"\n')
    with pytest.raises(PolysemeError, match="line 2: msgid occurs twice"):
        list(read_po(tmp_path / "b.po"))
    (tmp_path / "c.po").write_text("hello\n")
    with pytest.raises(PolysemeError, match="is not valid in a"):
        list(read_po(tmp_path / "c.po"))
    (tmp_path / "d.po").write_text('msgid "a"\nmsgstr "unclosed\n\nmsgid "b"\nmsgstr "c"\n')
    with pytest.raises(PolysemeError, match=r"d\.po line 2: .* is not valid in a"):
        list(read_po(tmp_path / "d.po"))


def test_mo_files_of_these_tests_are_valid_for_gettext(tmp_path):
    write_pair_files(tmp_path)
    with open(tmp_path / "x.mo", "rb") as file:
        catalog = gettext.GNUTranslations(file)
    assert all(catalog.gettext(a) == b for a, b in PAIRS)


def test_pairs_are_stored_as_a_corpus(tokenizer, tmp_path):
    write_pair_files(tmp_path)
    more = [("", "leer"), ("the cat", "die  Katze"), ("long " * 40, "lang"), ("a b c d e f", "x")]
    (tmp_path / "y.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in more))
    sources = [str(tmp_path / name) for name in ("x.tsv", "y.tsv")]
    manifest = prepare_parallel(sources, tokenizer, tmp_path / "c", max_tokens=40, max_length_ratio=5)
    assert manifest["removed"]["pairs"] == {"empty": 1, "duplicate": 1, "too_long": 1, "length_ratio": 1}
    verify_corpus(tmp_path / "c")
    corpus = Corpus.open(tmp_path / "c")
    assert corpus.num_documents == 3 and corpus.num_sentences == 6
    starts, lengths = corpus.sentence_offsets[:-1], np.diff(corpus.sentence_offsets)
    for i, text in enumerate(side for pair in PAIRS for side in pair):
        ids = corpus.gather_tokens(starts[i : i + 1], lengths[i : i + 1]).tolist()
        assert tokenizer.decode(ids) == text
        words = corpus.gather_word_starts(starts[i : i + 1], lengths[i : i + 1])
        assert words.tolist() == tokenizer.encode_corpus([text]).word_starts.tolist()
    training, heldout = corpus.split(0.34)
    assert training.num_sentences == 4 and heldout.num_sentences == 2
    repeated = prepare_parallel(sources, tokenizer, tmp_path / "d", max_tokens=40, max_length_ratio=5)
    assert repeated["shards"] == manifest["shards"]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_lone_surrogates_are_replaced(kind, tokenizer, tmp_path):
    if kind == "wordpiece":
        tokenizer = Tokenizer.train(kind, iter(documents(20)), 300)
    (tmp_path / "a.jsonl").write_text(json.dumps({"source": "the \ud800 cat", "target": "die Katze"}))
    prepare_parallel([str(tmp_path / "a.jsonl")], tokenizer, tmp_path / "out")
    corpus = Corpus.open(tmp_path / "out")
    ids = corpus.gather_tokens(corpus.sentence_offsets[:1], np.diff(corpus.sentence_offsets[:2])).tolist()
    assert ids == tokenizer.encode("the \ufffd cat") == tokenizer.encode_corpus("the \ud800 cat").ids.tolist()


@pytest.mark.parametrize("append", [False, True])
def test_text_cannot_be_prepared_into_a_corpus_of_pairs(append, tokenizer, tmp_path):
    write_pair_files(tmp_path)
    manifest = prepare_parallel([str(tmp_path / "x.tsv")], tokenizer, tmp_path / "out")
    with pytest.raises(PolysemeError, match=r"out is a corpus of pairs, not of text: choose another folder"):
        prepare([tmp_path / "x.po"], tokenizer, tmp_path / "out", PrepareConfig(append=append, num_workers=1))
    verify_corpus(tmp_path / "out")
    assert Corpus.open(tmp_path / "out").manifest == manifest


@pytest.mark.parametrize(
    "content,message",
    [
        ({"a.en": "x\ny\n", "a.de": "x\n"}, "ends before line 2"),
        ({"a.en": "x\n"}, "without a second file"),
        ({"a.tsv": "x\ty\tz\n"}, "3 columns, expected 2"),
        ({"a.tsv": "x\ty\nz\n"}, "line 2: 1 columns"),
        ({"a.jsonl": "{"}, "malformed JSON"),
        ({"a.jsonl": "[1]"}, "expected a JSON object, not list"),
        ({"a.jsonl": '{"source": "x"}'}, "no key 'target'"),
        ({"a.jsonl": '{"source": "x", "target": 3}'}, "'target' is int, not a string"),
        ({"a.en": "x\n", "b.tsv": "a\tb\n"}, "give both sides as plain text"),
        ({"a.tsv": "\t\n"}, "there are no pairs"),
        ({"a.mo": "no"}, "not a gettext catalog"),
        ({"a.csv": "\n\n"}, "there are no pairs"),
    ],
)
def test_bad_parallel_text_is_reported_and_leaves_nothing(content, message, tokenizer, tmp_path):
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(PolysemeError, match=message):
        prepare_parallel([str(tmp_path / name) for name in content], tokenizer, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_invalid_requests_are_reported(tokenizer, tmp_path):
    write_pair_files(tmp_path)
    with pytest.raises(PolysemeError, match="no column 'fr'"):
        list(read_pairs([str(tmp_path / "named.tsv")], ("fr", "de")))
    with pytest.raises(PolysemeError, match="does not exist"):
        list(read_pairs(["nowhere.tsv"]))
    with pytest.raises(PolysemeError, match="does not name a language"):
        list(read_pairs(["gettext"]))
    with pytest.raises(PolysemeError, match="has options other than a language, as in gettext::lang=de"):
        list(read_pairs(["gettext::lang=de,text=en"]))
    for names in (("x.en", "x.de"), ("x.po",)):
        with pytest.raises(PolysemeError, match=r"`keys` is en\+de, but no source has columns"):
            prepare_parallel([str(tmp_path / name) for name in names], tokenizer, tmp_path / "out", keys=("en", "de"))
    with pytest.raises(PolysemeError, match="already exists"):
        prepare_parallel([str(tmp_path / "x.tsv")], tokenizer, tmp_path)
    assert TextPair("a", "b", "c").location == "c"
