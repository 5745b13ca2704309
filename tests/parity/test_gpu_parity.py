"""GPU only: the same weights in Polyseme and `transformers`, in float32 and bfloat16, each with its kernels."""

import copy

import pytest
import torch

from polyseme.families import FAMILIES
from polyseme.nn.model import Model
from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout
from polyseme.train.loop import setup_device
from polyseme.weights.folder import load_model, save_model

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

FAMILY_NAMES = ["bert", "roberta", "albert", "distilbert", "modernbert", "gpt", "gpt2", "xlnet", "t5"]
TARGET_LENGTHS, SOURCE_LENGTHS = (7, 40, 12, 12, 1), (9, 5, 40, 40, 2)


@pytest.fixture(scope="module", params=FAMILY_NAMES)
def model_pair(request, tiny_folders, tmp_path_factory):
    """Our model and that of `transformers`, large enough for our kernels."""
    family = FAMILIES[request.param]
    tokenizer = load_model(tiny_folders[family.name]).tokenizer
    config = family.model_config(num_layers=3, dim=128, num_heads=2, vocab_size=tokenizer.vocab_size, max_len=48)
    model = config.build(seed=1)
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            generator = torch.Generator().manual_seed(i)
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    folder = tmp_path_factory.mktemp("both") / family.name
    save_model(folder, model, tokenizer, {})
    device = setup_device()
    return model.to(device).eval(), transformers.AutoModel.from_pretrained(folder).to(device).eval()


def make_tokens(lengths: tuple[int, ...], vocab_size: int, seed: int) -> tuple[torch.Tensor, PackedLayout]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(8, vocab_size, (sum(lengths),), generator=generator).to("cuda"), PackedLayout.from_lengths(
        lengths, device="cuda"
    )


def forward(model: Model) -> torch.Tensor:
    vocab_size = model.trunk.token_embeddings.shape[0]
    tokens, layout = make_tokens(TARGET_LENGTHS, vocab_size, 0)
    source = EncoderInput(*make_tokens(SOURCE_LENGTHS, vocab_size, 1)) if model.config.family == "t5" else None
    return model.trunk(Inputs(tokens, layout, source=source)).hidden


def forward_hf(model: torch.nn.Module, forward_fn=None) -> torch.Tensor:
    vocab_size = model.get_input_embeddings().weight.shape[0]
    tokens, layout = make_tokens(TARGET_LENGTHS, vocab_size, 0)
    inputs = {"input_ids": layout.pad(tokens), "attention_mask": layout.attention_mask().long()}
    if model.config.model_type == "t5":
        sources, source_layout = make_tokens(SOURCE_LENGTHS, vocab_size, 1)
        inputs = {"input_ids": source_layout.pad(sources), "attention_mask": source_layout.attention_mask().long(),
                 "decoder_input_ids": layout.pad(tokens)}  # fmt: skip
    if model.config.model_type in ("gpt2", "xlnet", "t5"):
        inputs["use_mems" if model.config.model_type == "xlnet" else "use_cache"] = False
    return layout.unpad((model if forward_fn is None else forward_fn)(**inputs).last_hidden_state)


def test_states_and_gradients_match_in_float32(model_pair):
    model, hf_model = model_pair
    hidden, expected = forward(model), forward_hf(hf_model)
    torch.testing.assert_close(hidden, expected, atol=1e-4, rtol=1e-4)
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(2)).to("cuda")
    (grad,) = torch.autograd.grad((hidden * weights).sum(), model.trunk.token_embeddings)
    (expected_grad,) = torch.autograd.grad((expected * weights).sum(), hf_model.get_input_embeddings().weight)
    torch.testing.assert_close(grad, expected_grad, atol=1e-4 * float(expected_grad.abs().max()), rtol=1e-4)


def test_bfloat16_error_is_not_larger_than_that_of_transformers(model_pair):
    """At most 1.25 times that of `transformers`, eager or compiled."""
    model, hf_model = model_pair
    with torch.no_grad():
        expected = forward_hf(hf_model)
        hf_bf16 = copy.deepcopy(hf_model).to(torch.bfloat16)
        torch.compiler.reset()
        hf_errors = [
            rms_error(forward_hf(hf_bf16), expected),
            rms_error(forward_hf(hf_bf16, torch.compile(hf_bf16)), expected),
        ]
        assert rms_error(forward(copy.deepcopy(model).to(torch.bfloat16)), expected) <= 1.25 * max(hf_errors)


def rms_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual.float() - expected).square().mean().sqrt())
