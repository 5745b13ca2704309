"""On a GPU: the same weights here and in `transformers`, in float32 and in bfloat16, with the kernels of each."""

import copy

import pytest
import torch

from polyseme.families import FAMILIES
from polyseme.nn.inputs import Inputs
from polyseme.nn.model import Model
from polyseme.nn.packing import EncoderInput, PackedLayout
from polyseme.train.loop import setup_device
from polyseme.weights.folder import load_model, save_model

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

NAMES = ["bert", "roberta", "albert", "distilbert", "modernbert", "gpt", "gpt2", "xlnet", "t5"]
LENGTHS, SOURCES = (7, 40, 12, 12, 1), (9, 5, 40, 40, 2)


@pytest.fixture(scope="module", params=NAMES)
def both(request, tiny_folders, tmp_path_factory):
    """Our model and theirs, of a size at which our kernels are used."""
    family = FAMILIES[request.param]
    tokenizer = load_model(tiny_folders[family.name]).tokenizer
    spec = family.model_config(num_layers=3, dim=128, num_heads=2, vocab_size=tokenizer.vocab_size, max_len=48)
    model = spec.build(seed=1)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            draw = torch.Generator().manual_seed(number)
            parameter.add_(torch.randn(parameter.shape, generator=draw) * 0.05)
    folder = tmp_path_factory.mktemp("both") / family.name
    save_model(folder, model, tokenizer, {})
    device = setup_device()
    return model.to(device).eval(), transformers.AutoModel.from_pretrained(folder).to(device).eval()


def ids(lengths: tuple[int, ...], size: int, seed: int) -> tuple[torch.Tensor, PackedLayout]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(8, size, (sum(lengths),), generator=draw).to("cuda"), PackedLayout.from_lengths(
        lengths, device="cuda"
    )


def ours(model: Model) -> torch.Tensor:
    size = model.trunk.token_embeddings.shape[0]
    tokens, layout = ids(LENGTHS, size, 0)
    source = EncoderInput(*ids(SOURCES, size, 1)) if model.config.family == "t5" else None
    return model.trunk(Inputs(tokens, layout, source=source)).hidden


def theirs(model: torch.nn.Module, call=None) -> torch.Tensor:
    size = model.get_input_embeddings().weight.shape[0]
    tokens, layout = ids(LENGTHS, size, 0)
    given = {"input_ids": layout.pad(tokens), "attention_mask": layout.attention_mask().long()}
    if model.config.model_type == "t5":
        sources, around = ids(SOURCES, size, 1)
        given = {"input_ids": around.pad(sources), "attention_mask": around.attention_mask().long(),
                 "decoder_input_ids": layout.pad(tokens)}  # fmt: skip
    if model.config.model_type in ("gpt2", "xlnet", "t5"):
        given["use_mems" if model.config.model_type == "xlnet" else "use_cache"] = False
    return layout.unpad((model if call is None else call)(**given).last_hidden_state)


def test_states_and_gradients_in_float32(both):
    model, peer = both
    found, expected = ours(model), theirs(peer)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(2)).to("cuda")
    (mine,) = torch.autograd.grad((found * weights).sum(), model.trunk.token_embeddings)
    (other,) = torch.autograd.grad((expected * weights).sum(), peer.get_input_embeddings().weight)
    torch.testing.assert_close(mine, other, atol=1e-4 * float(other.abs().max()), rtol=1e-4)


def test_bfloat16_is_as_near_to_float32_as_theirs(both):
    """No further than the peer's own, eager and compiled."""
    model, peer = both
    with torch.no_grad():
        truth = theirs(peer)
        half = copy.deepcopy(peer).to(torch.bfloat16)
        torch.compiler.reset()
        allowed = [apart(theirs(half), truth), apart(theirs(half, torch.compile(half)), truth)]
        assert apart(ours(copy.deepcopy(model).to(torch.bfloat16)), truth) <= 1.25 * max(allowed)


def apart(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found.float() - truth).square().mean().sqrt())
