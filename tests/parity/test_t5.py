"""T5 and its v1.1 against `transformers` on tiny random weights, and both directions of its folders."""

import json

import pytest
import torch
from safetensors.torch import load_file

from polyseme.families import FAMILIES
from polyseme.nn.inputs import Inputs
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.packing import EncoderInput, PackedLayout
from polyseme.objectives.batch import Batch, Targets
from polyseme.objectives.losses import compute_losses
from polyseme.weights.convert import from_published
from polyseme.weights.folder import load_model, save_model

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

VOCAB = 330
VERSIONS = {"v1.0": {}, "v1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}}
T5 = FAMILIES["t5"]


def make(name="T5ForConditionalGeneration", version="v1.0", **changes):
    """Long enough for far buckets, heads that do not fill the states, stacks of different depth."""
    config = transformers.T5Config(
        vocab_size=VOCAB, d_model=32, d_kv=6, d_ff=48, num_layers=3, num_decoder_layers=2, num_heads=4,
        relative_attention_num_buckets=8, relative_attention_max_distance=14, decoder_start_token_id=0,
        **VERSIONS[version] | changes,
    )  # fmt: skip
    torch.manual_seed(0)
    model = getattr(transformers, name)(config).eval()
    if version == "v1.1" and hasattr(model, "lm_head"):
        model.lm_head.weight = torch.nn.Parameter(torch.randn(VOCAB, 32) * 0.1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5).add_(torch.randn_like(parameter) * 0.1)
    return model


def ours(theirs) -> Model:
    tensors = theirs.state_dict()
    if theirs.config.scale_decoder_outputs:
        tensors = {k: t for k, t in tensors.items() if k != "lm_head.weight"}
    trunk = T5.from_hf_config({**theirs.config.to_dict(), "tensors": list(tensors)})
    spec = ModelConfig("t5", trunk, T5.pretraining_heads(trunk))
    model = spec.build().eval()
    shapes = {n: t.shape for n, t in model.state_dict().items()}
    model.load_state_dict(from_published(T5, spec, shapes, tensors, "test"))
    return model


def sides():
    generator = torch.Generator().manual_seed(1)
    source, target = PackedLayout.from_lengths((31, 3, 12, 12, 1)), PackedLayout.from_lengths((4, 26, 7, 7, 2))
    return [(torch.randint(3, VOCAB, (side.num_tokens,), generator=generator), side) for side in (source, target)]


def given(source, target):
    return {
        "input_ids": source[1].pad(source[0]),
        "attention_mask": source[1].attention_mask().long(),
        "decoder_input_ids": target[1].pad(target[0]),
    }


def assert_same(model: Model, theirs) -> None:
    """States of both stacks at every depth, and logits where there are any."""
    source, target = sides()
    arguments = given(source, target)
    if type(theirs).__name__ == "T5EncoderModel":
        del arguments["decoder_input_ids"]
    with torch.no_grad():
        expected = theirs(**arguments, output_hidden_states=True)
        encoded = model.trunk(Inputs(*source), layers=range(4))
        states = getattr(expected, "encoder_hidden_states", None) or expected.hidden_states
        for depth, hidden in enumerate(states):
            torch.testing.assert_close(encoded.layers[depth], source[1].unpad(hidden), atol=1e-5, rtol=0)
        if model.trunk.decoder is None:
            return
        reading = model.trunk(Inputs(*target, source=EncoderInput(*source)), layers=range(3))
        for depth, hidden in enumerate(expected.decoder_hidden_states):
            torch.testing.assert_close(reading.layers[depth], target[1].unpad(hidden), atol=1e-5, rtol=0)
        if hasattr(expected, "logits"):
            scores = model.predict("next", reading.hidden, target[1])
            torch.testing.assert_close(scores, target[1].unpad(expected.logits), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("version", VERSIONS)
def test_states_and_logits(version):
    theirs = make(version=version)
    model = ours(theirs)
    assert (model.heads["next"].decoder is None) == (version == "v1.0")
    assert_same(model, theirs)


@pytest.mark.parametrize("version", VERSIONS)
def test_gradients_of_a_loss(version):
    theirs = make(version=version)
    model = ours(theirs)
    source, target = sides()
    values = (target[0] * 7 + 3) % VOCAB
    labels = target[1].pad(values, -100)
    logits = theirs(**given(source, target)).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum").backward()
    targets = {"next": Targets(torch.arange(len(values)), values, len(values))}
    compute_losses(model, Batch(Inputs(*target, None, source=EncoderInput(*source)), targets))["next"].backward()
    theirs_by_name = {
        name: p.grad for name, p in theirs.named_parameters() if p.grad is not None and "embed_tokens" not in name
    }
    shapes = {name: p.shape for name, p in model.named_parameters()}
    expected = from_published(T5, model.config, shapes, theirs_by_name, "gradients")
    assert expected.keys() == shapes.keys()
    for name, p in model.named_parameters():
        size = max(expected[name].abs().max().item(), 1.0)
        torch.testing.assert_close(p.grad, expected[name], atol=1e-5 * size, rtol=1e-5)


@pytest.mark.parametrize("size", T5.sizes)
def test_counts_are_those_of_transformers(size):
    config = T5.to_hf_config(T5.model_config(size))
    del config["model_type"]
    with torch.device("meta"):
        theirs = transformers.T5Model(transformers.T5Config(**config))
        model = Model(T5.model_config(size, with_heads=False))
    count = sum(p.numel() for p in model.parameters())
    assert count == sum(p.numel() for p in theirs.parameters()) == T5.num_params.get(size, count)


# --- folders ---------------------------------------------------------------------------------------------------------


def opened(cls, folder):
    model, info = cls.from_pretrained(folder, output_loading_info=True)
    trouble = {k: v for k, v in info.items() if v}
    return model.eval(), trouble


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", T5.architectures)
def test_folders_both_ways(name, version, tiny_folders, tmp_path):
    theirs = make(name, version)
    theirs.save_pretrained(tmp_path / "theirs")
    transformers.AutoTokenizer.from_pretrained(tiny_folders["t5"]).save_pretrained(tmp_path / "theirs")
    found = load_model(tmp_path / "theirs")
    assert tuple(found.model.heads) == T5.architectures[name] and not found.newly_initialized
    assert (found.model.trunk.decoder is None) == (name == "T5EncoderModel")
    assert_same(found.model, theirs)
    save_model(tmp_path / "ours", found.model, found.tokenizer)
    config = json.loads((tmp_path / "ours/config.json").read_text())
    assert config["architectures"] == [name]
    again, trouble = opened(getattr(transformers, name), tmp_path / "ours")
    assert not trouble
    assert_same(found.model, again)
    if name == "T5ForConditionalGeneration":
        pad = found.tokenizer.special_token_ids.pad
        assert config["decoder_start_token_id"] == config["pad_token_id"] == pad
        automatic, trouble = opened(transformers.AutoModelForSeq2SeqLM, tmp_path / "ours")
        assert not trouble and type(automatic) is type(theirs)
    for one, other in zip(found.model.parameters(), load_model(tmp_path / "ours").model.parameters()):
        assert torch.equal(one, other)


def test_files_with_every_tied_name(tiny_folders, tmp_path):
    """Older files repeat the token vectors for both stacks and the output."""
    folder = load_model(tiny_folders["t5"])
    save_model(tmp_path / "model", folder.model, folder.tokenizer)
    (tmp_path / "model/polyseme.json").unlink()
    path = tmp_path / "model/model.safetensors"
    tensors = load_file(path)
    from safetensors.torch import save_file

    old = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    tensors |= {name: tensors["shared.weight"].clone() for name in T5.tied_weights} | {old: torch.zeros(8, 3)}
    save_file(tensors, path, {"format": "pt"})
    again = load_model(tmp_path / "model").model
    assert again.heads["next"].decoder is None
    state = folder.model.state_dict()
    assert all(torch.equal(t, state[name]) for name, t in again.state_dict().items())


def test_the_weight_table_is_a_bijection():
    for size in ("tiny", "v1.1-small"):
        spec = T5.model_config(size)
        rules = [rule for rule in (*T5.weight_maps(spec), *T5.head_weight_maps["next"])]
        ours_names = [rule.name for rule in rules]
        theirs_names = [name for rule in rules for name in rule.published_names]
        assert len(set(ours_names)) == len(ours_names) and len(set(theirs_names)) == len(theirs_names)
