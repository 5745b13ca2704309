"""Exact and near-duplicate detection by locality-sensitive hashing (LSH), with sorted tables on disk.

Documents are processed in input order: a document is a duplicate if it equals an earlier document that is not a
duplicate itself, or if their estimated similarity reaches the threshold. The output depends on the input alone.

Only documents that agree in all rows of at least one band of their signatures, and so share a bucket, are compared
(Indyk and Motwani 1998). In a large bucket, as templates cause, a document is compared only with the first 16 and the
4 before it; other pairs are missed.
"""

import mmap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from polyseme.corpus.dedup.external_sort import ExternalSorter
from polyseme.corpus.dedup.minhash import SIGNATURE_SIZE
from polyseme.errors import ConfigError, DataError
from polyseme.rng import GOLDEN_GAMMA, splitmix64

NUM_BUCKET_FIRST, NUM_BUCKET_PREVIOUS = 16, 4  # documents of a bucket that each is compared with
MIN_RECALL = 0.99
_PAIRS_PER_BATCH = 1024  # each pair may page in two rows of the signatures and their neighbors
ProgressFn = Callable[[float], None]


def lsh_bands(threshold: float, signature_size: int = SIGNATURE_SIZE) -> tuple[int, int]:
    """Return the number of bands and of rows per band: the most rows that find 99% of the pairs at the threshold."""
    if not 0 < threshold <= 1:
        raise ConfigError(f"the near-duplicate threshold is {threshold}; it must be greater than 0 and at most 1")

    def recall(rows: int) -> float:
        return 1 - (1 - threshold**rows) ** (signature_size // rows)

    rows = max((rows for rows in range(1, signature_size + 1) if recall(rows) >= MIN_RECALL), default=1)
    return signature_size // rows, rows


def find_duplicates(
    exact_hashes: Sequence[np.ndarray],
    signatures: Sequence[np.ndarray] | None,
    include: np.ndarray,
    threshold: float,
    work_dir: Path,
    memory_bytes: int = 64 << 20,
    advance: ProgressFn = lambda amount: None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return for each document the index of the document it repeats (-1 if none), and whether it is an exact copy.

    `exact_hashes` and `signatures` are outputs of `minhash_signatures`, in parts, preferably memory-mapped; documents
    are indexed across the parts. Documents where `include` is False are ignored. Without `signatures` only exact
    copies are found. `advance` is called with numbers of documents that sum to all. Uses about `memory_bytes` bytes of
    memory besides the output, and in `work_dir` 8 bytes per document and band, plus the pairs.
    """
    bands = lsh_bands(threshold)
    if sum(map(len, exact_hashes)) != len(include) or (signatures and sum(map(len, signatures)) != len(include)):
        raise ValueError("exact_hashes, signatures and include differ in length")
    if len(include) > 1 << 32:
        raise DataError(f"{len(include)} documents exceed the limit of 2^32: prepare several corpora")
    share = 1 if signatures is None else 0.25  # of the progress
    with ExternalSorter(work_dir / "copies.runs", memory_bytes // 2) as records:
        table = StackedArray(exact_hashes)
        for first, rows in table.iter_slices(max(memory_bytes // 256, 64)):
            records.add(_pack_records(rows[:, 0], first, len(table))[include[first : first + len(rows)]])
            advance(share * len(rows))
        duplicate_of = _find_exact_duplicates(records, table)
    is_exact = duplicate_of >= 0
    if signatures is not None:
        table = StackedArray(signatures)
        with ExternalSorter(work_dir / "pairs.runs", memory_bytes // 2, unique=True) as pairs:
            with ExternalSorter(work_dir / "bands.runs", memory_bytes // 2) as records:
                for first, rows in table.iter_slices(max(memory_bytes // (bands[0] * 64), 16)):
                    documents = slice(first, first + len(rows))
                    mask = include[documents] & ~is_exact[documents] & (rows[:, 0] != 0)  # 0: without words
                    records.add(_pack_records(_band_keys(rows, *bands), first, len(table))[mask].ravel())
                    advance(0.25 * len(rows))
                for pair in _candidate_pairs(records, len(include), advance):
                    pairs.add(pair)
            _mark_near_duplicates(pairs, table, threshold * SIGNATURE_SIZE, duplicate_of, advance)
        _resolve_chains(duplicate_of, is_exact)
    return duplicate_of, is_exact


class StackedArray:
    """Several arrays indexed as if concatenated along the first axis."""

    def __init__(self, parts: Sequence[np.ndarray]):
        self.parts = [part for part in parts if len(part)]
        self.part_starts = np.cumsum([0, *map(len, self.parts)])

    def __len__(self) -> int:
        return int(self.part_starts[-1])

    def iter_slices(self, length: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield slices of at most `length` rows, each with the index of its first row."""
        for part_start, part in zip(self.part_starts.tolist(), self.parts):
            for low in range(0, len(part), length):
                yield part_start + low, part[low : low + length]
                self.release_pages()

    def take_rows(self, indices: np.ndarray) -> np.ndarray:
        """Return the rows with these indices."""
        part_ids = np.searchsorted(self.part_starts, indices, side="right") - 1
        if len(indices) and (part_ids == part_ids[0]).all():
            return np.asarray(self.parts[part_ids[0]][indices - self.part_starts[part_ids[0]]])
        rows = np.empty((len(indices), *self.parts[0].shape[1:]), dtype=self.parts[0].dtype)
        for part in np.unique(part_ids):
            in_part = part_ids == part
            rows[in_part] = self.parts[part][indices[in_part] - self.part_starts[part]]
        return rows

    def release_pages(self) -> None:
        """Release the mapped pages that were read. The page cache still holds them."""
        for part in self.parts:
            if isinstance(part, np.memmap) and part.mode == "r" and hasattr(mmap, "MADV_DONTNEED"):
                part._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


def _pack_records(keys: np.ndarray, first_document: int, num_documents: int) -> np.ndarray:
    """Put document indices, from `first_document` on, into the low bits of keys, so that sorting groups and orders."""
    bits = _document_bits(num_documents)
    numbers = np.arange(first_document, first_document + len(keys), dtype=np.uint64)
    return (keys >> bits << bits) | numbers.reshape(-1, *[1] * (keys.ndim - 1))


def _document_bits(num_documents: int) -> np.uint64:
    return np.uint64(max(num_documents - 1, 1).bit_length())


def _iter_buckets(
    records: ExternalSorter, num_documents: int, select_carried: Callable[[np.ndarray], np.ndarray]
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Yield documents sorted by key, the position of the start of each one's bucket, and the number of repeated ones.

    A bucket may extend over several chunks: those of its documents that `select_carried` selects are repeated at the
    start of the next one.
    """
    bits = _document_bits(num_documents)
    carried = np.empty(0, dtype=np.uint64)
    for chunk in records.sorted_chunks():
        if not len(chunk):
            continue
        num_carried = len(carried)
        chunk = np.concatenate([carried, chunk])
        keys = chunk >> bits
        starts_bucket = np.append(True, keys[1:] != keys[:-1])
        documents = (chunk & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)
        yield documents, np.maximum.accumulate(np.where(starts_bucket, np.arange(len(chunk)), 0)), num_carried
        last_bucket = int(np.flatnonzero(starts_bucket)[-1])
        carried = chunk[last_bucket:][select_carried(documents[last_bucket:])]


def _find_exact_duplicates(records: ExternalSorter, table: StackedArray) -> np.ndarray:
    """Return for each document the first with the same hash, -1 if it is that itself."""
    duplicate_of = np.full(len(table), -1, dtype=np.int64)

    def is_original(documents: np.ndarray) -> np.ndarray:
        return duplicate_of[documents] < 0

    for documents, bucket_starts, _ in _iter_buckets(records, len(table), is_original):
        in_shared_bucket = np.append(bucket_starts[1:] == bucket_starts[:-1], False)
        in_shared_bucket[1:] |= in_shared_bucket[:-1]  # all documents of buckets with two or more
        members = documents[in_shared_bucket]
        if not len(members):
            continue
        rows = table.take_rows(members)
        order = np.lexsort((members, rows[:, 1], rows[:, 0]))
        members, rows = members[order], rows[order]
        starts_group = np.append(True, (rows[1:] != rows[:-1]).any(axis=1))
        originals = members[np.maximum.accumulate(np.where(starts_group, np.arange(len(starts_group)), 0))]
        duplicate_of[members[~starts_group]] = originals[~starts_group]
        table.release_pages()
    return duplicate_of


def _band_keys(signatures: np.ndarray, num_bands: int, rows_per_band: int) -> np.ndarray:
    """Return a hash of each band of each signature, uint64 [n, num_bands]."""
    positions = np.arange(num_bands * rows_per_band, dtype=np.uint64).reshape(num_bands, rows_per_band)
    factors = splitmix64((positions + np.uint64(1)) * GOLDEN_GAMMA) | np.uint64(1)
    values = np.asarray(signatures)[:, : num_bands * rows_per_band].reshape(len(signatures), num_bands, rows_per_band)
    keys = np.zeros((len(signatures), num_bands), dtype=np.uint64)
    for row in range(rows_per_band):
        keys += values[:, :, row] * factors[:, row]
    return splitmix64(keys)


def _select_comparison_partners(documents: np.ndarray) -> np.ndarray:
    """Return which documents of a bucket later ones are compared with."""
    positions = np.arange(len(documents))
    return (positions < NUM_BUCKET_FIRST) | (positions >= len(documents) - NUM_BUCKET_PREVIOUS)


def _candidate_pairs(records: ExternalSorter, num_documents: int, advance: ProgressFn) -> Iterator[np.ndarray]:
    """Yield pairs of documents in one bucket as later · 2^32 + earlier. A pair may occur once per band."""
    for documents, bucket_starts, num_carried in _iter_buckets(records, num_documents, _select_comparison_partners):
        later = np.flatnonzero(bucket_starts < np.arange(len(bucket_starts)))
        later = later[later >= num_carried]
        first = bucket_starts[later]
        ranks = later - first
        for rank in range(min(NUM_BUCKET_FIRST, int(ranks.max(initial=0)))):
            mask = ranks > rank
            yield _encode_pair(documents[first[mask] + rank], documents[later[mask]])
        for distance in range(1, NUM_BUCKET_PREVIOUS + 1):
            mask = ranks - distance >= NUM_BUCKET_FIRST
            yield _encode_pair(documents[later[mask] - distance], documents[later[mask]])
        advance(0.25 * num_documents * (len(documents) - num_carried) / records.num_added)
    if not records.num_added:
        advance(0.25 * num_documents)


def _encode_pair(earlier: np.ndarray, later: np.ndarray) -> np.ndarray:
    return (later.astype(np.uint64) << np.uint64(32)) | earlier.astype(np.uint64)


def is_similar(table: StackedArray, earlier: np.ndarray, later: np.ndarray, min_matches: float) -> np.ndarray:
    """Return which pairs have at least `min_matches` equal numbers in their signatures."""
    return np.count_nonzero(table.take_rows(earlier) == table.take_rows(later), axis=1) >= min_matches


def _mark_near_duplicates(
    pairs: ExternalSorter, table: StackedArray, min_matches: float, duplicate_of: np.ndarray, advance: ProgressFn
) -> None:
    """Mark each document, in order, as a duplicate of the first similar one that is not a duplicate itself."""
    progress_done = 0.0
    for chunk in pairs.sorted_chunks():
        for low in range(0, len(chunk), _PAIRS_PER_BATCH):
            part = chunk[low : low + _PAIRS_PER_BATCH]
            later = (part >> np.uint64(32)).astype(np.int64)
            earlier = (part & np.uint64(0xFFFFFFFF)).astype(np.int64)
            undecided = (duplicate_of[later] < 0) & (duplicate_of[earlier] < 0)  # about one pair per document
            later, earlier = later[undecided], earlier[undecided]
            similar = is_similar(table, earlier, later, min_matches)
            for original, document in zip(earlier[similar].tolist(), later[similar].tolist()):
                if duplicate_of[original] < 0 and duplicate_of[document] < 0:
                    duplicate_of[document] = original
            table.release_pages()
        if len(chunk):
            progress_reached = 0.25 * int(chunk[-1] >> np.uint64(32))
            advance(progress_reached - progress_done)
            progress_done = progress_reached
    advance(0.25 * len(duplicate_of) - progress_done)


def _resolve_chains(duplicate_of: np.ndarray, is_exact: np.ndarray) -> None:
    """Let exact copies of a near duplicate point to its original, as near duplicates."""
    for low in range(0, len(duplicate_of), 1 << 16):
        part = slice(low, low + (1 << 16))
        originals = np.where(is_exact[part], duplicate_of[duplicate_of[part]], -1)
        is_exact[part] &= originals < 0
        duplicate_of[part] = np.where(originals >= 0, originals, duplicate_of[part])
