"""Crafted words with equal hashes deceive neither duplicate detection nor the contamination check."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.corpus.clean.clean import Cleaner, hash_distinct_lines, parse_cleaning_steps
from polyseme.corpus.dedup.minhash import minhash_signatures
from polyseme.corpus.inspect.contamination import measure_contamination
from polyseme.corpus.store import Corpus
from polyseme.rng import hash_combine
from polyseme.text.tokenizer import Tokenizer

# Words with the hash of another one under the formulas that MinHash and the contamination check once used: a polynomial
# of the code points, or of public random numbers for them, in a public base.
OLD_BASE = 0xD6E8FEB86659FD93
WORDS = ["the", "of", "and", "river", "bank", "deep", "wide", "long"]
MINHASH_COLLISIONS = dict(
    zip(
        WORDS,
        [
            *("ijurrxcccwlfhlrdtwegncgudhhwfqiz", "yntyqzsdztsybndtagbffteeddogfopn"),
            *("rqudzphpcykcvcgpwvlbmmypgjiieahb", "ivpzgdkcpmireivdkucyrdtrkxlboyfu"),
            *("bsxvdmmacqnkicloljqpkfuivgfgplxf", "uwawjpgetfekashfemzxxrgojvlyatfv"),
            *("pbsydlnrgsigmjzwbtgrapxlptsycjvt", "vnuvpjrsdinscedtylndvxjssddfsbgu"),
        ],
    )
)
CONTAMINATION_COLLISIONS = dict(
    zip(
        WORDS,
        [
            *("xyokvqlvmoixiklzoezwytwityfkrshi", "jccsfpetpispeqxahkbunlgolwlroipe"),
            *("lfmudxxemsilmkhurqvcdbedaznxstng", "aedmmsbblhjtmnnvaqtyhgyypyaubrkt"),
            *("mginafvdazqfnmtmpmmazdxziymbebik", "hirkjzzgtjgaruqvwdxegapaikqlcdbq"),
            *("oebvndmbojdejeywchssqdscjmecyezo", "pmnzbzgbnhnfwttvpchbvyjiiongcldj"),
        ],
    )
)
HONEST = " ".join(WORDS[(i * i + i // 3) % len(WORDS)] for i in range(60))


def impersonate(text: str, collisions: dict[str, str]) -> str:
    return " ".join(collisions[word] for word in text.split())


def old_hash(values: list[int]) -> int:
    return sum(value * pow(OLD_BASE, i, 1 << 64) for i, value in enumerate(values)) % (1 << 64)


def prepare_corpus(folder: Path, texts: list[str], **options: object) -> Corpus:
    (folder / "text.txt").write_text("\n".join(texts))
    tokenizer = Tokenizer.train("words", iter([HONEST, *texts] * 2), 400)
    config = PrepareConfig(split="line", num_workers=1, **options)  # type: ignore[arg-type]
    prepare([folder / "text.txt"], tokenizer, folder / "corpus", config)
    return Corpus.open(folder / "corpus")


def test_words_collide_under_the_old_hashes() -> None:
    def public_values(word: str) -> list[int]:
        return hash_combine(np.zeros(1, np.uint64), np.array(list(map(ord, word)))).tolist()

    for word in WORDS:
        assert old_hash(list(map(ord, word))) == old_hash(list(map(ord, MINHASH_COLLISIONS[word])))
        assert old_hash(public_values(word)) == old_hash(public_values(CONTAMINATION_COLLISIONS[word]))


def test_crafted_text_does_not_displace_a_document(tmp_path: Path) -> None:
    crafted = impersonate(HONEST, MINHASH_COLLISIONS)
    for key in (b"", b"0123456789abcdef"):
        _, (honest, other, copy) = minhash_signatures([HONEST, crafted, HONEST], key)
        assert np.count_nonzero(honest == other) < 10 and (honest == copy).all()
    corpus = prepare_corpus(tmp_path, [crafted, HONEST, HONEST + " ."])
    assert corpus.num_documents == 2 and corpus.manifest["removed"]["duplicates"]["near"] == 1


def test_crafted_text_does_not_seem_to_contain_an_evaluation_set(tmp_path: Path) -> None:
    corpus = prepare_corpus(tmp_path, [impersonate(HONEST, CONTAMINATION_COLLISIONS)], dedup="none")
    (measured,) = measure_contamination(corpus, {"test": [HONEST]})
    assert measured.num_ngrams > 50 and measured.num_matched == 0


def test_signatures_depend_on_the_whole_input(tmp_path: Path) -> None:
    keys = []
    for name, texts in (("a", [HONEST, "one"]), ("b", [HONEST, "one"]), ("c", [HONEST, "two"])):
        (tmp_path / name).mkdir()
        keys.append(prepare_corpus(tmp_path / name, texts).manifest["hash_key"])
    assert keys[0] == keys[1] != keys[2]
    signatures = [minhash_signatures([HONEST], bytes.fromhex(key))[1][0] for key in keys]
    assert (signatures[0] == signatures[1]).all() and np.count_nonzero(signatures[0] == signatures[2]) < 10


def test_line_hashes_depend_on_the_key() -> None:
    keys = bytes(16), bytes(15) + b"\x01"
    hashes = [hash_distinct_lines("cookies\nkeep", key) for key in keys]
    assert set(hashes[0].tolist()).isdisjoint(hashes[1].tolist())
    line_hash = hash_distinct_lines("cookies", keys[0])
    config = parse_cleaning_steps("boilerplate=2")
    assert Cleaner(config, line_hash, keys[0]).transform("keep\ncookies") == "keep"
    assert Cleaner(config, line_hash, keys[1]).transform("keep\ncookies") == "keep\ncookies"
