"""GPT and GPT-2 against `transformers`: states, logits and gradients; GPT-3's sizes; what a banded folder says."""

import json

import pytest
import torch
import torch.nn.functional as F

from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.families.family import FIXED_LABELS
from polyseme.nn.attention.multihead import AttentionConfig
from polyseme.nn.inputs import Inputs
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.packing import PackedLayout
from polyseme.objectives.batch import Batch, Targets
from polyseme.objectives.losses import compute_losses
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.convert import from_published
from polyseme.weights.folder import load_model, save_model
from tests.contracts import cases
from tests.contracts.test_laws import LENGTHS as LAW_LENGTHS
from tests.contracts.test_laws import gradients

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

LENGTHS = (7, 3, 12, 12, 1)


def theirs_of(head: str):
    """A tiny model far from its start, where a swapped or dropped bias or norm would show."""
    gpt2 = head.startswith("GPT2")
    config = (transformers.GPT2Config if gpt2 else transformers.OpenAIGPTConfig)(
        vocab_size=99, n_embd=32, n_layer=3, n_head=4, n_positions=40, bos_token_id=0, eos_token_id=0, pad_token_id=0,
        **({"attn_implementation": "eager"} if gpt2 else {}),
    )  # fmt: skip
    torch.manual_seed(0)
    model = getattr(transformers, head)(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return model


def ours_of(theirs, family: str, names: tuple[str, ...]) -> Model:
    fam = FAMILIES[family]
    trunk = fam.from_hf_config(theirs.config.to_dict())
    known = fam.pretraining_heads(trunk)
    labels = ("LABEL_0", "LABEL_1")
    heads = {h: known.get(h) or fam.task_head(h, FIXED_LABELS.get(h, labels), trunk) for h in names}
    model = ModelConfig(family, trunk, heads).build().eval()
    shapes = {n: t.shape for n, t in model.state_dict().items()}
    model.load_state_dict(from_published(fam, model.config, shapes, theirs.state_dict(), "test"))
    return model


@pytest.mark.parametrize("family,head,names", [
    ("gpt", "OpenAIGPTLMHeadModel", ("next",)), ("gpt", "OpenAIGPTDoubleHeadsModel", ("next", "choice")),
    ("gpt", "OpenAIGPTForSequenceClassification", ("classify",)),
    ("gpt2", "GPT2LMHeadModel", ("next",)), ("gpt2", "GPT2DoubleHeadsModel", ("next", "choice")),
    ("gpt2", "GPT2ForQuestionAnswering", ("span",)),
])  # fmt: skip
def test_states_logits_and_gradients(family, head, names):
    theirs = theirs_of(head)
    model = ours_of(theirs, family, names)
    layout = PackedLayout.from_lengths(LENGTHS)
    tokens = torch.randint(1, 99, (layout.num_tokens,))
    extra = {"mc_token_ids": torch.tensor(LENGTHS) - 1} if "choice" in names else {}
    expected = theirs(
        input_ids=layout.pad(tokens), attention_mask=layout.attention_mask().long(), output_hidden_states=True, **extra
    )
    reading = model.trunk(Inputs(tokens, layout), layers=range(4))
    for depth, hidden in enumerate(expected.hidden_states):
        torch.testing.assert_close(reading.layers[depth], layout.unpad(hidden), atol=1e-5, rtol=0)
    wanted = {
        "next": lambda: layout.unpad(expected.logits),
        "choice": lambda: expected.mc_logits[:, None],
        "classify": lambda: expected.logits,
        "span": lambda: layout.unpad(torch.stack([expected.start_logits, expected.end_logits], -1)),
    }
    draw = torch.Generator().manual_seed(1)
    loss, targets = torch.zeros(()), {}
    for name in names:
        logits = wanted[name]()
        torch.testing.assert_close(model.predict(name, reading.hidden, layout), logits, atol=1e-5, rtol=1e-5)
        rows = torch.arange(len(logits))
        if name == "choice":  # two questions: of the first three sequences the second is right, of the others the last
            targets[name] = Targets(rows, torch.tensor([1, 1, 1, 4, 4]), 2)
            scores = logits[:, 0]
            loss = loss + F.cross_entropy(scores[None, :3], torch.tensor([1]))
            loss = loss + F.cross_entropy(scores[None, 3:], torch.tensor([1]))
            continue
        values = torch.randint(0, logits.shape[1], (len(logits),), generator=draw)
        loss = loss + F.cross_entropy(logits, values, reduction="sum")
        targets[name] = Targets(rows, values, len(values))
    loss.backward()
    sum(compute_losses(model, Batch(Inputs(tokens, layout), targets, layout.num_tokens)).values()).backward()
    found = {n: p.grad for n, p in model.named_parameters()}
    given = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}
    shapes = {n: g.shape for n, g in found.items()}
    for name, gradient in from_published(FAMILIES[family], model.config, shapes, given, "gradients").items():
        torch.testing.assert_close(found.pop(name), gradient, atol=1e-5, rtol=1e-5)
    assert not found


def test_a_file_may_keep_either_of_two_tied_names(tmp_path):
    """`OpenAIGPTDoubleHeadsModel` ties the table to the head, the other classes the head to the table."""
    theirs = theirs_of("OpenAIGPTDoubleHeadsModel")
    state = theirs.state_dict()
    table = state.pop("transformer.tokens_embed.weight")
    model = ours_of(theirs, "gpt", ("next", "choice"))
    shapes = {n: t.shape for n, t in model.state_dict().items()}
    found = from_published(FAMILIES["gpt"], model.config, shapes, state, "test")
    assert torch.equal(found["trunk.embeddings.tokens.weight"], table)


def test_settings_that_a_folder_cannot_hold():
    fam = FAMILIES["gpt"]
    with pytest.raises(PolysemeError, match=r"ffn_dim is 40: folders of GPT know only 4 × dim, 96 here"):
        fam.to_hf_config(cases.tiny_spec("gpt"))
    with pytest.raises(PolysemeError, match=r"afn is 'silu', but only 'gelu' or 'relu' is supported"):
        fam.from_hf_config({**fam.to_hf_config(fam.model_config("tiny")), "afn": "silu"})


# --- GPT-3 -----------------------------------------------------------------------------------------------------------

GPT3 = {  # what stands in table 2.1, and what these numbers come to
    "125m": (125e6, 125_226_240), "350m": (350e6, 355_871_744), "760m": (760e6, 760_300_032),
    "1.3b": (1.3e9, 1_315_723_264), "2.7b": (2.7e9, 2_651_553_280), "6.7b": (6.7e9, 6_658_404_352),
    "13b": (13.0e9, 12_853_386_240), "175b": (175.0e9, 174_604_259_328),
}  # fmt: skip


@pytest.mark.parametrize("size", list(GPT3))
def test_sizes_of_gpt3(size):
    """Built without memory. The counts lie within 2 % of the rounded ones of the paper."""
    published, exact = GPT3[size]
    spec = FAMILIES["gpt2"].model_config(f"gpt3-{size}")
    with torch.device("meta"):
        model = Model(spec)
    count = sum(p.numel() for p in model.parameters())
    assert count == exact and abs(count / published - 1) < 0.02
    assert spec.trunk.embeddings.max_len == 2048
    assert [b.attention.window for b in spec.trunk.block_configs] == [0, 256] * (spec.trunk.num_layers // 2)


def banded() -> Model:
    """A window shorter than the texts of the laws; weights as in `cases.tiny_model`."""
    spec = FAMILIES["gpt2"].model_config(num_layers=3, dim=24, num_heads=3, ffn_dim=40, vocab_size=61, max_len=32,
                                 window=2, dropout=0.0, attention_dropout=0.0)  # fmt: skip
    model = spec.build(seed=1).double().eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * 0.2)
    return model


def test_the_laws_hold_with_bands():
    model, rows = banded(), cases.sequences(LAW_LENGTHS)
    with torch.no_grad():
        together = model.trunk(Inputs(torch.cat(rows), PackedLayout.from_lengths(LAW_LENGTHS))).hidden.split(
            list(LAW_LENGTHS)
        )
        for row, found in zip(rows, together):
            n, cut = len(row), len(row) // 2
            torch.testing.assert_close(
                found, model.trunk(Inputs(row, PackedLayout.from_lengths([n]))).hidden, atol=1e-10, rtol=0
            )
            if cut:
                first = model.trunk(Inputs(row[:cut], PackedLayout.from_lengths([cut])), return_memory=True)
                rest = model.trunk(Inputs(row[cut:], PackedLayout.from_lengths([n - cut])), memory=first.memory)
                torch.testing.assert_close(torch.cat([first.hidden, rest.hidden]), found, atol=1e-10, rtol=0)
    whole = gradients(model, [cases.training_batch(model, rows)])
    parts = gradients(model, [cases.training_batch(model, [row]) for row in rows])
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], atol=1e-10, rtol=1e-10)


def test_a_band_ends_where_it_should():
    """One banded layer alone: a token 3 back changes nothing, one 2 back does."""
    attention = AttentionConfig(2, causal=True, window=2).build(8).double()
    x = torch.randn(10, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    layout = PackedLayout.from_lengths([10])
    with torch.no_grad():
        before = attention(x, layout, layout.positions)
        for back, changes in ((2, True), (3, False)):
            y = x.clone()
            y[9 - back] += 1
            assert bool((attention(y, layout, layout.positions)[9] != before[9]).any()) == changes


def test_a_banded_folder_is_ours_alone(tmp_path):
    """Another tool would read the bands as dense, so the folder has a type that it does not know."""
    tokenizer = Tokenizer.train("bpe", iter(["the old cat sees a dog"] * 9), 300)
    spec = FAMILIES["gpt2"].model_config(num_layers=2, dim=24, num_heads=3, vocab_size=tokenizer.vocab_size, max_len=32,
                                 window=4)  # fmt: skip
    model = spec.build(seed=0)
    save_model(tmp_path / "m", model, tokenizer)
    config = json.loads((tmp_path / "m/config.json").read_text())
    assert (config["model_type"], config["architectures"], config["window"]) == ("gpt3", [], 4)
    assert FAMILIES["gpt2"].from_hf_config(config) == spec.trunk
    with pytest.raises(ValueError, match="gpt3"):
        transformers.AutoModel.from_pretrained(tmp_path / "m")
    again = load_model(tmp_path / "m").model
    assert again.config == spec and all(torch.equal(t, again.state_dict()[n]) for n, t in model.state_dict().items())
    (tmp_path / "m/polyseme.json").unlink()
    with pytest.raises(PolysemeError, match="model_type 'gpt3' is no family here"):
        load_model(tmp_path / "m")
