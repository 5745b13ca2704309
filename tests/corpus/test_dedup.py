"""MinHash signatures against true similarities, duplicates against brute force, and the external sort."""

import random
import unicodedata
from collections import Counter, defaultdict
from functools import cache

import numpy as np
import pytest

from polyseme.corpus.dedup import lsh, minhash
from polyseme.corpus.dedup.external_sort import ExternalSorter
from polyseme.corpus.dedup.lsh import find_duplicates, lsh_bands
from polyseme.corpus.dedup.minhash import SCRIPTS_WITHOUT_SPACES, SHINGLE_WORDS, SIGNATURE_SIZE, minhash_signatures
from polyseme.errors import PolysemeError

PARTS = ("ka", "mo", "ri", "te", "su", "la", "pen", "dor", "gi", "sta", "vu", "ne")
WORDS = [a + b + c for a in PARTS for b in PARTS for c in PARTS]
LARGE = 64 << 20


def random_words(rng, num_words):
    """Draw words, few of them frequent and many rare, as in text."""
    return [WORDS[int(len(WORDS) * rng.random() ** 3)] for _ in range(num_words)]


def edit_words(rng, words, rate):
    """Replace, delete and insert words at random."""
    edited = []
    for word in words:
        if rng.random() < rate:
            edited += rng.choice([[], [rng.choice(WORDS)], [word, rng.choice(WORDS)]])
        else:
            edited.append(word)
    return edited


def find_in_texts(texts, path, threshold=0.8, memory=LARGE, include=None, use_signatures=True, **options):
    exact, signatures = minhash_signatures(texts)
    include = np.ones(len(texts), dtype=bool) if include is None else include
    duplicate_of, is_exact = find_duplicates(
        [exact], [signatures] if use_signatures else None, include, threshold, path, memory, **options
    )
    assert not list(path.iterdir())
    assert duplicate_of.shape == is_exact.shape == (len(texts),) and is_exact.dtype == bool
    return duplicate_of, is_exact


@cache
def fold_char(char):
    """Return a character case-folded (empty if it is not part of words), and whether it is a word by itself."""
    if not char.isalnum() and unicodedata.category(char)[0] != "M":
        return "", False
    is_single = any(low <= ord(char) <= high for low, high in SCRIPTS_WITHOUT_SPACES)
    return next((variant for variant in (char.casefold(), char.lower()) if len(variant) == 1), char), is_single


def split_words(text):
    """Return the case-folded words of a text that form its shingles."""
    words = [""]
    for char in text:
        folded, is_single = fold_char(char)
        if is_single or not folded:
            words += [folded, ""]
        else:
            words[-1] += folded
    return [word for word in words if word]


@cache
def shingles_of(text):
    words = split_words(text)
    return {tuple(words[i : i + SHINGLE_WORDS]) for i in range(max(len(words) - SHINGLE_WORDS + 1, min(len(words), 1)))}


def jaccard_similarity(a, b):
    """Compute the Jaccard similarity of the shingles of two texts, which signatures estimate."""
    shared, union = shingles_of(a) & shingles_of(b), shingles_of(a) | shingles_of(b)
    return len(shared) / len(union) if shingles_of(a) and shingles_of(b) else 0.0


def brute_force(texts, threshold):
    """Compare each document with every original that shares a shingle with it."""
    shingles = [shingles_of(text) for text in texts]
    documents_by_shingle, duplicate_of = defaultdict(list), []
    for number, document_shingles in enumerate(shingles):
        num_shared = Counter(other for shingle in document_shingles for other in documents_by_shingle[shingle])
        similar = [i for i, n in num_shared.items() if n / (len(document_shingles) + len(shingles[i]) - n) >= threshold]
        duplicate_of.append(min(similar, default=-1))
        if not similar:
            for shingle in document_shingles:
                documents_by_shingle[shingle].append(number)
    return np.array(duplicate_of)


@cache
def near_copies(seed, num_documents):
    """Documents of 40 to 800 words; about half are edited copies of earlier ones. Also returns their similarities."""
    rng = random.Random(seed)
    documents, similar = [], []
    while len(documents) < num_documents:
        if not documents or rng.random() < 0.5:
            documents.append(random_words(rng, int(40 * 20 ** rng.random())))
        else:
            source = rng.choice(documents[-200:])
            copy = edit_words(rng, source, 0.001 * 100 ** rng.random())
            if rng.random() < 0.2:
                copy += random_words(rng, 8)  # a footer
            documents.append(copy)
            similar.append(jaccard_similarity(" ".join(source), " ".join(copy)))
    return tuple(" ".join(words) for words in documents), np.array(similar)


# ------------------------------------------------------------------------------------------------ signatures


@pytest.mark.parametrize("num_words", [6, 12, 30, 100, 400, 1500])
def test_signatures_estimate_similarity_without_bias(num_words):
    rng = random.Random(num_words)
    pairs = []
    for _ in range(300 if num_words < 1000 else 60):
        first = random_words(rng, num_words)
        pairs += [" ".join(first), " ".join(edit_words(rng, first, rng.choice([0.01, 0.03, 0.1, 0.2])))]
    _, signatures = minhash_signatures(pairs)
    estimates = (signatures[::2] == signatures[1::2]).mean(axis=1)
    truth = np.array([jaccard_similarity(a, b) for a, b in zip(pairs[::2], pairs[1::2])])
    errors = estimates - truth
    assert truth.std() > 0.1
    assert abs(errors.mean()) < 4 * errors.std() / len(errors) ** 0.5
    inside = (truth > 0.1) & (truth < 0.9)
    spread = (errors / np.sqrt(truth * (1 - truth) / SIGNATURE_SIZE + 1e-12))[inside].std()
    assert spread < (1.15 if num_words >= 100 else 3)  # few shingles fill few bins, whose copies have the same error


def test_signature_depends_on_its_text_alone():
    rng = random.Random(0)
    texts = [" ".join(random_words(rng, rng.choice([0, 1, 4, 5, 6, 50, 900]))) for _ in range(300)]
    texts[7] = " ".join(random_words(rng, 60_000))
    assert len(texts[7]) > 2 * minhash.BATCH_CHARS
    exact, signatures = minhash_signatures(texts)
    for number in (0, 1, 6, 7, 8, 150, 299):
        alone = minhash_signatures([texts[number]])
        assert (alone[0][0] == exact[number]).all() and (alone[1][0] == signatures[number]).all()
    cut = minhash_signatures([texts[7][: len(texts[7]) // 2]])[1][0]
    assert 0.35 < (cut == signatures[7]).mean() < 0.65


def test_empty_bins_copy_from_the_first_full_bin_in_their_order():
    rng = np.random.default_rng(0)
    full = rng.random((200, SIGNATURE_SIZE)) < 2.0 ** rng.uniform(-8, 0, (200, 1))
    least = np.where(full, rng.integers(0, 2**62, (200, SIGNATURE_SIZE), dtype=np.uint64), minhash._EMPTY_BIN)
    donors, _ = minhash._densification_order()
    expected = [
        [row[next((i for i in (bin, *donors[bin]) if there[i]), bin)] for bin in range(SIGNATURE_SIZE)]
        for row, there in zip(least, full)
    ]
    minhash._densify_signatures(least)
    assert (least == np.array(expected)).all() and len(set(full.sum(axis=1))) > 30


def test_case_and_punctuation_are_ignored():
    a, b = "Ach, wie gut, daß niemand weiß: ΣΟΦΌΣ!", "ACH WIE GUT DAß -- NIEMAND WEIß (σοφός)"
    exact, signatures = minhash_signatures([a, b])
    assert (signatures[0] == signatures[1]).all() and jaccard_similarity(a, b) == 1
    assert (exact[0] != exact[1]).any()


def test_words_of_every_script():
    assert split_words("Über 3 Äpfel. e\u0301te\u0301!") == ["über", "3", "äpfel", "e\u0301te\u0301"]
    assert split_words("हिन्दी भाषा, 漢字かな ไทย 한국어 🙂!") == ["हिन्दी", "भाषा", *"漢字かなไทย", "한국어"]
    assert split_words("a漢b") == ["a", "漢", "b"]


def test_code_point_table_equals_fold_char():
    table = minhash._code_point_table()
    for code in (*range(0x3000), *range(0x3000, 0x110000, 7), *range(0xD700, 0xE000), *range(0xE0100, 0xE01F0)):
        folded, alone = fold_char(chr(code))
        assert table[code] == (ord(folded) | (alone << 31) if folded else 0), hex(code)


def test_word_hashes_are_equal_for_equal_words():
    rng = random.Random(1)
    signs = "abcAB ,.-é\u0301ßक\u093fท漢🙂\u200d\u200f\ud800\n"
    for _ in range(50):
        text = "".join(rng.choice(signs) for _ in range(300))
        hashes, _ = minhash._hash_words(text, b"")
        words = split_words(text)
        assert len(hashes) == len(words) > len(set(words))
        assert len(set(zip(words, hashes.tolist()))) == len(set(words)) == len(set(hashes.tolist()))


# ------------------------------------------------------------------------------------------------ duplicates


def test_bands_reach_the_minimum_recall_at_the_threshold():
    assert lsh_bands(0.8) == (21, 6)
    assert lsh_bands(1.0) == (1, SIGNATURE_SIZE)
    for threshold in (0.1, 0.3, 0.5, 0.7, 0.9):
        number, rows = lsh_bands(threshold)
        assert number * rows <= SIGNATURE_SIZE and 1 - (1 - threshold**rows) ** number >= 0.99
        assert 1 - (1 - threshold ** (rows + 1)) ** (SIGNATURE_SIZE // (rows + 1)) < 0.99
    with pytest.raises(PolysemeError, match=r"1\.5"):
        lsh_bands(1.5)


@pytest.mark.parametrize("threshold", [pytest.param(0.6, marks=pytest.mark.slow), 0.8])
def test_recall_and_precision_against_brute_force(tmp_path, threshold):
    texts, similar = near_copies(3, 2000)
    assert ((similar > 0.4) & (similar < 0.95)).mean() > 0.4 and (similar == 1).mean() < 0.3
    truth = brute_force(texts, threshold)
    duplicate_of, is_exact = find_in_texts(texts, tmp_path, threshold)
    num_common = ((truth >= 0) & (duplicate_of >= 0)).sum()
    recall, precision = num_common / (truth >= 0).sum(), num_common / (duplicate_of >= 0).sum()
    print(f"threshold {threshold}: {(truth >= 0).sum()} removed, recall {recall:.3f}, precision {precision:.3f}")
    assert (truth >= 0).sum() > 300
    assert recall >= 0.95 and precision >= 0.95
    # Errors are within three standard errors of the threshold.
    margin = 3 * (threshold * (1 - threshold) / SIGNATURE_SIZE) ** 0.5
    originals = [text for text, other in zip(texts, duplicate_of) if other < 0]
    assert (brute_force(originals, threshold + margin) >= 0).sum() <= 0.01 * (duplicate_of >= 0).sum()
    for later in np.flatnonzero(duplicate_of >= 0):
        assert jaccard_similarity(texts[duplicate_of[later]], texts[later]) >= threshold - 2 * margin
        assert is_exact[later] == (texts[duplicate_of[later]] == texts[later])


def test_duplicates_equal_brute_force_on_the_signatures(tmp_path):
    texts, _ = near_copies(3, 2000)
    _, signatures = minhash_signatures(texts)
    duplicate_of, _ = find_in_texts(texts, tmp_path)
    expected, originals = np.full(len(texts), -1), []
    for number in range(len(texts)):
        similar = (signatures[originals] == signatures[number]).mean(axis=1) >= 0.8 if originals else np.zeros(0, bool)
        if similar.any():
            expected[number] = originals[int(similar.argmax())]
        else:
            originals.append(number)
    assert (duplicate_of != expected).sum() <= 0.01 * (expected >= 0).sum()  # pairs at the threshold that share no band


def test_output_does_not_depend_on_memory_and_parts(tmp_path):
    texts = list(near_copies(5, 1200)[0])
    texts += [" ".join(random_words(random.Random(5), 90))] * 400
    texts += [" ".join(edit_words(random.Random(i), texts[5].split(), 0.004)) for i in range(400)]
    exact, signatures = minhash_signatures(texts)
    include = np.random.default_rng(0).random(len(texts)) < 0.9
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "bands.runs").write_bytes(b"left by a killed job")
    outputs = []
    for memory, cuts in ((LARGE, []), (LARGE, [0, 1, 700, 700]), (1 << 16, [5]), (1 << 10, [300, 900])):
        parts = []
        for name, array in (("exact", exact), ("signatures", signatures)):
            for number, part in enumerate(np.split(array, cuts)):
                np.save(tmp_path / f"{name}{number}.npy", part)
            files = [tmp_path / f"{name}{number}.npy" for number in range(len(cuts) + 1)]
            parts.append([np.load(file, mmap_mode="r" if len(np.load(file)) else None) for file in files])
        progress = []
        outputs.append(find_duplicates(*parts, include, 0.8, tmp_path / "work", memory, progress.append))
        assert sum(progress) == pytest.approx(len(texts)) and min(progress) >= 0
    assert not list((tmp_path / "work").iterdir())
    for duplicate_of, is_exact in outputs[1:]:
        assert (duplicate_of == outputs[0][0]).all() and (is_exact == outputs[0][1]).all()
    duplicate_of, is_exact = outputs[0]
    assert (duplicate_of >= 0).sum() > 800 and is_exact.sum() > 300
    assert (duplicate_of[~include] == -1).all() and include[duplicate_of[duplicate_of >= 0]].all()
    assert (duplicate_of[duplicate_of[duplicate_of >= 0]] == -1).all()  # originals are not duplicates
    assert (duplicate_of < np.arange(len(texts))).all()


@pytest.mark.parametrize("memory", [LARGE, 1 << 10])
def test_exact_duplicates(tmp_path, memory):
    rng = random.Random(6)
    texts = [rng.choice(["", "a", "b c", " ", "same", f"text {rng.randrange(500)}"]) for _ in range(3000)]
    include = np.array([rng.random() < 0.8 for _ in texts])
    duplicate_of, is_exact = find_in_texts(texts, tmp_path, memory=memory, include=include, use_signatures=False)
    first = {}
    for number, text in enumerate(texts):
        expected = first.setdefault(text, number) if include[number] else number
        assert duplicate_of[number] == (expected if expected != number else -1)
    assert (is_exact == (duplicate_of >= 0)).all()


def test_half_equal_hashes_are_not_duplicates(tmp_path):
    exact = np.array([[7, 1], [7, 2], [7, 1], [7 + 2**10, 1], [7, 2]], dtype=np.uint64)
    duplicate_of, _ = find_duplicates([exact], None, np.ones(5, dtype=bool), 0.8, tmp_path)
    assert duplicate_of.tolist() == [-1, -1, 0, -1, 1]


def test_chains_of_near_duplicates_are_resolved(tmp_path):
    a = random_words(random.Random(7), 400)
    b = [f"changed{i}" for i in range(28)] + a[28:]
    c = [f"changed{i}" for i in range(56)] + a[56:]
    other = random_words(random.Random(8), 400)
    chain = [" ".join(words) for words in (other, a, b, c, b, c)]
    duplicate_of, is_exact = find_in_texts(chain, tmp_path)
    assert (
        jaccard_similarity(chain[1], chain[2]) > 0.85 < jaccard_similarity(chain[2], chain[3])
        and jaccard_similarity(chain[1], chain[3]) < 0.76
    )
    assert duplicate_of.tolist() == [-1, -1, 1, -1, 1, 3]
    assert is_exact.tolist() == [False, False, False, False, False, True]


def test_the_first_of_two_similar_originals_is_reported(tmp_path):
    a = random_words(random.Random(9), 400)
    left, right = [f"left{i}" for i in range(30)] + a[30:], a[:-30] + [f"right{i}" for i in range(30)]
    duplicate_of, _ = find_in_texts([" ".join(words) for words in (left, right, a, right)], tmp_path)
    assert duplicate_of.tolist() == [-1, -1, 0, 1]


@pytest.mark.parametrize("rate, removed", [(0.004, True), (0.05, False)])
def test_large_cluster_needs_no_quadratic_number_of_comparisons(tmp_path, monkeypatch, rate, removed):
    """Copies of one template, similar to each other above the threshold or, which is worse, just below it."""
    rng = random.Random(10)
    template = random_words(rng, 120)
    texts = [" ".join(edit_words(rng, template, rate)) for _ in range(5000)]
    compared = []
    real_is_similar = lsh.is_similar
    monkeypatch.setattr(lsh, "is_similar", lambda *a: compared.append(len(a[1])) or real_is_similar(*a))
    duplicate_of, _ = find_in_texts(texts, tmp_path, memory=1 << 20)
    assert ((duplicate_of >= 0).mean() > 0.95) == removed
    bound = len(texts) * (lsh.NUM_BUCKET_FIRST + lsh.NUM_BUCKET_PREVIOUS) * (1 if removed else lsh_bands(0.8)[0])
    assert 0 < sum(compared) <= bound < len(texts) ** 2 / 4


@pytest.mark.parametrize("memory", [LARGE, 0])
def test_candidate_pairs_of_a_bucket(tmp_path, memory):
    """The first 16 and the 4 before, each pair once, also if a bucket extends over several chunks."""
    rng = np.random.default_rng(0)
    total = 1000
    keys = rng.choice([1, 2, 3, 500, *range(10_000, 10_400)], total, p=[0.4, 0.2, 0.05, 0.05, *[0.3 / 400] * 400])
    keys = keys.astype(np.uint64) << np.uint64(40)
    with ExternalSorter(tmp_path / "runs", memory) as records:
        records.add(rng.permutation(lsh._pack_records(keys, 0, total)))
        pairs = np.concatenate(list(lsh._candidate_pairs(records, total, lambda amount: None))).tolist()
    expected = set()
    for key in set(keys.tolist()):
        bucket = np.flatnonzero(keys == np.uint64(key)).tolist()
        for place, later in enumerate(bucket):
            expected |= {
                later << 32 | document for document in (*bucket[: min(16, place)], *bucket[max(place - 4, 0) : place])
            }
    assert sorted(pairs) == sorted(expected) and len(expected) > 5000


@pytest.mark.parametrize(
    "letters, word_length",
    [
        ([chr(c) for c in range(0x4E00, 0x5200)], 1),
        (["क", "कि", "खा", "गे", "ची", "न्द", "मु", "लो"], 4),
        ([chr(c) for c in (*range(0x0E01, 0x0E2F), 0x0E31, 0x0E34, 0x0E48)], 9),
        (["ش", "ب", "ت", "ر", "م", "\u200cها"], 5),
    ],
)
def test_near_duplicates_in_other_scripts(tmp_path, letters, word_length):
    rng = random.Random(11)

    def words(n):
        return ["".join(rng.choice(letters) for _ in range(word_length)) for _ in range(n)]

    separator = "" if word_length in (1, 9) else " "
    documents = [words(300) for _ in range(40)]
    is_exact = [
        [rng.choice(words(3)) if rng.random() < 0.005 else document_word for document_word in document]
        for document in documents
    ]
    duplicate_of, _ = find_in_texts([separator.join(document) for document in (*documents, *is_exact)], tmp_path)
    assert duplicate_of.tolist() == [-1] * 40 + list(range(40))


def test_tiny_documents(tmp_path):
    texts = ["", "🙂", "🙂 🙂", "...", "one", "One!", "one two", "one, two", "one two three", "", "…"]
    duplicate_of, is_exact = find_in_texts(texts, tmp_path)
    assert duplicate_of.tolist() == [-1, -1, -1, -1, -1, 4, -1, 6, -1, 0, -1]
    assert is_exact.tolist() == [False] * 9 + [True, False]
    assert find_in_texts([], tmp_path)[0].tolist() == []
    assert find_in_texts(["", "."], tmp_path)[0].tolist() == [-1, -1]


def test_tiny_documents_are_told_apart(tmp_path):
    """16 bits would distinguish only 65,536 documents of one shingle."""
    duplicate_of, _ = find_in_texts([f"document {number}" for number in range(20_000)], tmp_path)
    assert (duplicate_of == -1).all()


def test_parts_of_different_lengths_are_refused(tmp_path):
    exact, signatures = minhash_signatures(["a", "b"])
    with pytest.raises(ValueError, match="differ in length"):
        find_duplicates([exact], [signatures], np.ones(3, dtype=bool), 0.8, tmp_path)


# ------------------------------------------------------------------------------------------- external sort


@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("memory, sizes", [(LARGE, [9, 0, 5000]), (1 << 13, [3000, 1, 7000]), (0, [100] * 60), (0, [])])
def test_external_sorter_returns_everything_sorted(tmp_path, unique, memory, sizes):
    rng = np.random.default_rng(0)
    for top in (20, 2**63):
        values = [rng.integers(0, top, size, dtype=np.uint64) for size in sizes]
        with ExternalSorter(tmp_path / "new" / "runs", memory, unique) as runs:
            for part in values:
                runs.add(part)
            assert runs.num_added == sum(sizes)
            values_sorted = np.concatenate([np.empty(0, np.uint64), *runs.sorted_chunks()])
        expected = np.sort(np.concatenate([np.empty(0, np.uint64), *values]))
        assert (values_sorted == (np.unique(expected) if unique else expected)).all()
        assert not (tmp_path / "new" / "runs").exists()
