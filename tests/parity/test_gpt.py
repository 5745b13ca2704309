"""GPT and GPT-2 against `transformers`: states, logits and gradients; GPT-3's sizes and banded attention."""

import json

import pytest
import torch
import torch.nn.functional as F

from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.nn.attention.multihead import AttentionConfig
from polyseme.nn.model import Model
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.objectives.batch import Batch, Targets
from polyseme.objectives.losses import compute_losses
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.convert import from_published
from polyseme.weights.folder import load_model, save_model
from tests.support import cases
from tests.support.folders import remove_polyseme_files
from tests.support.hf_models import convert_model, randomize

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

LENGTHS = (7, 3, 12, 12, 1)


def build_hf_model(head: str):
    """A tiny model with random biases and norms, so that a swapped or missing one is noticed."""
    is_gpt2 = head.startswith("GPT2")
    config = (transformers.GPT2Config if is_gpt2 else transformers.OpenAIGPTConfig)(
        vocab_size=99, n_embd=32, n_layer=3, n_head=4, n_positions=40, bos_token_id=0, eos_token_id=0, pad_token_id=0,
        **({"attn_implementation": "eager"} if is_gpt2 else {}),
    )  # fmt: skip
    torch.manual_seed(0)
    return randomize(getattr(transformers, head)(config).eval())


@pytest.mark.parametrize("family,head,head_names", [
    ("gpt", "OpenAIGPTLMHeadModel", ("next",)), ("gpt", "OpenAIGPTDoubleHeadsModel", ("next", "choice")),
    ("gpt", "OpenAIGPTForSequenceClassification", ("classify",)),
    ("gpt2", "GPT2LMHeadModel", ("next",)), ("gpt2", "GPT2DoubleHeadsModel", ("next", "choice")),
    ("gpt2", "GPT2ForQuestionAnswering", ("span",)),
])  # fmt: skip
def test_states_logits_and_gradients_match(family, head, head_names):
    hf_model = build_hf_model(head)
    model = convert_model(hf_model, family, head_names)
    layout = PackedLayout.from_lengths(LENGTHS)
    tokens = torch.randint(1, 99, (layout.num_tokens,))
    extra_inputs = {"mc_token_ids": torch.tensor(LENGTHS) - 1} if "choice" in head_names else {}
    expected = hf_model(
        input_ids=layout.pad(tokens),
        attention_mask=layout.attention_mask().long(),
        output_hidden_states=True,
        **extra_inputs,
    )
    output = model.trunk(Inputs(tokens, layout), layers=range(4))
    for depth, hidden in enumerate(expected.hidden_states):
        torch.testing.assert_close(output.layers[depth], layout.unpad(hidden), atol=1e-5, rtol=0)
    expected_logits = {
        "next": lambda: layout.unpad(expected.logits),
        "choice": lambda: expected.mc_logits[:, None],
        "classify": lambda: expected.logits,
        "span": lambda: layout.unpad(torch.stack([expected.start_logits, expected.end_logits], -1)),
    }
    generator = torch.Generator().manual_seed(1)
    loss, targets = torch.zeros(()), {}
    for name in head_names:
        logits = expected_logits[name]()
        torch.testing.assert_close(model.predict(name, output.hidden, layout), logits, atol=1e-5, rtol=1e-5)
        rows = torch.arange(len(logits))
        if (
            name == "choice"
        ):  # two questions: the second of the first three sequences is correct, and the last of the others
            targets[name] = Targets(rows, torch.tensor([1, 1, 1, 4, 4]), 2)
            scores = logits[:, 0]
            loss = loss + F.cross_entropy(scores[None, :3], torch.tensor([1]))
            loss = loss + F.cross_entropy(scores[None, 3:], torch.tensor([1]))
            continue
        labels = torch.randint(0, logits.shape[1], (len(logits),), generator=generator)
        loss = loss + F.cross_entropy(logits, labels, reduction="sum")
        targets[name] = Targets(rows, labels, len(labels))
    loss.backward()
    sum(compute_losses(model, Batch(Inputs(tokens, layout), targets, layout.num_tokens)).values()).backward()
    grads = {n: p.grad for n, p in model.named_parameters()}
    hf_grads = {n: p.grad for n, p in hf_model.named_parameters() if p.grad is not None}
    shapes = {n: g.shape for n, g in grads.items()}
    for name, expected_grad in from_published(FAMILIES[family], model.config, shapes, hf_grads, "gradients").items():
        torch.testing.assert_close(grads.pop(name), expected_grad, atol=1e-5, rtol=1e-5)
    assert not grads


def test_either_of_two_tied_names_is_accepted(tmp_path):
    """`OpenAIGPTDoubleHeadsModel` ties the table to the head, the other classes the head to the table."""
    hf_model = build_hf_model("OpenAIGPTDoubleHeadsModel")
    state = hf_model.state_dict()
    table = state.pop("transformer.tokens_embed.weight")
    model = convert_model(hf_model, "gpt", ("next", "choice"))
    shapes = {n: t.shape for n, t in model.state_dict().items()}
    converted = from_published(FAMILIES["gpt"], model.config, shapes, state, "test")
    assert torch.equal(converted["trunk.embeddings.tokens.weight"], table)


def test_unsupported_settings_are_rejected():
    family_spec = FAMILIES["gpt"]
    with pytest.raises(PolysemeError, match=r"ffn_dim is 40; the format of GPT only supports 4 × dim, here 96"):
        family_spec.to_hf_config(cases.tiny_spec("gpt"))
    with pytest.raises(PolysemeError, match=r"afn is 'silu', but only 'gelu' or 'relu' is supported"):
        family_spec.from_hf_config({**family_spec.to_hf_config(family_spec.model_config("tiny")), "afn": "silu"})


# --- GPT-3 -----------------------------------------------------------------------------------------------------------

GPT3_PARAMS = {  # parameters as printed in table 2.1, and exact counts
    "125m": (125e6, 125_226_240), "350m": (350e6, 355_871_744), "760m": (760e6, 760_300_032),
    "1.3b": (1.3e9, 1_315_723_264), "2.7b": (2.7e9, 2_651_553_280), "6.7b": (6.7e9, 6_658_404_352),
    "13b": (13.0e9, 12_853_386_240), "175b": (175.0e9, 174_604_259_328),
}  # fmt: skip


@pytest.mark.parametrize("size", list(GPT3_PARAMS))
def test_gpt3_sizes_have_the_published_parameters(size):
    """Counted on the meta device; within 2 % of the rounded numbers in the paper."""
    published, exact = GPT3_PARAMS[size]
    config = FAMILIES["gpt2"].model_config(f"gpt3-{size}")
    with torch.device("meta"):
        model = Model(config)
    num_params = sum(p.numel() for p in model.parameters())
    assert num_params == exact and abs(num_params / published - 1) < 0.02
    assert config.trunk.embeddings.max_len == 2048
    assert [b.attention.window for b in config.trunk.block_configs] == [0, 256] * (config.trunk.num_layers // 2)


def build_banded_model() -> Model:
    """A model whose window is shorter than the sequences; weights as in `cases.tiny_model`."""
    config = FAMILIES["gpt2"].model_config(num_layers=3, dim=24, num_heads=3, ffn_dim=40, vocab_size=61, max_len=32,
                                 window=2, dropout=0.0, attention_dropout=0.0)  # fmt: skip
    model = config.build(seed=1).double().eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * 0.2)
    return model


def test_laws_hold_with_banded_attention():
    model, rows = build_banded_model(), cases.sequences(cases.LENGTHS)
    with torch.no_grad():
        batched = model.trunk(Inputs(torch.cat(rows), PackedLayout.from_lengths(cases.LENGTHS))).hidden.split(
            list(cases.LENGTHS)
        )
        for row, expected in zip(rows, batched):
            n, split = len(row), len(row) // 2
            torch.testing.assert_close(
                expected, model.trunk(Inputs(row, PackedLayout.from_lengths([n]))).hidden, atol=1e-10, rtol=0
            )
            if split:
                first = model.trunk(Inputs(row[:split], PackedLayout.from_lengths([split])), return_memory=True)
                second = model.trunk(Inputs(row[split:], PackedLayout.from_lengths([n - split])), memory=first.memory)
                torch.testing.assert_close(torch.cat([first.hidden, second.hidden]), expected, atol=1e-10, rtol=0)
    batched_grads = cases.gradients(model, [cases.training_batch(model, rows)])
    summed_grads = cases.gradients(model, [cases.training_batch(model, [row]) for row in rows])
    for name in batched_grads:
        torch.testing.assert_close(summed_grads[name], batched_grads[name], atol=1e-10, rtol=1e-10)


def test_window_limits_attention():
    """With a window of 2, a token 3 positions back has no effect, one 2 positions back has."""
    attention = AttentionConfig(2, causal=True, window=2).build(8).double()
    x = torch.randn(10, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    layout = PackedLayout.from_lengths([10])
    with torch.no_grad():
        before = attention(x, layout, layout.positions, None, None)
        for distance, is_attended in ((2, True), (3, False)):
            y = x.clone()
            y[9 - distance] += 1
            assert bool((attention(y, layout, layout.positions, None, None)[9] != before[9]).any()) == is_attended


def test_banded_folder_is_rejected_by_transformers(tmp_path):
    """Other tools would load banded attention as dense, so the folder has a model type that they do not know."""
    tokenizer = Tokenizer.train("bpe", iter(["the old cat sees a dog"] * 9), 300)
    model_config = FAMILIES["gpt2"].model_config(
        num_layers=2, dim=24, num_heads=3, vocab_size=tokenizer.vocab_size, max_len=32, window=4
    )
    model = model_config.build(seed=0)
    save_model(tmp_path / "m", model, tokenizer)
    hf_config = json.loads((tmp_path / "m/config.json").read_text())
    assert (hf_config["model_type"], hf_config["architectures"], hf_config["window"]) == ("gpt3", [], 4)
    assert FAMILIES["gpt2"].from_hf_config(hf_config) == model_config.trunk
    with pytest.raises(ValueError, match="gpt3"):
        transformers.AutoModel.from_pretrained(tmp_path / "m")
    reloaded = load_model(tmp_path / "m").model
    assert reloaded.config == model_config and all(
        torch.equal(t, reloaded.state_dict()[n]) for n, t in model.state_dict().items()
    )
    remove_polyseme_files(tmp_path / "m")
    with pytest.raises(PolysemeError, match="model_type 'gpt3' is not supported"):
        load_model(tmp_path / "m")
