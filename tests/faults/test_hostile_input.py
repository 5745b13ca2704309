# ruff: noqa: E501
"""Hostile files and options: deep nesting, huge numbers, wrong types, damaged headers. One line each, status 2.

Together with `test_bad_input.py` and `test_bad_folders.py` this is the table of bad inputs and their messages.
"""

import gzip
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

DEEP = "[" * 100_000
DEEP_OBJECT = '{"a":' * 100_000
DIGITS = "9" * 5_000


# --- options ---------------------------------------------------------------------------------------------------------

SETTINGS = {
    "deep list": (f"optimizer.lr={DEEP}", "lr"),
    "deep object": (f"optimizer={DEEP_OBJECT}", "optimizer"),
    "digits": (f"seed={DIGITS}", "seed"),
    "digits in a float": (f"optimizer.lr={DIGITS}", "lr"),
    "seed beyond 64 bits": (f"seed={2**64}", "seed"),
    "layers": ("model.num_layers=10000000", "num_layers|memory|parameters"),
    "dim": ("model.dim=1000000000000", "dim|memory|parameters"),
    "max_len": ("model.max_len=1000000000000", "max_len|memory|parameters"),
    "batch": ("batch_tokens=1000000000000000000", "batch_tokens"),
    "micro batch": ("micro_batch_tokens=1000000000000000000", "micro_batch_tokens"),
    "steps": ("budget.steps=1000000000000000000000", "steps"),
    "minutes": ("budget.minutes=1e300", "minutes"),
    "nan": ("optimizer.lr=NaN", "lr"),
    "infinity": ("optimizer.lr=Infinity", "lr"),
    "text of a megabyte": (f"optimizer.lr={'x' * 100_000}", "lr"),
    "text for a family": (f"family={'x' * 10_000}", "family|x"),
    "NUL": ("family=be\x00rt", "family|argument"),
    "newline": ("family=be\nrt", "family"),
    "object for a number": ('seed={"a": 1}', "seed"),
    "list for a number": ("seed=[1]", "seed"),
    "null for a number": ("seed=null", "seed"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_pretrain_settings(case, rejects, project, tmp_path):
    setting, match = SETTINGS[case]
    rejects("pretrain", project / "bert.json", "--corpus", project / "corpus-bert", "--out", tmp_path / "run", "--set",
            setting, match=match)  # fmt: skip


TASK_SETTINGS = {
    "deep": (f"optimizer={DEEP_OBJECT}", "optimizer"),
    "digits": (f"epochs={DIGITS}", "epochs"),
    "epochs": ("epochs=1e300", "epochs"),
    "steps": ("steps=1000000000000000000000", "steps"),
    "batch": ("batch_size=100000000000000000000", "batch_size"),
    "nan": ("optimizer.lr=NaN", "lr"),
}


@pytest.mark.parametrize("case", TASK_SETTINGS)
def test_finetune_settings(case, rejects, project, tmp_path):
    setting, match = TASK_SETTINGS[case]
    rejects("finetune", project / "run-bert/model", "--task", "classification", "--train",
            project / "classification-train.tsv", "--dev", project / "classification-dev.tsv", "--out",
            tmp_path / "run", "--set", setting, match=match)  # fmt: skip


OPTIONS = {
    "1e99 steps": (("pretrain", "{bert.json}", "--corpus", "{corpus-bert}", "--out", "{out}", "--budget", "1e99steps"), "steps is"),
    "1e99 tokens": (("pretrain", "{bert.json}", "--corpus", "{corpus-bert}", "--out", "{out}", "--budget", "1e99tokens"), "tokens is"),
    "digits of minutes": (("pretrain", "{bert.json}", "--corpus", "{corpus-bert}", "--out", "{out}", "--budget", f"{DIGITS}m"), "minutes is"),
    "vocabulary of 10^9": (("tokenizer", "train", "{text.txt}", "--out", "{out}", "--vocab-size", 10**9), "vocab"),
    "vocabulary of 10^30": (("tokenizer", "train", "{text.txt}", "--out", "{out}", "--vocab-size", 10**30), "vocab"),
    "bpe vocabulary of 10^9": (("tokenizer", "train", "{text.txt}", "--kind", "bpe", "--out", "{out}", "--vocab-size", 10**9), "vocab"),
    "unigram vocabulary of 10^9": (("tokenizer", "train", "{text.txt}", "--kind", "unigram", "--out", "{out}", "--vocab-size", 10**9), "vocab"),
    "sentinels": (("tokenizer", "train", "{text.txt}", "--out", "{out}", "--vocab-size", 300, "--num-sentinels", 10**9), "sentinel|vocab"),
    "seeds": (("finetune", "{run-bert/model}", "--task", "classification", "--train", "{classification-train.tsv}", "--dev", "{classification-dev.tsv}", "--out", "{out}", "--seeds", 10**30), "seeds"),
    "new tokens": (("generate", "{run-gpt2/model}", "--prompt", "the cat", "--max-new-tokens", 10**12), "max-new-tokens|positions|long"),
    "sampling seed": (("generate", "{run-gpt2/model}", "--prompt", "the cat", "--do-sample", "--max-new-tokens", 4, "--seed", 2**70), "seed"),
    "temperature": (("generate", "{run-gpt2/model}", "--prompt", "the cat", "--do-sample", "--temperature", "nan"), "temperature"),
    "top_p": (("generate", "{run-gpt2/model}", "--prompt", "the cat", "--do-sample", "--top-p", "nan"), "top.p"),
    "beams": (("generate", "{run-gpt2/model}", "--prompt", "the cat", "--num-beams", 10**12), "num.beams"),
    "sequences": (("generate", "{run-gpt2/model}", "--prompt", "the cat", "--do-sample", "--num-return-sequences", 10**12), "num.return.sequences|memory"),
    "resamples": (("compare", "{run-classification}", "{run-classification}", "--num-resamples", 10**15), "num.resamples"),
    "threshold": (("prepare", "{text.txt}", "--tokenizer", "{tok-bert}", "--out", "{out}", "--dedup-threshold", "nan"), "threshold"),
    "samples of a page": (("describe", "{corpus-bert}", "--out", "{out}.html", "--num-samples", -5), "num.samples"),
    "grid": (("finetune", "{run-bert/model}", "--task", "classification", "--train", "{classification-train.tsv}", "--dev", "{classification-dev.tsv}", "--out", "{out}", "--grid", f"lr={DEEP}"), "lr"),
}  # fmt: skip


@pytest.mark.parametrize("case", OPTIONS)
def test_options(case, rejects, project, tmp_path):
    args, match = OPTIONS[case]

    def fill(arg: object) -> object:
        if isinstance(arg, str) and arg.startswith("{out}"):
            return f"{tmp_path / 'out'}{arg[5:]}"
        return project / arg[1:-1] if isinstance(arg, str) and arg.startswith("{") and arg.endswith("}") else arg

    rejects(*map(fill, args), match=match)


# --- JSON files ------------------------------------------------------------------------------------------------------

JSON_TEXTS = {
    "deep list": DEEP,
    "deep object": DEEP_OBJECT,
    "closed deep list": "[" * 5_000 + "]" * 5_000,
    "digits": DIGITS,
    "a long number": f'{{"a": {DIGITS}}}',
    "NaN": "NaN",
    "a string": '"text"',
    "null": "null",
    "two keys": '{"kind": 1, "kind": 2}',
    "not UTF-8": "\udcff",
    "a byte-order mark": "\ufeff{}",
    "NUL bytes": "\x00" * 100,
    "empty": "",
}


@pytest.fixture
def model(project, tmp_path) -> Path:
    """A copy of a pre-trained model."""
    return shutil.copytree(project / "run-bert/model", tmp_path / "model")


def remove_hashes(folder: Path) -> None:
    """Remove what only our folders have."""
    for name in ("polyseme.json", "SHA256SUMS"):
        (folder / name).unlink()


def write(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize("case", JSON_TEXTS)
@pytest.mark.parametrize("file", ["config.json", "polyseme.json", "tokenizer.json", "tokenizer_config.json"])
def test_json_of_a_model(file, case, rejects, model):
    """The same for a folder of another tool, which has no hashes."""
    write(model / file, JSON_TEXTS[case])
    rejects("fill", model, "the [MASK]", match=[file])
    rejects("verify", model, match=[file])
    if file != "polyseme.json":
        remove_hashes(model)
        rejects("fill", model, "the [MASK]", match=["json"])


@pytest.mark.parametrize("case", JSON_TEXTS)
@pytest.mark.parametrize("file", ["manifest.json", "tokenizer/tokenizer.json"])
def test_json_of_a_corpus(file, case, rejects, project, tmp_path):
    corpus = shutil.copytree(project / "corpus-bert", tmp_path / "corpus")
    write(corpus / file, JSON_TEXTS[case])
    rejects("verify", corpus, match=[Path(file).name])
    rejects("pretrain", project / "bert.json", "--corpus", corpus, "--out", tmp_path / "run", match=[Path(file).name])


@pytest.mark.parametrize("case", JSON_TEXTS)
def test_recipe(case, rejects, project, tmp_path):
    write(tmp_path / "recipe.json", JSON_TEXTS[case])
    rejects("pretrain", tmp_path / "recipe.json", "--corpus", project / "corpus-bert", "--out", tmp_path / "run",
            match="recipe.json")  # fmt: skip


@pytest.mark.parametrize("case", [case for case in JSON_TEXTS if case not in ("empty", "a byte-order mark")])
def test_rows_of_json_lines(case, rejects, project, tmp_path):
    write(tmp_path / "a.jsonl", '{"text": "a", "label": "land"}\n' + JSON_TEXTS[case] + "\n")
    rejects("predict", project / "run-classification/model", "--data", tmp_path / "a.jsonl", "--out",
            tmp_path / "p.jsonl", match="a.jsonl")  # fmt: skip
    rejects("prepare", tmp_path / "a.jsonl", "--tokenizer", project / "tok-bert", "--out", tmp_path / "out",
            match="a.jsonl")  # fmt: skip


# --- folders of other tools ------------------------------------------------------------------------------------------


@pytest.fixture
def foreign(model) -> Path:
    """A model folder as another tool writes it."""
    remove_hashes(model)
    return model


CONFIGS: dict[str, dict[str, Any]] = {
    "model_type list": {"model_type": ["bert"]},
    "model_type number": {"model_type": 5},
    "model_type object": {"model_type": {}},
    "architectures numbers": {"architectures": [1]},
    "layers": {"num_hidden_layers": 10**7},
    "layers huge": {"num_hidden_layers": 10**30},
    "no layers": {"num_hidden_layers": 0},
    "negative layers": {"num_hidden_layers": -2},
    "float layers": {"num_hidden_layers": 2.5},
    "hidden size": {"hidden_size": 10**12},
    "vocabulary": {"vocab_size": 10**12},
    "negative vocabulary": {"vocab_size": -1},
    "positions": {"max_position_embeddings": 10**12},
    "eps text": {"layer_norm_eps": "small"},
    "dropout": {"hidden_dropout_prob": 7},
    "activation list": {"hidden_act": ["gelu"]},
    "pad id": {"pad_token_id": 10**9},
}


@pytest.mark.parametrize("case", CONFIGS)
def test_configs(case, rejects, foreign):
    config = json.loads((foreign / "config.json").read_text())
    (foreign / "config.json").write_text(json.dumps(config | CONFIGS[case]))
    rejects("fill", foreign, "the [MASK]", match="config.json|layer|" + "|".join(CONFIGS[case]))


INDEXES: dict[str, Any] = {
    "a list": [],
    "no map": {},
    "a map of numbers": {"weight_map": {"a": 5}},
    "a map of lists": {"weight_map": {"a": ["b"]}},
    "a list as map": {"weight_map": ["a"]},
    "text as map": {"weight_map": "model.safetensors"},
    "null": {"weight_map": None},
    "an empty map": {"weight_map": {}},
    "an empty name": {"weight_map": {"a": ""}},
    "a folder": {"weight_map": {"a": "."}},
    "outside": {"weight_map": {"a": "../../x.safetensors"}},
    "absolute": {"weight_map": {"a": "/etc/passwd"}},
    "NUL": {"weight_map": {"a": "a\x00b.safetensors"}},
    "pickle": {"weight_map": {"a": "pytorch_model.bin"}},
}


@pytest.mark.parametrize("case", INDEXES)
def test_indexes(case, rejects, foreign):
    (foreign / "model.safetensors").rename(foreign / "model-00001-of-00001.safetensors")
    (foreign / "model.safetensors.index.json").write_text(json.dumps(INDEXES[case]))
    rejects("fill", foreign, "the [MASK]", match="index.json|outside|safetensors")


def edit_tokenizer(folder: Path, change) -> None:
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    change(tokenizer)
    path.write_text(json.dumps(tokenizer))


def runaway(tokenizer: dict[str, Any]) -> None:
    pattern = {"type": "Split", "pattern": {"Regex": r"(a+)+$"}, "behavior": "Isolated", "invert": False}
    tokenizer["pre_tokenizer"] = pattern


TOKENIZERS = {
    "id out of range": lambda t: t["model"]["vocab"].update({"cat": 10**9}),
    "id beyond 32 bits": lambda t: t["model"]["vocab"].update({"cat": 2**40}),
    "negative id": lambda t: t["model"]["vocab"].update({"cat": -1}),
    "id twice": lambda t: t["model"]["vocab"].update({"cat": t["model"]["vocab"]["dog"]}),
    "vocabulary list": lambda t: t["model"].update(vocab=[]),
    "empty vocabulary": lambda t: t["model"].update(vocab={}),
    "model null": lambda t: t.update(model=None),
    "model type": lambda t: t["model"].update(type="Unknown"),
    "added tokens": lambda t: t.update(added_tokens=5),
    "added id": lambda t: t["added_tokens"].append(
        {"id": 10**8, "content": "[X]", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    ),
    "runaway pattern": runaway,
    "bad pattern": lambda t: t.update(pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}),
    "normalizer": lambda t: t.update(normalizer={"type": "Nothing"}),
}  # fmt: skip


@pytest.mark.parametrize("case", TOKENIZERS)
def test_tokenizer_files(case, rejects, foreign):
    for name in ("vocab.txt", "tokenizer_config.json"):
        (foreign / name).unlink(missing_ok=True)
    edit_tokenizer(foreign, TOKENIZERS[case])
    rejects("fill", foreign, "the " + "a" * 40 + "b [MASK]", match="tokenizer")


# --- weights, vectors, arrays ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_weights_that_are_not_finite(family, value, rejects, project, tmp_path):
    model = shutil.copytree(project / f"run-{family}/model", tmp_path / "model")
    remove_hashes(model)
    tensors = load_file(model / "model.safetensors")
    name = sorted(n for n in tensors if n.endswith("weight"))[1]
    tensors[name].view(-1)[3] = float(value)
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    prompt = ("fill", model, "the [MASK]") if family == "bert" else ("generate", model, "--prompt", "the cat")
    rejects(*prompt, match=[name.rsplit(".", 2)[0].split(".")[-1], "nan|inf|finite"])
    rejects("verify", model, match="nan|inf|finite")


def header(length: int, text: bytes = b"") -> bytes:
    return struct.pack("<Q", length) + text


SAFETENSORS = {
    "length beyond the file": header(10**15, b"{}"),
    "length of 2^64": header(2**64 - 1, b"{}"),
    "no header": header(0),
    "header a list": header(2, b"[]"),
    "header deep": header(100_000, DEEP.encode()),
    "offsets": header(60, b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,99999]}}  '),
    "shape": header(66, b'{"a":{"dtype":"F32","shape":[9999999999],"data_offsets":[0,4]}}   ') + b"\0\0\0\0",
    "dtype": header(54, b'{"a":{"dtype":"Q7","shape":[1],"data_offsets":[0,4]}} ') + b"\0\0\0\0",
    "text": b"this is not a weight file",
}


@pytest.mark.parametrize("case", SAFETENSORS)
def test_weight_files(case, rejects, foreign):
    (foreign / "model.safetensors").write_bytes(SAFETENSORS[case])
    rejects("fill", foreign, "the [MASK]", match="safetensors")


VECTORS = {
    "nan": ("v.txt", b"2 2\ncat 1 nan\ndog 1 2\n", "cat|nan|finite"),
    "inf": ("v.txt", b"2 2\ncat 1 2\ndog inf 2\n", "dog|inf|finite"),
    "overflow": ("v.txt", b"2 2\ncat 1 2\ndog 1e99 2\n", "dog|1e99|finite"),
    "ragged": ("v.txt", b"2 2\ncat 1 2\ndog 1\n", "line 3|:3|dog"),
    "text": ("v.txt", b"2 2\ncat 1 2\ndog a b\n", "dog|line 3|:3"),
    "count": ("v.txt", b"999999999999 2\ncat 1 2\n", "999"),
    "width": ("v.txt", b"1 999999999999\ncat 1 2\n", "v.txt"),
    "empty": ("v.txt", b"", "v.txt"),
    "binary cut off": ("v.bin", b"2 2\ncat \0\0\0\0", "v.bin"),
    "binary count": ("v.bin", b"99999999999999 300\ncat \0\0", "v.bin"),
    "binary width": ("v.bin", b"2 99999999999999\ncat \0\0", "v.bin"),
}


@pytest.mark.parametrize("case", VECTORS)
def test_vectors(case, rejects, tmp_path):
    name, content, match = VECTORS[case]
    (tmp_path / name).write_bytes(content)
    rejects("vectors", "import", tmp_path / name, "--out", tmp_path / "out", match=match)


ARPAS = {
    "nan": "\\data\\\nngram 1=2\n\n\\1-grams:\nnan\t<unk>\n-0.5\tcat\n\n\\end\\\n",
    "positive": "\\data\\\nngram 1=2\n\n\\1-grams:\n-1\t<unk>\n0.5\tcat\n\n\\end\\\n",
    "count": "\\data\\\nngram 1=999999999999\n\n\\1-grams:\n-1\t<unk>\n\n\\end\\\n",
    "order": "\\data\\\nngram 99999=1\n\n\\end\\\n",
    "no end": "\\data\\\nngram 1=1\n\n\\1-grams:\n-1\t<unk>\n",
    "missing number": "\\data\\\nngram 1=1\n\n\\1-grams:\n<unk>\n\n\\end\\\n",
    "text": "this is not ARPA",
}


@pytest.mark.parametrize("case", ARPAS)
def test_arpa(case, rejects, tmp_path):
    (tmp_path / "a.arpa").write_text(ARPAS[case])
    rejects("arpa", "import", tmp_path / "a.arpa", "--out", tmp_path / "out", match="a.arpa")


ARRAYS = {
    "header length": b"\x93NUMPY\x01\x00\xff\xff{}",
    "header code": b"\x93NUMPY\x01\x00\x20\x00__import__('os').system('x')   \n",
    "pickle": b"\x93NUMPY\x01\x00\x46\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }             \n",
    "shape": b"\x93NUMPY\x01\x00\x46\x00{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999,), }   \n",
    "empty": b"",
}


@pytest.mark.parametrize("case", ARRAYS)
def test_shards(case, rejects, project, tmp_path):
    corpus = shutil.copytree(project / "corpus-bert", tmp_path / "corpus")
    (corpus / "shard-00000.tokens.npy").write_bytes(ARRAYS[case])
    rejects("verify", corpus, match="shard-00000.tokens.npy")
    rejects("pretrain", project / "bert.json", "--corpus", corpus, "--out", tmp_path / "run", match="shard-00000")


# --- text ------------------------------------------------------------------------------------------------------------

ENCODINGS = {
    "UTF-16-LE without a mark": ("utf-16-le", "UTF-16"),
    "UTF-16-BE without a mark": ("utf-16-be", "UTF-16"),
    "UTF-32-LE without a mark": ("utf-32-le", "UTF-32"),
    "UTF-32 with a mark": ("utf-32", "UTF-32"),
    "UTF-16 with a mark": ("utf-16", "UTF-16"),
}


@pytest.mark.parametrize("case", ENCODINGS)
def test_encodings(case, rejects, project, tmp_path):
    encoding, match = ENCODINGS[case]
    (tmp_path / "a.txt").write_bytes(("The old cat sees the dog.\n" * 20).encode(encoding))
    rejects("prepare", tmp_path / "a.txt", "--tokenizer", project / "tok-bert", "--out", tmp_path / "out", match=match)
    rejects("tokenizer", "train", tmp_path / "a.txt", "--vocab-size", 300, "--out", tmp_path / "out", match=match)


def test_decompression_bomb(rejects, cli, project, tmp_path, monkeypatch):
    """A file of zeros expands a thousandfold; the floor is lowered, so that the test is fast."""
    from polyseme.io import compression

    monkeypatch.setattr(compression, "MIN_CHECKED_BYTES", 1 << 20)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"the cat\n" + b" " * (24 << 20)))
    rejects("prepare", tmp_path / "a.txt.gz", "--tokenizer", project / "tok-bert", "--out", tmp_path / "out",
            match=["a.txt.gz", "expand", "--allow-large"])  # fmt: skip
    assert cli("prepare", tmp_path / "a.txt.gz", "--tokenizer", project / "tok-bert", "--out", tmp_path / "out",
               "--allow-large").status == 0  # fmt: skip


def test_answers_are_finite(project):
    """No other test here would notice weights that are finite and overflow in the forward pass."""
    import polyseme
    from polyseme.errors import PolysemeError

    model = polyseme.load(project / "run-gpt2/model", device="cpu")
    with torch.no_grad():
        for parameter in model.model.parameters():
            parameter.fill_(3e38)
    with pytest.raises(PolysemeError, match="NaN"):
        print(model.score(["the cat sees the dog"]))
    with pytest.raises(PolysemeError, match="NaN"):
        print(np.asarray(model.embed(["the cat"])))
