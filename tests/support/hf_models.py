"""Models of `transformers` with random weights, converted to ours for comparison."""

import functools
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from polyseme.families import FAMILIES
from polyseme.families.family import FIXED_LABELS
from polyseme.inference.verify import verify
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig
from polyseme.weights.convert import from_published
from polyseme.weights.folder import load_model, save_model

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

ENCODER_DECODERS = [f.name for f in FAMILIES.values() if isinstance(f.model_config().trunk, EncoderDecoderConfig)]

LENGTHS = (7, 3, 9)


def randomize(model: torch.nn.Module) -> torch.nn.Module:
    """Add noise to all parameters, so that a swapped or missing bias or norm is noticed."""
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def convert_model(
    hf_model,
    family_name: str,
    heads: tuple[str, ...] | None = None,
    labels: tuple[str, ...] = ("LABEL_0", "LABEL_1"),
    tensors: Mapping[str, torch.Tensor] | None = None,
) -> Model:
    """Return our model with the weights of a model of `transformers`; only the pooler may be missing.

    Its heads are `heads`, by default all pre-training heads.
    """
    family, tensors = FAMILIES[family_name], hf_model.state_dict() if tensors is None else tensors
    trunk = family.from_hf_config({**hf_model.config.to_dict(), "tensors": list(tensors)})
    pretraining_heads = family.pretraining_heads(trunk)
    head_configs = {
        name: pretraining_heads.get(name) or family.task_head(name, FIXED_LABELS.get(name, labels), trunk)
        for name in (pretraining_heads if heads is None else heads)
    }
    model = ModelConfig(family_name, trunk, head_configs).build().eval()
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    converted = from_published(family, model.config, shapes, tensors, "test")
    assert all(name.startswith("trunk.pooler.") for name in shapes.keys() - converted.keys())
    model.load_state_dict(converted, strict=False)
    return model


def make_batch(vocab_size, family):
    generator = torch.Generator().manual_seed(4)
    layout = PackedLayout.from_lengths(LENGTHS if family != "xlnet" else (7, 7, 7))  # XLNet pads on the left
    tokens = torch.randint(5, vocab_size, (layout.num_tokens,), generator=generator)
    segments = FAMILIES[family].model_config().trunk.num_segments
    return tokens, layout, (layout.positions > 3).long() if segments == 2 else None


def forward_hf(model, tokens, layout, segments):
    inputs = {"input_ids": layout.pad(tokens), "attention_mask": layout.attention_mask().long()}
    if segments is not None:
        inputs["token_type_ids"] = layout.pad(segments)
    if type(model).__name__.endswith("DoubleHeadsModel"):
        inputs["mc_token_ids"] = torch.tensor(layout.lengths) - 1
    if type(model).__name__.endswith("MultipleChoice"):  # each sequence is a single choice
        inputs = {name: value[:, None] for name, value in inputs.items()}
    with torch.no_grad():
        return model.eval()(**inputs)


def assert_same_outputs(model, hf_model, head_names=None):
    """Check that all heads, or the states, agree to 1e-5."""
    family = model.config.family
    tokens, layout, segments = make_batch(model.config.trunk.embeddings.vocab_size, family)
    expected = forward_hf(hf_model, tokens, layout, segments)
    with torch.no_grad():
        hidden = model.eval().trunk(Inputs(tokens, layout, segments)).hidden
        logits_by_head = {
            name: model.predict(name, hidden, layout)
            for name in model.heads
            if name in FAMILIES[family].head_weight_maps
        }
        pooled = model.trunk.pool(hidden, layout)
    hf_logits = getattr(expected, "logits", None)
    for name in head_names if head_names is not None else logits_by_head:
        if name == "masked":
            expected_logits = layout.unpad(
                expected.prediction_logits if hasattr(expected, "prediction_logits") else hf_logits
            )
        elif name == "pair":
            pair_keys = [n for n in ("seq_relationship_logits", "sop_logits") if hasattr(expected, n)]
            expected_logits = getattr(expected, pair_keys[0]) if pair_keys else hf_logits
        elif name == "choice" and hasattr(expected, "mc_logits"):
            expected_logits = expected.mc_logits[:, None]
        elif name in ("next", "tag"):
            expected_logits = layout.unpad(hf_logits)
        elif name == "span":
            expected_logits = layout.unpad(torch.stack([expected.start_logits, expected.end_logits], -1))
        else:
            expected_logits = hf_logits
        torch.testing.assert_close(logits_by_head[name], expected_logits, atol=1e-5, rtol=1e-5)
    if hasattr(expected, "last_hidden_state"):
        torch.testing.assert_close(hidden, layout.unpad(expected.last_hidden_state), atol=1e-5, rtol=0)
        if getattr(expected, "pooler_output", None) is not None:
            torch.testing.assert_close(pooled, expected.pooler_output, atol=1e-5, rtol=0)


def load_hf_model(cls, folder):
    """Load a model with `transformers`; return it and the problems reported."""
    model, info = cls.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    problems = {k: v for k, v in info.items() if v}
    return model.eval(), problems


def round_trip(model, tokenizer, folder, metadata=None):
    save_model(folder, model, tokenizer, metadata)
    reloaded = load_model(folder)
    assert reloaded.model.config == model.config and not reloaded.newly_initialized
    before, after = model.state_dict(), reloaded.model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[n], after[n]) for n in before)
    verify(folder)
    return reloaded


def build_hf_model(family, name, tiny_folders, **changes):
    config = transformers.AutoConfig.from_pretrained(tiny_folders[family])
    config.num_labels = 2 if "QuestionAnswering" in name or name.endswith("PreTraining") else 3
    config.attn_implementation = "eager"
    for key, value in changes.items():
        setattr(config, key, value)
    if family in ("gpt", "gpt2") and config.pad_token_id is None:
        config.pad_token_id = 0
    model = getattr(transformers, name)(config).eval()
    randomize(model)
    return model


def save_hf_model(model, family, tiny_folders, folder, **options):
    """Save model and tokenizer in one folder."""
    model.save_pretrained(folder, **options)
    shutil.copytree(_tokenizer_files(tiny_folders[family]), folder, dirs_exist_ok=True)
    return folder


@functools.cache
def _tokenizer_files(source: Path) -> Path:
    """Return a folder with the files of a tokenizer as `transformers` saves them."""
    folder = source.with_name(f"{source.name}-tokenizer")
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder
