"""Running out of memory: one line that says what to lower, and by how much."""

import pytest
import torch

import polyseme
from polyseme.errors import PolysemeError, convert_out_of_memory
from polyseme.nn.trunks.transformer import Transformer
from tests.support.runs import tiny_recipe

GPU_ERROR = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of …")
CPU_ERROR = RuntimeError("[enforce fail at alloc_cpu.cpp:119] err == 0. DefaultCPUAllocator: can't allocate memory: "
                         "you tried to allocate 4000000000 bytes. Error code 12")  # fmt: skip


@pytest.fixture
def full_memory(monkeypatch):
    """Let every forward pass fail with an error."""

    def fill(error):
        def forward(*args, **options):
            raise error

        monkeypatch.setattr(Transformer, "forward", forward)

    return fill


@pytest.mark.parametrize("error, start", [
    (GPU_ERROR, "out of GPU memory (it needed 20.00 MiB more): lower it"),
    (CPU_ERROR, "out of memory (it needed 4000000000 bytes more): lower it"),
    (RuntimeError("CUDA error: out of memory"), "out of GPU memory: lower it"),
    (MemoryError("Unable to allocate 7.45 GiB for an array"), "out of memory (it needed 7.45 GiB more): lower it"),
    (MemoryError(), "out of memory: lower it"),
])  # fmt: skip
def test_every_kind_of_error_is_converted(error, start):
    with pytest.raises(PolysemeError) as caught, convert_out_of_memory(lambda: "lower it"):
        raise error
    assert str(caught.value) == start
    with pytest.raises(RuntimeError, match="another"), convert_out_of_memory(lambda: "lower it"):
        raise RuntimeError("another")


def test_pretrain(project, tmp_path, full_memory):
    full_memory(GPU_ERROR)
    recipe = tiny_recipe("bert")
    advice = {
        "lower `micro_batch_tokens` from 256 to 128, or set `gradient_checkpointing` to true": {},
        "set `gradient_checkpointing` to true, or lower `max_len` from 32 to 16": {"micro_batch_tokens": 32},
        "lower `max_len` from 32 to 16": {"micro_batch_tokens": 32, "gradient_checkpointing": True},
    }
    for number, (text, changes) in enumerate(advice.items()):
        with pytest.raises(PolysemeError, match=f"memory .*: {text}.* and start in another folder$"):
            polyseme.pretrain(recipe.replace(**changes), project / "corpus-bert", tmp_path / f"run-{number}")
    assert not list(tmp_path.rglob(".*"))


def test_finetune(project, tmp_path, full_memory, cli):
    full_memory(CPU_ERROR)
    command = cli(
        "finetune", project / "run-bert/model", "--task", "classification", "--train",
        project / "classification-train.tsv", "--dev", project / "classification-dev.tsv", "--out", tmp_path / "run",
        "--set", "max_len=16",
    )  # fmt: skip
    start, error = command.err.splitlines()  # training had started
    assert command.status == 2 and start.startswith("lr 0.001, the default for a hidden size of 32")
    assert error.startswith("error: out of memory")
    assert "from 16384 to 8192, or `max_len` from 16 to 8, and start in another folder" in error


def test_loaded_model(project, full_memory):
    model = polyseme.load(project / "run-bert/model")
    expected = model.embed(["a cat", "a dog"])
    model.max_batch_tokens = 3
    assert torch.allclose(torch.as_tensor(model.embed(["a cat", "a dog"])), torch.as_tensor(expected), atol=1e-6)
    model.max_batch_tokens = 64
    full_memory(GPU_ERROR)
    for operation in (model.embed, model.score):
        with pytest.raises(PolysemeError, match="lower max_batch_tokens of the model from 64 to 32, or pass fewer or"):
            operation(["a cat"])


def test_any_command(project, monkeypatch, rejects):
    def fail(*args):
        raise MemoryError

    monkeypatch.setattr("polyseme.inference.verify.verify_corpus", fail)
    rejects("verify", project / "corpus-bert", match="out of memory: use a smaller model, or less data at once")
