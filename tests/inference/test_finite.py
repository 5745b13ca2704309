"""NaN and infinity in weights and vectors are errors when they are loaded, and no answer is NaN."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import polyseme
from polyseme.errors import PolysemeError
from polyseme.inference.results import TextScore, check_answers
from polyseme.weights.finite import check_finite
from polyseme.word_vectors.files import read_vectors, write_vectors
from tests.support.folders import copy_unhashed


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite(value, tiny_folders, tmp_path, rejects):
    folder = copy_unhashed(tiny_folders["bert"], tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    name = sorted(tensors)[3]
    tensors[name].view(-1)[:2] = value
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(PolysemeError, match=f"{name}.* 2 of its .* values are NaN or infinite"):
        polyseme.load(folder)
    rejects("verify", folder, match=name)


def test_a_sum_that_overflows_is_no_error():
    check_finite({"large": torch.full((10,), 3e38), "integers": torch.arange(3)}, "x")
    with pytest.raises(PolysemeError, match="1 of its 3 values"):
        check_finite({"half": torch.tensor([1, float("inf"), 2], dtype=torch.bfloat16)}, "x")


@pytest.mark.parametrize("file_format", ["text", "binary", "glove"])
def test_vectors_that_are_not_finite(file_format, tmp_path):
    vectors = np.ones((3, 4), np.float32)
    vectors[1, 2] = np.nan
    write_vectors(tmp_path / "v", ["a", "bad", "c"], vectors, file_format)
    with pytest.raises(PolysemeError, match=r"the vectors of 1 words are NaN or infinite, such as 'bad'"):
        read_vectors(tmp_path / "v")


@pytest.mark.parametrize("header", ["3 999999999999", "9999999999999999999 4", "2 " + "9" * 5000])
def test_absurd_headers_of_vectors(header, tmp_path):
    (tmp_path / "v").write_text(f"{header}\na 1 2 3 4\nb 1 2 3 4\n")
    with pytest.raises(PolysemeError):
        read_vectors(tmp_path / "v")


@pytest.mark.parametrize("family,ask", [
    ("bert", lambda m: m.fill("the [MASK] sat")), ("bert", lambda m: m.score("the cat sat")),
    ("bert", lambda m: m.embed("the cat sat")), ("gpt2", lambda m: m.score(["the cat sat"])),
    ("gpt2", lambda m: m.generate("the cat", max_new_tokens=3, do_sample=False)),
    ("gpt2", lambda m: m.generate("the cat", max_new_tokens=3, temperature=0.8, seed=1)),
    ("gpt2", lambda m: m.rank_choices("the cat", ["sat", "ran"])),
])  # fmt: skip
def test_no_answer_is_nan(family, ask, tiny_folders):
    model = polyseme.load(tiny_folders[family], device="cpu")
    with torch.no_grad():
        for parameter in model.model.parameters():
            parameter.mul_(1e30)
    with pytest.raises(PolysemeError, match="NaN"):
        ask(model)


def test_infinite_scores_are_answers():
    answers = [np.array([1.0, -np.inf, np.inf]), TextScore(-np.inf, 2), {"a": (1, None, "nan")}]
    assert check_answers(answers, "x") is answers
    with pytest.raises(PolysemeError, match="NaN"):
        check_answers([TextScore(float("nan"), 2)], "x")
