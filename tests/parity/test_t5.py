"""T5 and T5 v1.1 against `transformers` with tiny random weights, and folders in both directions."""

import json

import pytest
import torch
from safetensors.torch import load_file

from polyseme.families import FAMILIES
from polyseme.nn.model import Model
from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout
from polyseme.objectives.batch import Batch, Targets
from polyseme.objectives.losses import compute_losses
from polyseme.weights.convert import from_published
from polyseme.weights.folder import load_model, save_model
from tests.support import hf_models
from tests.support.folders import remove_polyseme_files

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

VOCAB = 330
VERSIONS = {"v1.0": {}, "v1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}}
T5 = FAMILIES["t5"]


def build_hf_model(class_name="T5ForConditionalGeneration", version="v1.0", **changes):
    """Few buckets, so that the last ones are used; heads smaller than the states; stacks of different depth."""
    config = transformers.T5Config(
        vocab_size=VOCAB, d_model=32, d_kv=6, d_ff=48, num_layers=3, num_decoder_layers=2, num_heads=4,
        relative_attention_num_buckets=8, relative_attention_max_distance=14, decoder_start_token_id=0,
        **VERSIONS[version] | changes,
    )  # fmt: skip
    torch.manual_seed(0)
    model = getattr(transformers, class_name)(config).eval()
    if version == "v1.1" and hasattr(model, "lm_head"):
        model.lm_head.weight = torch.nn.Parameter(torch.randn(VOCAB, 32) * 0.1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5).add_(torch.randn_like(parameter) * 0.1)
    return model


def convert_model(hf_model) -> Model:
    tensors = hf_model.state_dict()
    if hf_model.config.scale_decoder_outputs:
        tensors = {k: t for k, t in tensors.items() if k != "lm_head.weight"}
    return hf_models.convert_model(hf_model, "t5", tensors=tensors)


def make_source_and_target():
    generator = torch.Generator().manual_seed(1)
    source, target = PackedLayout.from_lengths((31, 3, 12, 12, 1)), PackedLayout.from_lengths((4, 26, 7, 7, 2))
    return [(torch.randint(3, VOCAB, (side.num_tokens,), generator=generator), side) for side in (source, target)]


def make_hf_inputs(source, target):
    return {
        "input_ids": source[1].pad(source[0]),
        "attention_mask": source[1].attention_mask().long(),
        "decoder_input_ids": target[1].pad(target[0]),
    }


def assert_same_outputs(model: Model, hf_model) -> None:
    """Compare the states of both stacks at all layers, and the logits if there are any."""
    source, target = make_source_and_target()
    arguments = make_hf_inputs(source, target)
    if type(hf_model).__name__ == "T5EncoderModel":
        del arguments["decoder_input_ids"]
    with torch.no_grad():
        expected = hf_model(**arguments, output_hidden_states=True)
        encoded = model.trunk(Inputs(*source), layers=range(4))
        states = getattr(expected, "encoder_hidden_states", None) or expected.hidden_states
        for depth, hidden in enumerate(states):
            torch.testing.assert_close(encoded.layers[depth], source[1].unpad(hidden), atol=1e-5, rtol=0)
        if model.trunk.decoder is None:
            return
        output = model.trunk(Inputs(*target, source=EncoderInput(*source)), layers=range(3))
        for depth, hidden in enumerate(expected.decoder_hidden_states):
            torch.testing.assert_close(output.layers[depth], target[1].unpad(hidden), atol=1e-5, rtol=0)
        if hasattr(expected, "logits"):
            scores = model.predict("next", output.hidden, target[1])
            torch.testing.assert_close(scores, target[1].unpad(expected.logits), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("version", VERSIONS)
def test_states_and_logits_match(version):
    hf_model = build_hf_model(version=version)
    model = convert_model(hf_model)
    assert (model.heads["next"].decoder is None) == (version == "v1.0")
    assert_same_outputs(model, hf_model)


@pytest.mark.parametrize("version", VERSIONS)
def test_gradients_match(version):
    hf_model = build_hf_model(version=version)
    model = convert_model(hf_model)
    source, target = make_source_and_target()
    target_ids = (target[0] * 7 + 3) % VOCAB
    labels = target[1].pad(target_ids, -100)
    logits = hf_model(**make_hf_inputs(source, target)).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum").backward()
    targets = {"next": Targets(torch.arange(len(target_ids)), target_ids, len(target_ids))}
    compute_losses(model, Batch(Inputs(*target, None, source=EncoderInput(*source)), targets))["next"].backward()
    hf_grads = {
        name: p.grad for name, p in hf_model.named_parameters() if p.grad is not None and "embed_tokens" not in name
    }
    shapes = {name: p.shape for name, p in model.named_parameters()}
    expected = from_published(T5, model.config, shapes, hf_grads, "gradients")
    assert expected.keys() == shapes.keys()
    for name, p in model.named_parameters():
        size = max(expected[name].abs().max().item(), 1.0)
        torch.testing.assert_close(p.grad, expected[name], atol=1e-5 * size, rtol=1e-5)


@pytest.mark.parametrize("size", T5.sizes)
def test_parameter_counts_match(size):
    config = T5.to_hf_config(T5.model_config(size))
    del config["model_type"]
    with torch.device("meta"):
        hf_model = transformers.T5Model(transformers.T5Config(**config))
        model = Model(T5.model_config(size, with_heads=False))
    num_params = sum(p.numel() for p in model.parameters())
    assert num_params == sum(p.numel() for p in hf_model.parameters()) == T5.num_params.get(size, num_params)


# --- folders ---------------------------------------------------------------------------------------------------------


def load_hf_model(cls, folder):
    model, info = cls.from_pretrained(folder, output_loading_info=True)
    problems = {k: v for k, v in info.items() if v}
    return model.eval(), problems


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", T5.architectures)
def test_folders_load_in_both_directions(name, version, tiny_folders, tmp_path):
    hf_model = build_hf_model(name, version)
    hf_model.save_pretrained(tmp_path / "theirs")
    transformers.AutoTokenizer.from_pretrained(tiny_folders["t5"]).save_pretrained(tmp_path / "theirs")
    folder = load_model(tmp_path / "theirs")
    assert tuple(folder.model.heads) == T5.architectures[name] and not folder.newly_initialized
    assert (folder.model.trunk.decoder is None) == (name == "T5EncoderModel")
    assert_same_outputs(folder.model, hf_model)
    save_model(tmp_path / "ours", folder.model, folder.tokenizer)
    config = json.loads((tmp_path / "ours/config.json").read_text())
    assert config["architectures"] == [name]
    reloaded, problems = load_hf_model(getattr(transformers, name), tmp_path / "ours")
    assert not problems
    assert_same_outputs(folder.model, reloaded)
    if name == "T5ForConditionalGeneration":
        pad = folder.tokenizer.special_token_ids.pad
        assert config["decoder_start_token_id"] == config["pad_token_id"] == pad
        auto_model, problems = load_hf_model(transformers.AutoModelForSeq2SeqLM, tmp_path / "ours")
        assert not problems and type(auto_model) is type(hf_model)
    for parameter, reloaded_parameter in zip(
        folder.model.parameters(), load_model(tmp_path / "ours").model.parameters()
    ):
        assert torch.equal(parameter, reloaded_parameter)


def test_files_with_all_tied_names_load(tiny_folders, tmp_path):
    """Older files contain the token embeddings again for both stacks and the output."""
    folder = load_model(tiny_folders["t5"])
    save_model(tmp_path / "model", folder.model, folder.tokenizer)
    remove_polyseme_files(tmp_path / "model")
    path = tmp_path / "model/model.safetensors"
    tensors = load_file(path)
    from safetensors.torch import save_file

    legacy_name = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    tensors |= {name: tensors["shared.weight"].clone() for name in T5.tied_weights} | {legacy_name: torch.zeros(8, 3)}
    save_file(tensors, path, {"format": "pt"})
    reloaded = load_model(tmp_path / "model").model
    assert reloaded.heads["next"].decoder is None
    state = folder.model.state_dict()
    assert all(torch.equal(t, state[name]) for name, t in reloaded.state_dict().items())


def test_weight_maps_are_a_bijection():
    for size in ("tiny", "v1.1-small"):
        config = T5.model_config(size)
        weight_maps = [weight_map for weight_map in (*T5.weight_maps(config), *T5.head_weight_maps["next"])]
        names = [weight_map.name for weight_map in weight_maps]
        published_names = [name for weight_map in weight_maps for name in weight_map.published_names]
        assert len(set(names)) == len(names) and len(set(published_names)) == len(published_names)
