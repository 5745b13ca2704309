"""`transformers` opens pruned folders, and computes the same; or it refuses them."""

import pytest
import torch
import transformers

from polyseme.compress import prune
from polyseme.inference.load import load_neural
from tests.support.hf_models import assert_same_outputs, load_hf_model

CLASSES = {
    "bert": "BertForPreTraining",
    "roberta": "RobertaForMaskedLM",
    "distilbert": "DistilBertForMaskedLM",
    "albert": "AlbertForPreTraining",
    "modernbert": "ModernBertForMaskedLM",
    "gpt2": "GPT2LMHeadModel",
}


@pytest.mark.parametrize("family", CLASSES)
def test_transformers_opens_fewer_layers_units_and_padded_heads(family, tiny_folders, tmp_path):
    folder = tiny_folders[family]
    steps = {"layers": {"layers": 1}, "ffn": {"ffn": 0.3}, "heads": {"heads": 1, "strategy": "random", "pad": True}}
    for name, options in steps.items():
        result = prune(folder, out=tmp_path / name, **options)
        folder = result.out
    model = load_neural(folder).model
    hf_model, problems = load_hf_model(getattr(transformers, CLASSES[family]), folder)
    assert not problems.keys() - {"unexpected_keys"}  # RobertaForMaskedLM does not read the pooler
    assert_same_outputs(model, hf_model)
    assert hf_model.config.num_hidden_layers == 2
    prune(folder, out=tmp_path / "fewer", heads=1, strategy="random")
    with pytest.raises(ValueError, match=f"{hf_model.config.model_type}-pruned"):
        transformers.AutoModel.from_pretrained(tmp_path / "fewer")


def test_transformers_opens_fewer_layers_units_and_heads_of_both_stacks(tiny_folders, tmp_path):
    """The config of T5 has the size of a head, so that heads are removed physically."""
    folder = tiny_folders["t5"]
    for part, amount in {"layers": 1, "ffn": 0.3, "heads": 1}.items():
        strategy = {"strategy": "random"} if part == "heads" else {}
        folder = prune(folder, out=tmp_path / part, **{part: amount}, **strategy).out
    network = load_neural(folder)
    hf_model, problems = load_hf_model(transformers.T5ForConditionalGeneration, folder)
    assert hf_model.config.num_heads == 2 and hf_model.config.d_kv == 8
    assert not problems and hf_model.config.num_layers == hf_model.config.num_decoder_layers == 2
    ids = torch.tensor([network.encode("the cat sat").input_ids])
    expected = hf_model.encoder(ids).last_hidden_state[0].mean(0).detach().numpy()
    assert network.embed("the cat sat") == pytest.approx(expected, abs=1e-5)
