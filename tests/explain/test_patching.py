"""Activation patching: against hooks on models of `transformers`, and its exact cases in every family."""

import doctest
import json
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

import polyseme
from polyseme.explain import logit_lens, patching
from polyseme.explain.lm_input import lm_heads, read_text
from polyseme.explain.patching.patch import (
    _copies,
    _states_at,
    logit_difference,
    patch_activations,
    replaced_states,
    transformer_sites,
)
from polyseme.families import FAMILIES
from polyseme.nn.trunks.transformer import TransformerConfig
from tests.support.small_models import save_small_model

TRANSFORMERS = [name for name, family in FAMILIES.items() if isinstance(family.model_config().trunk, TransformerConfig)]
TOKENS = (7, 11)  # whose logits are compared


def inputs_of(network, text="the old cat sees the dog", changed=2):
    """A text, with a mask for a masked model, and the same with another token at one position."""
    if "masked" in network.model.heads:
        text = text.replace("sees", network.tokenizer.mask_token)
    first = read_text(network, text, lm_heads(network, text)[0])
    ids = first.ids.copy()
    ids[changed] = next(i for i in range(20, 99) if i != ids[changed] and i not in network.tokenizer.all_special_ids)
    return first, replace(first, ids=ids)


@pytest.mark.parametrize("family", TRANSFORMERS)
def test_all_positions_of_a_layer_carry_the_whole_difference(family, tiny_folders):
    network = polyseme.load(tiny_folders[family], "cpu")
    first, second = inputs_of(network)
    outcome = patch_activations(first, second, TOKENS)
    low, high = outcome.differences
    with torch.inference_mode():
        for site in transformer_sites(network.model.trunk)["residual"]:
            states = _states_at(second, site)
            with replaced_states(site, torch.arange(len(states)), states):
                patched = logit_difference(first, *_copies(first, 1), TOKENS)
            assert (float(patched) - low) / (high - low) == pytest.approx(1, abs=1e-5)
    effects = outcome.effects["residual"]
    assert effects[0, 2] == pytest.approx(1, abs=1e-4) and (np.delete(effects[0], 2) == 0).all()
    predicted = first.positions[-1] - (family == "gpt-bert")  # whose masked head reads the state before
    assert effects[-1, predicted] == pytest.approx(1, abs=1e-4)
    assert np.abs(np.delete(effects[-1], predicted)).max() < 1e-4
    if network.model.config.trunk.causal:
        assert all((values[:, :2] == 0).all() for values in outcome.effects.values()), "before the difference"


@pytest.mark.parametrize("family,name", [("bert", "BertForMaskedLM"), ("gpt2", "GPT2LMHeadModel")])
def test_effects_equal_those_of_hooks_in_transformers(family, name, tiny_folders):
    hf_models = pytest.importorskip("tests.support.hf_models")
    network = polyseme.load(tiny_folders[family], "cpu")
    model = getattr(hf_models.transformers, name).from_pretrained(tiny_folders[family]).eval()
    stack = model.bert if family == "bert" else model.transformer
    embed, blocks = (stack.embeddings, stack.encoder.layer) if family == "bert" else (stack.drop, stack.h)
    first, second = inputs_of(network)
    row = int(first.positions[-1])

    def difference(ids, module=None, position=0, value=None):
        def patch(module, args, output):
            hidden = output[0] if isinstance(output, tuple) else output
            hidden[0, position] = value
            return output

        hook = module.register_forward_hook(patch) if module is not None else None
        with torch.no_grad():
            logits = model(torch.from_numpy(ids)[None]).logits[0, row]
        if hook:
            hook.remove()
        return float(logits[TOKENS[0]] - logits[TOKENS[1]])

    low, high = difference(first.ids), difference(second.ids)
    with torch.no_grad():
        states = stack(torch.from_numpy(second.ids)[None], output_hidden_states=True).hidden_states
    modules = [embed, *blocks]
    last = len(blocks) if family == "bert" else len(blocks) - 1  # GPT-2's last states are after its final norm
    expected = [
        [(difference(first.ids, modules[i], p, states[i][0, p]) - low) / (high - low) for p in range(len(first.ids))]
        for i in range(last + 1)
    ]
    outcome = patch_activations(first, second, TOKENS)
    assert outcome.differences == pytest.approx((low, high), abs=1e-4)
    np.testing.assert_allclose(outcome.effects["residual"][: last + 1], expected, rtol=1e-3, atol=1e-4)


def test_equal_texts_have_no_effect_to_locate(tiny_folders):
    first, _ = inputs_of(polyseme.load(tiny_folders["bert"], "cpu"))
    with pytest.raises(polyseme.DataError, match="no effect to locate"):
        patch_activations(first, first, TOKENS)


def test_state_of_a_recurrent_model_carries_all_that_was_read(tmp_path):
    """With one layer, its state after the different token decides; the last token passes on none."""
    network = polyseme.load(save_small_model(tmp_path / "rnn", "rnn_lm"), "cpu")
    effects = patch_activations(*inputs_of(network), TOKENS).effects["state"]
    np.testing.assert_allclose(effects[0], [0, 0, *[1] * (effects.shape[1] - 3), 0], atol=1e-5)


def test_command_writes_page_numbers_and_figures(tiny_folders, run_cli, rejects, tmp_path):
    texts = ("--text", "the old [MASK] sees the dog", "--text-b", "the grey [MASK] sees the dog")
    tokens = ("--attribute", "cat", "--contrast", "dog")
    printed = run_cli("explain", tiny_folders["bert"], "--patch", *texts, *tokens, "--out", tmp_path / "p.html")
    assert "The logit of 'cat' minus that of 'dog' is" in printed
    record = json.loads((tmp_path / "p.json").read_text())
    assert np.array(record["effects"]["residual"]).shape == (4, len(record["pairs"][0]["tokens"][0]))
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == [
        *("p-attention.svg", "p-ffn.svg", "p-positions.svg", "p-residual.svg")
    ]
    start = ("explain", tiny_folders["bert"], "--patch", "--text", "the old [MASK]")
    rejects(*start, "--text-b", "the old grey [MASK]", *tokens, match=[r"\[CLS\] the old \[MASK\]", "grey", "5 and 6"])
    rejects(*start, "--text-b", "the old [MASK]", *tokens, match="the same tokens")
    rejects(*start, "--text-b", "the [MASK] old", *tokens, match="predict at different positions")
    rejects(*start, "--text-b", "the old cat", *tokens, match=r"there are 0 \[MASK\]")
    qqqq = ("--attribute", "qqqq", "--contrast", "dog")
    rejects(*start, "--text-b", "the grey [MASK]", *qqqq, match="4 tokens of the model")
    rejects(*start, "--text-b", "the grey [MASK]", "--attribute", "dog", "--contrast", "dog", match="the same token")
    rejects(
        "explain",
        tiny_folders["t5"],
        "--patch",
        *texts,
        *tokens,
        match="cannot show activation patching; it can show attention",
    )


def test_effects_of_pairs_are_averaged(tiny_folders, run_cli, rejects, tmp_path):
    start = ("explain", tiny_folders["bert"], "--patch")
    rows = [
        "text\ttext_b\tlabel\tcontrast",
        "the old [MASK]\tthe grey [MASK]\tcat\tdog",
        "the cat [MASK]\tthe dog [MASK]\told\tgrey",
    ]
    (tmp_path / "pairs.tsv").write_text("\n".join(rows))
    run_cli(*start, "--data", tmp_path / "pairs.tsv", "--out", tmp_path / "p.html")
    record = json.loads((tmp_path / "p.json").read_text())
    assert record["labels"] == ["[CLS]", "the", "old/… → grey/…", "[MASK] ◂", "[SEP]"]
    for component, mean in record["effects"].items():
        np.testing.assert_allclose(mean, np.mean([pair["effects"][component] for pair in record["pairs"]], axis=0))
    assert "and 1 more pairs, averaged" in (tmp_path / "p.html").read_text()
    rejects(*start, "--data", tmp_path / "pairs.tsv", "--text", "a", match="not both")
    rejects(*start, "--text", "a", match="--patch needs --text-b, or pairs of texts as --data")
    (tmp_path / "long.tsv").write_text("\n".join([*rows, "the old old [MASK]\tthe old grey [MASK]\tcat\tdog"]))
    rejects(
        *start, "--data", tmp_path / "long.tsv", match="pair 3: it has 6 tokens and predicts at 4, the first pair 5"
    )
    (tmp_path / "short.tsv").write_text("text\ttext_b\na\tb")
    rejects(*start, "--data", tmp_path / "short.tsv", match=r"short.tsv:2: there is no key 'label'")


def test_examples_of_docstrings_run(tiny_folders):
    functions = {each.__name__: each for each in (logit_lens.explain_logit_lens, patching.explain_patching)}
    names = {"model": polyseme.load(tiny_folders["bert"], "cpu"), **functions}
    for name, function in functions.items():
        (test,) = doctest.DocTestFinder(recurse=False).find(function, name, globs=names)
        assert test.examples and not doctest.DocTestRunner().run(test).failed


def test_other_threads_may_use_the_model_meanwhile(tiny_folders):
    model = polyseme.load(tiny_folders["bert"], "cpu")
    expected, vectors, stop = model.embed("the cat"), [], threading.Event()

    def embed():
        while not stop.is_set():
            vectors.append(model.embed("the cat"))

    thread = threading.Thread(target=embed)
    thread.start()
    for _ in range(3):
        patching.explain_patching(model, "the old [MASK] sees", "the grey [MASK] sees", "cat", "dog")
    stop.set()
    thread.join()
    assert len(vectors) > 1 and all(np.array_equal(each, expected) for each in vectors)
