"""What stands around a vocabulary: how each kind of tokenizer cleans, cuts, wraps and decodes text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

TOKENIZER_KINDS = ("wordpiece", "bpe", "byte-bpe-roberta", "unigram", "characters", "words", "whitespace")
BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
UNIGRAM_SPECIALS = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")  # ALBERT's, in its order
ROBERTA_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # in its order: positions are counted from pad on
T5_SPECIALS = ("<pad>", "</s>", "<unk>")  # T5's, in its order
WORD_SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
END_OF_TEXT = "<|endoftext|>"
SENTINEL_TEMPLATE = "<extra_id_{}>"  # stands for the n-th span that was taken out of a text
CONTINUATION_PREFIX = "##"  # marks a piece that continues a word
METASPACE = "▁"  # stands for a space in sentencepiece's vocabularies
END_OF_WORD_SUFFIX = "</w>"  # ends the last piece of a word in GPT's vocabulary
_SURROGATE = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """The text with U+FFFD for every lone surrogate, which no encoding can hold; its length stays."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text


def build_wordpiece(vocab: dict[str, int], lowercase: bool) -> Tokenizer:
    """BERT's tokenizer over a given vocabulary: its cleaning, its split at punctuation, its pair template."""
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", continuing_subword_prefix=CONTINUATION_PREFIX))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION_PREFIX)
    add_special_tokens(tokenizer, BERT_SPECIALS)
    set_pair_template(tokenizer)
    return tokenizer


def build_bpe(
    vocab: dict[str, int],
    merges: Sequence[tuple[str, str]],
    lowercase: bool,
    special_tokens: Sequence[str] = (END_OF_TEXT,),
) -> Tokenizer:
    """GPT-2's tokenizer: bytes written as characters, a space kept with the word behind it.

    With RoBERTa's special tokens it is RoBERTa's, whose mask takes the space before it: a word has its space in it, so
    what is masked had too.
    """
    tokenizer = Tokenizer(models.BPE(vocab, list(merges)))
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    add_special_tokens(tokenizer, special_tokens)
    if {"<s>", "</s>", "<mask>"} <= set(special_tokens):
        sep, cls = ((token, tokenizer.get_vocab()[token]) for token in ("</s>", "<s>"))
        tokenizer.post_processor = processors.RobertaProcessing(sep, cls, trim_offsets=False, add_prefix_space=False)
    return tokenizer


def build_unigram(
    pieces: Sequence[tuple[str, float]], lowercase: bool, special_tokens: Sequence[str] = UNIGRAM_SPECIALS
) -> Tokenizer:
    """Pieces with log probabilities, the most probable cut: ALBERT's tokenizer, with its pair template, or T5's.

    Cleaning is NFKC and one space for any white space. Joiners and marks of direction stay.
    """
    vocab = [*((token, 0.0) for token in special_tokens), *pieces]
    tokenizer = Tokenizer(models.Unigram(vocab, special_tokens.index("<unk>"), False))
    steps = [normalizers.NFKC(), *([normalizers.Lowercase()] if lowercase else [])]
    steps += [normalizers.Replace(Regex(r"\A\s+|\s+\z"), ""), normalizers.Replace(Regex(r"\s+"), " ")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    metaspace = pre_tokenizers.Metaspace(replacement=METASPACE, prepend_scheme="always", split=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([metaspace, split_special_tokens(special_tokens)])
    tokenizer.decoder = decoders.Metaspace(replacement=METASPACE, prepend_scheme="always", split=True)
    add_special_tokens(tokenizer, special_tokens)
    if "[CLS]" in special_tokens:
        set_pair_template(tokenizer)
    else:
        set_eos_template(tokenizer)
    return tokenizer


def build_characters(alphabet: Sequence[str], lowercase: bool) -> Tokenizer:
    """A token for each character, after NFC; the space is one too. BERT's special tokens and pair template.

    It is a BPE model without merges: that cuts a word into its characters, and the pre-tokenizer still says
    where words start. A Chinese character is a word of its own, as in BERT.
    """
    vocab = {token: i for i, token in enumerate([*BERT_SPECIALS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.NFC()
    if lowercase:
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\p{Han}|[\w&&[^\p{Han}]]+|\s|[^\w\s]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    add_special_tokens(tokenizer, BERT_SPECIALS)
    set_pair_template(tokenizer)
    return tokenizer


def build_word_level(words: Sequence[str], lowercase: bool, pretokenization: str = "words") -> Tokenizer:
    """A token for each word of a list, one for all others, and nothing around a text.

    `words` are cut as BERT cuts, at white space and around punctuation, with accents kept. `whitespace` are what white
    space parts: for text that is cut already, as WikiText-2, where `<unk>` written in the text is the unknown word.
    """
    vocab = {word: i for i, word in enumerate(dict.fromkeys([*WORD_SPECIALS, *words]))}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    if pretokenization == "words":
        tokenizer.normalizer = normalizers.BertNormalizer(strip_accents=False, lowercase=lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    else:
        if lowercase:
            tokenizer.normalizer = normalizers.Lowercase()
        special_splitter = split_special_tokens(token for token in WORD_SPECIALS if token != "<unk>")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), special_splitter])
    add_special_tokens(tokenizer, WORD_SPECIALS)
    return tokenizer


def build_untrained(kind: str, lowercase: bool) -> Tokenizer:
    """A tokenizer of a kind before it has learnt anything: it can clean and cut."""
    if kind == "wordpiece":
        return build_wordpiece({token: i for i, token in enumerate(BERT_SPECIALS)}, lowercase)
    if kind in ("bpe", "byte-bpe-roberta"):
        return build_bpe({}, [], lowercase)
    if kind in ("words", "whitespace"):
        return build_word_level([], lowercase, kind)
    return build_unigram([], lowercase) if kind == "unigram" else build_characters([], lowercase)


def add_special_tokens(tokenizer: Tokenizer, tokens: Iterable[str]) -> None:
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False, lstrip=token == "<mask>") for token in tokens]
    )


def set_pair_template(tokenizer: Tokenizer) -> None:
    """`[CLS] A [SEP] B [SEP]` with segments 0 and 1."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )


def set_cls_last_template(tokenizer: Tokenizer, cls: str, sep: str) -> None:
    """`A <sep> B <sep> <cls>` with segments 0, 1 and 2: the token of the whole sequence comes last, as in XLNet."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A:0 {sep}:0 {cls}:2",
        pair=f"$A:0 {sep}:0 $B:1 {sep}:1 {cls}:2",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
    )


def set_text_template(tokenizer: Tokenizer, start: str, between: str, end: str) -> None:
    """`start A end` and `start A between B end`, all in segment 0 (Radford et al. 2018, §3.3)."""
    add_special_tokens(tokenizer, (start, between, end))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start}:0 $A:0 {end}:0",
        pair=f"{start}:0 $A:0 {between}:0 $B:0 {end}:0",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (start, between, end)],
    )


def set_eos_template(tokenizer: Tokenizer, eos_token: str = "</s>") -> None:
    """`A </s> B </s>`."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A:0 {eos_token}:0",
        pair=f"$A:0 {eos_token}:0 $B:0 {eos_token}:0",
        special_tokens=[(eos_token, tokenizer.token_to_id(eos_token))],
    )


def add_sentinels(tokenizer: Tokenizer, num_sentinels: int) -> None:
    """At the end of the vocabulary, in falling order as T5 has them: the last id is the first sentinel."""
    add_special_tokens(tokenizer, [SENTINEL_TEMPLATE.format(i) for i in reversed(range(num_sentinels))])


def split_special_tokens(tokens: Iterable[str]) -> pre_tokenizers.Split:
    """Cuts behind the first character of a special token written in plain text.

    A unigram model takes any entry that it finds in a text, so without the cut `[MASK]` in a corpus would become
    the mask token.
    """
    suffixes_by_first: dict[str, list[str]] = {}
    for token in tokens:
        if len(token) > 1:
            suffixes_by_first.setdefault(token[0], []).append(token[1:])
    escaped = (
        f"{re.escape(first)}(?={'|'.join(map(re.escape, suffixes))})" for first, suffixes in suffixes_by_first.items()
    )
    return pre_tokenizers.Split(Regex("|".join(escaped)), "merged_with_previous")


def build_whitespace(words: Sequence[str]) -> Tokenizer:
    """Words between white space, as they are; `<unk>` for others. `<s>` and `</s>` stand for themselves alone."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    add_special_tokens(tokenizer, [word for word in ("<s>", "</s>", "<unk>") if word in words])
    return tokenizer
