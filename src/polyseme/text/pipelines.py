"""Tokenizer pipelines of each kind: normalizer, pre-tokenizer, model, post-processor and decoder."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from polyseme.corpus.sources.midi import EVENTS, SPECIAL_TOKENS

TokenizerKind = Literal[
    "wordpiece", "bpe", "byte-bpe-roberta", "unigram", "unigram-roberta", "characters", "words", "whitespace"
]
TOKENIZER_KINDS: tuple[str, ...] = get_args(TokenizerKind)
BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ALBERT_SPECIALS = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # in RoBERTa's order: its position ids start after pad
UNIGRAM_SPECIALS = {"unigram": ALBERT_SPECIALS, "unigram-roberta": ROBERTA_SPECIALS}
T5_SPECIALS = ("<pad>", "</s>", "<unk>")  # in T5's order
WORD_SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
END_OF_TEXT = "<|endoftext|>"
# Usual names of each special role, for folders that do not name it; the first one in the vocabulary is used.
DEFAULT_SPECIAL_TOKENS = {
    "pad": ("[PAD]", "<pad>", END_OF_TEXT),
    "unk": ("[UNK]", "<unk>", END_OF_TEXT),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>"),
    "bos": ("<s>", END_OF_TEXT),
    "eos": ("</s>", END_OF_TEXT),
}
SENTINEL_TEMPLATE = "<extra_id_{}>"  # replaces the n-th removed span of a text
CONTINUATION_PREFIX = "##"  # marks a piece that continues a word
METASPACE = "▁"  # a space in sentencepiece vocabularies
END_OF_WORD_SUFFIX = "</w>"  # ends the last piece of a word in GPT's vocabulary


def build_pipeline(
    model: Any, pre_tokenizer: Any, specials: Iterable[str], normalizer: Any = None, decoder: Any = None
) -> Tokenizer:
    """Build a tokenizer from its parts, without a post-processor."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if decoder is not None:
        tokenizer.decoder = decoder
    add_special_tokens(tokenizer, specials)
    return tokenizer


def build_wordpiece(vocab: dict[str, int], lowercase: bool) -> Tokenizer:
    """Build BERT's tokenizer for a vocabulary: its normalizer, split at punctuation and pair template."""
    model = models.WordPiece(vocab, unk_token="[UNK]", continuing_subword_prefix=CONTINUATION_PREFIX)
    splitter, decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(prefix=CONTINUATION_PREFIX)
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    return set_pair_template(build_pipeline(model, splitter, BERT_SPECIALS, normalizer, decoder))


def build_bpe(
    vocab: dict[str, int], merges: Sequence[tuple[str, str]], lowercase: bool, specials: Sequence[str] = (END_OF_TEXT,)
) -> Tokenizer:
    """Build GPT-2's byte-level BPE tokenizer, in which a space is part of the word after it.

    With RoBERTa's special tokens it is RoBERTa's tokenizer, whose mask token absorbs the space before it because the
    masked word would contain that space.
    """
    model, splitter = models.BPE(vocab, list(merges)), pre_tokenizers.ByteLevel(add_prefix_space=False)
    normalizer = normalizers.Lowercase() if lowercase else None
    tokenizer = build_pipeline(model, splitter, specials, normalizer, decoders.ByteLevel())
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    if {"<s>", "</s>", "<mask>"} <= set(specials):
        sep, cls = ((token, tokenizer.get_vocab()[token]) for token in ("</s>", "<s>"))
        tokenizer.post_processor = processors.RobertaProcessing(sep, cls, trim_offsets=False, add_prefix_space=False)
    return tokenizer


def build_unigram(
    pieces: Sequence[tuple[str, float]], lowercase: bool, specials: Sequence[str] = ALBERT_SPECIALS
) -> Tokenizer:
    """Build a unigram tokenizer from pieces with log probabilities, with ALBERT's, XLM-RoBERTa's or T5's template.

    Normalization is NFKC and one space for any run of white space. Joiners and direction marks are kept.
    """
    vocab = [*((token, 0.0) for token in specials), *pieces]
    model = models.Unigram(vocab, specials.index("<unk>"), False)
    steps = [normalizers.NFKC(), *([normalizers.Lowercase()] if lowercase else [])]
    steps += [normalizers.Replace(Regex(r"\A\s+|\s+\z"), ""), normalizers.Replace(Regex(r"\s+"), " ")]
    splitter = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), split_special_tokens(specials)])
    tokenizer = build_pipeline(model, splitter, specials, normalizers.Sequence(steps), decoders.Metaspace())
    if "[CLS]" in specials:
        return set_pair_template(tokenizer)
    return set_roberta_template(tokenizer) if "<s>" in specials else set_eos_template(tokenizer)


def build_characters(alphabet: Sequence[str], lowercase: bool) -> Tokenizer:
    """Build a tokenizer with one token per character (including the space) and BERT's special tokens.

    It is a BPE model without merges, which splits a word into characters while the pre-tokenizer still marks word
    starts. Normalization is NFC. A Chinese character is a word by itself, as in BERT.
    """
    vocab = {token: i for i, token in enumerate([*BERT_SPECIALS, *alphabet])}
    model = models.BPE(vocab, [], unk_token="[UNK]")
    normalizer: Any = normalizers.NFC()
    if lowercase:
        normalizer = normalizers.Sequence([normalizer, normalizers.Lowercase()])
    splitter = pre_tokenizers.Split(Regex(r"\p{Han}|[\w&&[^\p{Han}]]+|\s|[^\w\s]"), "isolated")
    return set_pair_template(build_pipeline(model, splitter, BERT_SPECIALS, normalizer, decoders.Fuse()))


def build_word_level(words: Sequence[str], lowercase: bool, pretokenization: str = "words") -> Tokenizer:
    """Build a tokenizer with one token per listed word, `<unk>` for others, and no template.

    Pre-tokenization `words` splits like BERT, at white space and around punctuation, but keeps accents. `whitespace`
    splits at white space only, for pre-tokenized text such as WikiText-2, where a written `<unk>` is the unknown word.
    """
    model = _word_level_model(dict.fromkeys([*WORD_SPECIALS, *words]))
    if pretokenization == "words":
        normalizer = normalizers.BertNormalizer(strip_accents=False, lowercase=lowercase)
        return build_pipeline(model, pre_tokenizers.BertPreTokenizer(), WORD_SPECIALS, normalizer)
    splitter = _split_at_whitespace(token for token in WORD_SPECIALS if token != "<unk>")
    return build_pipeline(model, splitter, WORD_SPECIALS, normalizers.Lowercase() if lowercase else None)


def build_whitespace(words: Sequence[str]) -> Tokenizer:
    """Build a tokenizer over words split at white space, `<unk>` for others; `<s>` and `</s>` are special tokens."""
    specials = [word for word in ("<s>", "</s>", "<unk>") if word in words]
    return build_pipeline(_word_level_model(words), pre_tokenizers.WhitespaceSplit(), specials)


def build_events() -> Tokenizer:
    """Build the tokenizer of musical performances: a fixed vocabulary with one token per event."""
    model = _word_level_model((*SPECIAL_TOKENS, *EVENTS))
    return build_pipeline(model, _split_at_whitespace(SPECIAL_TOKENS), SPECIAL_TOKENS)


def _word_level_model(words: Iterable[str]) -> models.WordLevel:
    return models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")


def _split_at_whitespace(specials: Iterable[str]) -> pre_tokenizers.Sequence:
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), split_special_tokens(specials)])


def build_untrained(kind: str, lowercase: bool) -> Tokenizer:
    """Build a tokenizer of a kind without a vocabulary, for its normalizer and pre-tokenizer."""
    if kind == "wordpiece":
        return build_wordpiece({token: i for i, token in enumerate(BERT_SPECIALS)}, lowercase)
    if kind in ("bpe", "byte-bpe-roberta"):
        return build_bpe({}, [], lowercase)
    if kind in ("words", "whitespace"):
        return build_word_level([], lowercase, kind)
    if kind in UNIGRAM_SPECIALS:
        return build_unigram([], lowercase, UNIGRAM_SPECIALS[kind])
    return build_characters([], lowercase)


def add_special_tokens(tokenizer: Tokenizer, tokens: Iterable[str]) -> None:
    """Add special tokens that are matched in unnormalized text; `<mask>` also absorbs the space before it."""
    options = {"special": True, "normalized": False}
    tokenizer.add_special_tokens([AddedToken(token, lstrip=token == "<mask>", **options) for token in tokens])


def add_sentinels(tokenizer: Tokenizer, num_sentinels: int) -> None:
    """Append sentinel tokens in T5's descending order: the last id is the first sentinel."""
    add_special_tokens(tokenizer, [SENTINEL_TEMPLATE.format(i) for i in reversed(range(num_sentinels))])


def set_pair_template(tokenizer: Tokenizer) -> Tokenizer:
    """Set the template `[CLS] A [SEP] B [SEP]` with segments 0 and 1."""
    return _set_template(tokenizer, "[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", "[CLS]", "[SEP]")


def set_roberta_template(tokenizer: Tokenizer) -> Tokenizer:
    """Set RoBERTa's template `<s> A </s></s> B </s>`, all in segment 0."""
    pair = "<s>:0 $A:0 </s>:0 </s>:0 $B:0 </s>:0"
    return _set_template(tokenizer, "<s>:0 $A:0 </s>:0", pair, "<s>", "</s>")


def set_cls_last_template(tokenizer: Tokenizer, cls: str, sep: str) -> Tokenizer:
    """Set XLNet's template `A <sep> B <sep> <cls>` with segments 0, 1 and 2."""
    return _set_template(tokenizer, f"$A:0 {sep}:0 {cls}:2", f"$A:0 {sep}:0 $B:1 {sep}:1 {cls}:2", cls, sep)


def set_text_template(tokenizer: Tokenizer, start: str, between: str, end: str) -> Tokenizer:
    """Set the template `start A between B end`, all in segment 0 (Radford et al. 2018, §3.3)."""
    add_special_tokens(tokenizer, (start, between, end))
    pair = f"{start}:0 $A:0 {between}:0 $B:0 {end}:0"
    return _set_template(tokenizer, f"{start}:0 $A:0 {end}:0", pair, start, between, end)


def set_eos_template(tokenizer: Tokenizer, eos: str = "</s>") -> Tokenizer:
    """Set the template `A </s> B </s>`."""
    return _set_template(tokenizer, f"$A:0 {eos}:0", f"$A:0 {eos}:0 $B:0 {eos}:0", eos)


def _set_template(tokenizer: Tokenizer, single: str, pair: str, *tokens: str) -> Tokenizer:
    ids = [(token, tokenizer.token_to_id(token)) for token in tokens]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)
    return tokenizer


def split_special_tokens(tokens: Iterable[str]) -> pre_tokenizers.Split:
    """Build a pre-tokenizer that splits after the first character of a special token written in plain text.

    A unigram model matches any entry in a text, so without this split `[MASK]` in a corpus would become the mask token.
    """
    suffixes: dict[str, list[str]] = {}  # by first character
    for token in tokens:
        if len(token) > 1:
            suffixes.setdefault(token[0], []).append(re.escape(token[1:]))
    pattern = "|".join(f"{re.escape(first)}(?={'|'.join(rest)})" for first, rest in suffixes.items())
    return pre_tokenizers.Split(Regex(pattern), "merged_with_previous")
