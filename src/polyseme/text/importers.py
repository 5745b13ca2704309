"""Import of published vocabularies; the format is detected from the content of a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from polyseme.errors import ConfigError, ModelError, PolysemeError
from polyseme.io.compression import read_decompressed
from polyseme.io.json import parse_strict, read_json_object
from polyseme.text import pipelines
from polyseme.text.patterns import check_patterns, is_panic
from polyseme.text.pipelines import BERT_SPECIALS, END_OF_TEXT, END_OF_WORD_SUFFIX, ROBERTA_SPECIALS
from polyseme.text.sentencepiece_model import build_tokenizer, parse_model, to_fairseq

# Vocabulary files that a folder may hold; the first complete set is used.
_FILE_SETS = (
    *(("tokenizer.json",), ("vocab.txt",), ("vocab.json", "merges.txt")),
    *(("spiece.model",), ("sentencepiece.bpe.model",), ("tokenizer.model",)),
)
_SUPPORTED_FORMATS = "BERT's vocab.txt, vocab.json with merges.txt (GPT-2, GPT), sentencepiece's .model, tokenizer.json"

FAIRSEQ_MODEL_TYPES = ("xlm-roberta", "camembert")  # whose ids are not those of their sentencepiece file
_RARE_CHARACTER = "\ue000"  # for private use, in no vocabulary


def load_files(path: Path) -> tuple[Tokenizer, dict[str, Any]]:
    """Load the tokenizer of a folder or file; return it with its special tokens and other settings."""
    folder, files = (path, []) if path.is_dir() else (path.parent, [path])
    if path.is_dir():
        file_sets = ([folder / name for name in names] for names in _FILE_SETS)
        files = next((paths for paths in file_sets if all(map(Path.is_file, paths))), [])
        if not files:
            expected = "tokenizer.json, vocab.txt, vocab.json with merges.txt or a sentencepiece .model"
            raise ModelError(f"no tokenizer in {folder}: expected {expected}")
    elif not path.is_file():
        raise ModelError(f"no tokenizer at {path}: no such file or folder")
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            config |= read_json_object(folder / name)
    if files[0].suffix == ".txt":
        return _read_wordpiece(files[0], config.get("do_lower_case")), config
    if files[0].suffix == ".json" and len(files) == 1:
        return _read_tokenizer(files[0]), config
    if (model_type := _read_model_type(folder)) in FAIRSEQ_MODEL_TYPES:
        proto = parse_model(b"".join(read_decompressed(files[0])))
        tokenizer, tokens = build_tokenizer(to_fairseq(proto, model_type), str(files[0]))
        return tokenizer, tokens | config
    tokenizer, tokens = import_vocabulary(files)
    if config.get("extra_ids") and tokenizer.token_to_id(pipelines.SENTINEL_TEMPLATE.format(0)) is None:
        # T5's sentencepiece file holds neither the sentinels nor the template.
        pipelines.add_sentinels(tokenizer, config["extra_ids"])
        pipelines.set_eos_template(tokenizer)
    return tokenizer, tokens | config


def _read_model_type(folder: Path) -> str:
    """Return the type of the model that a tokenizer belongs to, if there is one beside it."""
    path = folder / "config.json"
    return str(read_json_object(path).get("model_type", "")) if path.is_file() else ""


def import_vocabulary(files: Sequence[Path], lowercase: bool | None = None) -> tuple[Tokenizer, dict[str, str]]:
    """Import a file, or a vocabulary and its merges; return the tokenizer and its special tokens."""
    contents = {path: b"".join(read_decompressed(path)) for path in files}
    path_by_format: dict[str, Path] = {}
    for path, content in contents.items():
        file_format = _detect_format(content)
        if file_format is None:
            raise ModelError(f"{path} is not a supported vocabulary file; supported: {_SUPPORTED_FORMATS}")
        if file_format in path_by_format:
            raise ModelError(f"{path_by_format[file_format]} and {path} are both {file_format}; pass only one")
        path_by_format[file_format] = path
    formats = set(path_by_format)
    if formats == {"a BPE vocabulary", "BPE merges"}:
        merges_path = path_by_format["BPE merges"]
        vocab = parse_strict(contents[path_by_format["a BPE vocabulary"]].decode())
        return _read_bpe(vocab, merges_path, contents[merges_path], lowercase), {}
    if formats in ({"a BPE vocabulary"}, {"BPE merges"}):
        missing_file = "the merges (merges.txt)" if "a BPE vocabulary" in formats else "the vocabulary (vocab.json)"
        raise ModelError(f"{files[0]} is {next(iter(formats))}: pass {missing_file} too")
    if len(formats) != 1:
        names = ", ".join(map(str, files))
        raise ModelError(f"{names} do not belong together: pass one file, or a vocabulary and its merges")
    (path,) = files
    if formats == {"a BERT vocabulary"}:
        return _read_wordpiece(path, lowercase), {}
    if lowercase is not None:
        hint = "it applies to BERT's and GPT-2's vocabularies"
        raise ConfigError(f"lowercase cannot be set for {path}, which specifies it; {hint}")
    if formats == {"a tokenizer.json"}:
        return _read_tokenizer(path), {}
    return build_tokenizer(parse_model(contents[path]), str(path))


def _read_tokenizer(path: Path) -> Tokenizer:
    """Read a `tokenizer.json`; raise `ModelError` if it is not one."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
        check_patterns(tokenizer, path)
        tokenizer.encode(_RARE_CHARACTER)  # needs a token for unknown characters
    except PolysemeError:
        raise
    except BaseException as error:  # `tokenizers` raises nothing narrower
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise ModelError(f"{path} is not a valid tokenizer.json: {error}") from None
    return tokenizer


def _read_wordpiece(path: Path, lowercase: bool | None) -> Tokenizer:
    """Read BERT's `vocab.txt`. By default it lowercases if all pieces are lowercase."""
    try:
        pieces = b"".join(read_decompressed(path)).decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ModelError(f"{path} is not UTF-8 text: invalid byte at {error.start}") from None
    vocab = {piece.rstrip("\r"): i for i, piece in enumerate(pieces)}
    if missing_tokens := [token for token in BERT_SPECIALS if token not in vocab]:
        raise ModelError(f"{path} is not a BERT vocabulary: it has no {' '.join(missing_tokens)}")
    if len(vocab) < len(pieces):
        raise ModelError(f"{path} is not a BERT vocabulary: {len(pieces) - len(vocab)} lines are duplicates")
    if lowercase is None:
        lowercase = not any(piece != piece.lower() for piece in vocab if not piece.startswith("["))
    return pipelines.build_wordpiece(vocab, lowercase)


def _read_bpe(vocab: dict[str, int], merges_path: Path, content: bytes, lowercase: bool | None) -> Tokenizer:
    """Read GPT-2's byte-level BPE, or GPT's (2018) of characters, in which words end in `</w>`."""
    merges: list[tuple[str, str]] = []
    for line_number, line in enumerate(content.decode().split("\n"), start=1):
        if not line.strip() or (line_number == 1 and line.startswith("#version")):
            continue
        pair, location = line.rstrip("\r").split(" "), f"{merges_path}, line {line_number}"
        if len(pair) != 2:
            raise ModelError(f"{location}: expected two pieces separated by a space, not {line!r}")
        if missing_pieces := [piece for piece in (*pair, "".join(pair)) if piece not in vocab]:
            raise ModelError(f"{location}: {missing_pieces[0]!r} is not in the vocabulary")
        merges.append((pair[0], pair[1]))
    if sorted(vocab.values()) != list(range(len(vocab))):
        raise ModelError(f"the ids of the vocabulary of {merges_path} are not 0 to {len(vocab) - 1}")
    if any(piece.endswith(END_OF_WORD_SUFFIX) for piece in vocab):
        return _build_gpt(vocab, merges)
    special_tokens = [token for token in (END_OF_TEXT, *ROBERTA_SPECIALS) if token in vocab]
    if not special_tokens:
        raise ModelError(f"the vocabulary of {merges_path} has no {END_OF_TEXT} token")
    return pipelines.build_bpe(vocab, merges, bool(lowercase), special_tokens)


def _build_gpt(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    """Build GPT's tokenizer (2018) as `transformers` does without ftfy and spaCy: BERT's normalization and split."""
    unk_token = "<unk>" if "<unk>" in vocab else None
    model = models.BPE(vocab, merges, unk_token=unk_token, end_of_word_suffix=END_OF_WORD_SUFFIX)
    splitter, normalizer = pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer(lowercase=True)
    decoder = decoders.BPEDecoder(suffix=END_OF_WORD_SUFFIX)
    return pipelines.build_pipeline(model, splitter, [unk_token] if unk_token else [], normalizer, decoder)


def _detect_format(content: bytes) -> str | None:
    """Return the format of a vocabulary file, or None if it is unknown."""
    if content.lstrip()[:1] == b"{":
        try:
            value = parse_strict(content.decode())
        except ValueError:
            return None
        if isinstance(value.get("model"), dict):
            return "a tokenizer.json"
        return "a BPE vocabulary" if value and all(type(token_id) is int for token_id in value.values()) else None
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError:
        lines = []
    if "[UNK]" in lines[:2000] or "[UNK]\r" in lines[:2000]:
        return "a BERT vocabulary"
    pairs = [line.rstrip("\r") for line in lines[:200] if line.strip() and not line.startswith("#version")]
    if pairs and all(len(pair.split(" ")) == 2 for pair in pairs):
        return "BPE merges"
    try:
        parse_model(content)
    except ValueError:
        return None
    return "a sentencepiece model"
