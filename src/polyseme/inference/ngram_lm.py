"""`NgramLM`: a loaded n-gram model."""

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np

from polyseme.corpus.clean.sentences import split_sentences
from polyseme.errors import TextError, UnsupportedError
from polyseme.generation.text import TextGenerator
from polyseme.inference.base import LanguageModel
from polyseme.inference.results import EncodedText, TextScore
from polyseme.io.lines import replace_surrogates
from polyseme.ngram.model import NgramFolder
from polyseme.text.tokenizer import Tokenizer

_TEXTS_PER_BATCH = 4096


class NgramLM(LanguageModel):
    """An n-gram model with its tokenizer. It scores texts and generates them, sentence by sentence."""

    capabilities = ("encode", "score", "generate")

    def __init__(self, folder: NgramFolder):
        super().__init__(folder.path)
        self.folder, self.ngrams = folder, folder.ngrams

    @property
    def tokenizer(self) -> Tokenizer:
        return self.folder.tokenizer

    @property
    def description(self) -> str:
        return f"an n-gram model of order {self.ngrams.order}"

    def _encode(self, text: str, pair: str | None) -> EncodedText:
        if pair is not None:
            raise UnsupportedError(f"{self.path} cannot encode a pair of texts: it is {self.description}")
        ids = self._encode_streams([text])[0].tolist()
        vocab = self.ngrams.vocab
        names = [*self.tokenizer.vocabulary, *["<s>"] * (vocab.size - self.tokenizer.vocab_size)]
        eos_name = self.tokenizer.convert_ids_to_tokens([vocab.eos_id])[0] or "</s>"
        names[vocab.eos_id : vocab.eos_id + 1] = [eos_name]
        return EncodedText([names[i] for i in ids], ids, [0] * len(ids), [1] * len(ids))

    def _score(
        self, texts: Sequence[str], pll_metric: str | None, spans: Sequence[tuple[int, int]] | None
    ) -> list[TextScore]:
        """Texts are split into sentences as a corpus is.

        As in every model, the tokens of the text are counted and the end of the text is not predicted. Ends of
        sentences inside the text are predicted, as part of it.
        """
        self._reject_pll_metric(pll_metric)
        vocab = self.ngrams.vocab
        scores: list[TextScore] = []
        for first in range(0, len(texts), _TEXTS_PER_BATCH):
            batch = texts[first : first + _TEXTS_PER_BATCH]
            if spans is not None:
                scores += self._score_spans(batch, spans[first : first + _TEXTS_PER_BATCH])
                continue
            stream, lengths = self._encode_streams(batch)
            log_probs = np.log(10) * self.ngrams.log10_probs(stream)
            ends = np.cumsum(lengths)
            log_probs[ends - 1] = 0.0  # of the end of a text
            starts = ends - lengths
            token_counts = np.add.reduceat((stream != vocab.bos_id) & (stream != vocab.eos_id), starts, dtype=np.int64)
            sums = np.add.reduceat(log_probs, starts)
            scores += map(TextScore, sums.tolist(), token_counts.tolist(), map(len, batch))
        return scores

    def _score_spans(self, texts: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[TextScore]:
        """Score parts of texts after what precedes them; what follows has no effect."""
        whole = [self._split(text[:end]) for text, (_, end) in zip(texts, spans)]
        # a space belongs to the first token after it
        sizes = [len(text[:start].rstrip()) for text, (start, _) in zip(texts, spans)]
        stream, lengths = self._encode_sentences([*map(_first_characters, whole, sizes), *whole])
        log_probs, vocab = np.log(10) * self.ngrams.log10_probs(stream), self.ngrams.vocab
        is_token = (stream != vocab.bos_id) & (stream != vocab.eos_id)
        starts = np.cumsum(lengths) - lengths
        ends = starts + np.maximum(lengths - 1, 0)  # without the end of the text
        scores: list[TextScore] = []
        for i, (text, (start, end)) in enumerate(zip(texts, spans)):
            context, all_tokens = (slice(starts[row], ends[row]) for row in (i, len(texts) + i))
            part = slice(all_tokens.start + context.stop - context.start, all_tokens.stop)
            is_prefix = np.array_equal(stream[context], stream[all_tokens.start : part.start])
            if not is_prefix or not is_token[part].any():
                raise TextError(f"characters {start} to {end} of the text are no whole tokens: {text!r}", text)
            scores.append(TextScore(float(log_probs[part].sum()), int(is_token[part].sum()), end - start))
        return scores

    @cached_property
    def _text_generator(self) -> TextGenerator:
        tokenizer, eos_ids = self.tokenizer, frozenset([self.ngrams.vocab.eos_id])
        suppressed = tokenizer.all_special_ids - eos_ids
        return TextGenerator(self.path, self.ngrams, tokenizer, tokenizer, self._encode_prompt, eos_ids, suppressed)

    def _encode_prompt(self, text: str) -> list[int]:
        """Encode the sentences of a prompt; the last one stays open."""
        stream, _ = self._encode_streams([text], allow_empty=True)
        return stream[:-1].tolist() or [self.ngrams.vocab.bos_id]

    def _split(self, text: str) -> list[str]:
        return split_sentences(replace_surrogates(text), self.folder.language)

    def _encode_streams(self, texts: Sequence[str], allow_empty: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """All texts as one stream of sentences between their boundary tokens, and the length of each text in it."""
        stream, lengths = self._encode_sentences(list(map(self._split, texts)))
        if not allow_empty and not lengths.all():
            empty = texts[int(np.argmin(lengths))]
            raise TextError(f"the text has no tokens: {empty!r}", empty)
        return stream, lengths

    def _encode_sentences(self, texts: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
        """Encode the sentences of each text, as `_encode_streams` does; those without tokens are left out."""
        encoded = self.tokenizer.encode_corpus([sentence for group in texts for sentence in group])
        is_nonempty = encoded.lengths > 0
        text_index = np.repeat(np.arange(len(texts)), [len(group) for group in texts])[is_nonempty]
        lengths = np.bincount(text_index, encoded.lengths[is_nonempty] + 2, len(texts)).astype(np.int64)
        vocab, unk_id = self.ngrams.vocab, self.tokenizer.special_token_ids.unk
        # the name of a boundary token that is written in a text is an unknown word
        is_boundary = ~vocab.is_predicted[encoded.ids] | (encoded.ids == vocab.eos_id)
        ids = encoded.ids if unk_id is None else np.where(is_boundary, unk_id, encoded.ids)
        return vocab.add_bos_eos(ids, encoded.lengths[is_nonempty]), lengths


def _first_characters(sentences: Sequence[str], size: int) -> list[str]:
    """Return the sentences of the first characters of a text."""
    starts = accumulate(map(len, sentences), initial=0)
    return [sentence[: max(size - start, 0)] for sentence, start in zip(sentences, starts)]
