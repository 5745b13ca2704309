"""Recurrent and window models end to end: trained, resumed, scored, embedded, fine-tuned, explained."""

import json
import math

import numpy as np
import pytest
import torch

import polyseme
from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.corpus.store import Corpus
from polyseme.errors import PolysemeError
from polyseme.evaluation.context_length import (
    evaluate_segments,
    evaluate_sliding_window,
    losses_by_context,
    relative_effective_contexts,
)
from polyseme.explain.gradients import gradients_by_distance
from polyseme.families import FAMILIES
from polyseme.inference.neural_lm import NeuralLM
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import load_model, read_model_config, save_model
from tests.support import cases
from tests.support.text import documents, task_rows

# a recipe, what is changed in it
RUNS = {
    "rnn": ("rnn_lm-tiny", ["model.cell=rnn", "model.dim=32"]),
    "gru": (
        "rnn_lm-tiny",
        ["model.cell=gru", "model.dim=32", "model.variational_dropout=true", "model.weight_dropout=0.2"],
    ),
    "lstm": ("rnn_lm-tiny", ["model.dim=32", "objective.bptt_std=3"]),
    "backward": ("rnn_lm-tiny", ["model.dim=32", "model.direction=backward", "objective.direction=backward"]),
    "both": (
        "rnn_lm-tiny",
        ["model.dim=32", "model.direction=both", 'objective={"kind": "CausalLM", "direction": "both"}'],
    ),
    "nnlm": ("nnlm-tiny", ["model.dim=16", "model.hidden_dim=32", "model.direct_connections=true"]),
}


@pytest.fixture(scope="module")
def runs(run_cli, tmp_path_factory):
    """Prepare a small corpus and run each recipe by its command."""
    folder = tmp_path_factory.mktemp("recurrent")
    (folder / "text.txt").write_text("\n\n".join(documents()))
    tokenizer = Tokenizer.train("bpe", iter(documents()), 320)
    prepare([folder / "text.txt"], tokenizer, folder / "corpus", PrepareConfig(split="blank", num_workers=1))
    usual = ["budget.steps=60", "batch_tokens=512", "micro_batch_tokens=512", "max_len=16", "valid_fraction=0.1",
             "schedule.warmup=5", "optimizer.lr=0.03", "save_every=100", "eval_every=100"]  # fmt: skip
    for name, (recipe, changes) in RUNS.items():
        given = [part for change in (*usual, *changes) for part in ("--set", change)]
        run_cli("pretrain", recipe, "--corpus", folder / "corpus", "--out", folder / name, *given)
    for seed, part in enumerate(("train", "dev")):
        (folder / f"{part}.tsv").write_text(task_rows("classification", 24, seed))
    return folder


@pytest.mark.parametrize("name", RUNS)
def test_it_learns_more_than_frequencies(name, runs):
    """The validation loss is below the unigram entropy of the text."""
    counts = np.bincount(Corpus.open(runs / "corpus").gather_tokens(np.array([0]), np.array([1500])))
    shares = counts[counts > 0] / counts.sum()
    results = json.loads((runs / name / "results.json").read_text())
    found = [results["valid"][term] for term in ("next", "previous") if term in results["valid"]]
    assert len(found) == 1 + (name == "both") and max(found) < -(shares * np.log(shares)).sum() - 0.5
    assert results["valid"]["perplexity"] == pytest.approx(math.exp(sum(found) / len(found)))


@pytest.mark.parametrize("name", RUNS)
def test_commands_read_it(name, runs, run_cli, tmp_path):
    """A text scores higher than its shuffled words, also backward; embeddings; a fine-tuned task."""
    model = runs / name / "model"
    (tmp_path / "texts.txt").write_text("The old cat sees the grey dog in the river.\nCat the old sees dog river.\n")
    rows = [json.loads(row) for row in run_cli("score", model, "--data", tmp_path / "texts.txt", "--json").splitlines()]
    assert rows[0]["perplexity"] < rows[1]["perplexity"]
    run_cli("embed", model, "--data", tmp_path / "texts.txt", "--out", tmp_path / "v.npz", "--layers", "embeddings")
    sizes = {"nnlm": 16, "both": 64}  # in both directions, the tokens' vectors once for each
    assert np.load(tmp_path / "v.npz")["vectors"].shape == (2, sizes.get(name, 32))
    files = [runs / f"{part}.tsv" for part in ("train", "dev")]
    run_cli("finetune", model, "--task", "classification", "--train", files[0], "--dev", files[1], "--out",
         tmp_path / "task", "--set", "epochs=1")  # fmt: skip
    run_cli("predict", tmp_path / "task/model", "--data", files[1], "--out", tmp_path / "predicted.tsv")


def test_folders_without_our_file_are_read_from_their_config(runs, tmp_path):
    for name in RUNS:
        spec, _ = read_model_config(runs / name / "model")
        family = FAMILIES[spec.family]
        assert family.from_hf_config(family.to_hf_config(spec)) == spec.trunk


def test_gradients_by_distance(runs, run_cli, rejects, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(documents(20, seed=9)) + "\n")
    folders = [runs / name / "model" for name in ("rnn", "lstm", "nnlm")]
    picture = tmp_path / "picture.svg"
    said = run_cli("gradients", *folders, "--data", tmp_path / "texts.txt", "--out", picture, "--max-distance", 20)
    assert "rnn_lm rnn" in said and "nnlm" in said and "<svg" in picture.read_text()
    curves = {
        name: gradients_by_distance(polyseme.load(runs / name / "model", "cpu"), documents(20, seed=9), 20)
        for name in ("rnn", "lstm", "nnlm")
    }
    assert (curves["nnlm"][:5] > 0).all() and (curves["nnlm"][5:] == 0).all(), "the window has five tokens"
    assert curves["rnn"][20] < 0.05 * curves["rnn"][0] and curves["lstm"][20] > 0
    args = ("--data", tmp_path / "texts.txt", "--out")
    rejects("gradients", runs / "backward/model", *args, tmp_path / "p.svg", match="is not a causal language model")
    rejects("gradients", runs / "rnn/model", *args, tmp_path / "p.png", match="does not end in .svg")
    rejects("gradients", runs / "rnn/model", *args, tmp_path / "p.svg", "--max-distance", 10**6, match="tokens")
    rejects("gradients", runs / "rnn/model", *args, tmp_path / "p.svg", "--max-distance", 0, match="max_distance is 0")


def test_gradients_are_those_of_the_last_prediction(runs):
    """Compare with autograd on one window."""
    opened = polyseme.load(runs / "gru/model", "cpu")
    text = documents(3, seed=9)
    ids = torch.tensor([token for each in text for token in opened.tokenizer.encode(each)])
    found = gradients_by_distance(opened, text, 6, num_windows=1)
    cell, network = opened.model.trunk.stacks[0][0].cells[0], opened.model
    x = network.trunk.token_embeddings.index_select(0, ids[:7]).detach().requires_grad_()
    gru = torch.nn.GRU(32, 32)
    gru.load_state_dict({f"{name}_l0": weight for name, weight in cell.named_parameters()})
    scores = network.heads["next"](gru(x)[0][-1:], network.trunk.token_embeddings)
    torch.nn.functional.cross_entropy(scores, ids[7:8]).backward()
    np.testing.assert_allclose(found, x.grad.norm(dim=-1).flip(0), rtol=1e-4)


def test_no_attention_to_show(runs):
    with pytest.raises(PolysemeError, match="cannot show attention: it is a rnn_lm model"):
        polyseme.load(runs / "lstm/model", "cpu").attention("the cat")


def test_both_directions_are_the_mean_of_two(tmp_path, tiny_folders):
    """A bidirectional model scores like its two directions alone."""
    tokenizer = load_model(tiny_folders["rnn_lm"]).tokenizer
    spec = FAMILIES["rnn_lm"].model_config(num_layers=2, dim=12, vocab_size=tokenizer.vocab_size, direction="both")
    save_model(tmp_path / "both", spec.build(seed=3), tokenizer)
    opened = NeuralLM(load_model(tmp_path / "both"), "cpu")
    text = "the old cat sees the dog"
    ids = tokenizer.encode(text)
    eos, network = tokenizer.special_token_ids.eos, opened.model
    layout, total = PackedLayout.from_lengths([len(ids)]), 0.0
    for head, read in (("next", [eos, *ids[:-1]]), ("previous", [*ids[1:], eos])):
        with torch.no_grad():
            scores = network.predict(
                head, network.trunk(Inputs(torch.tensor(read), layout)).hidden, layout
            ).log_softmax(-1)
        total += float(scores.gather(1, torch.tensor(ids)[:, None]).sum())
    (score,) = opened.score([text])
    assert score.log_prob == pytest.approx(total / 2, rel=1e-5) and score.num_tokens == len(ids)
    assert opened.embed([text], "last").shape == (1, 24)
    assert opened.embed([text], "all").shape == (1, 3, 24)  # the tokens' vectors stand there for each direction
    (found,) = opened.rank_choices("the old", [" cat"]).scores  # by the half that reads forwards
    with torch.no_grad():
        ids = [eos, *tokenizer.encode("the old cat")]
        layout = PackedLayout.from_lengths([len(ids) - 1])
        scores = network.predict(
            "next", network.trunk(Inputs(torch.tensor(ids[:-1]), layout)).hidden, layout
        ).log_softmax(-1)
    expected = scores.gather(1, torch.tensor(ids[1:])[:, None])[-found.num_tokens :].sum()
    assert found.log_prob == pytest.approx(float(expected), rel=1e-5)


TEXT = cases.sequences((120,), seed=4)[0]


def test_a_state_reads_a_text_in_segments_of_any_size():
    model = cases.tiny_model("rnn_lm")
    found = [evaluate_segments(model, TEXT, segment).loss for segment in (1, 5, 32)]
    assert found[1:] == pytest.approx(found[:1] * 2, rel=1e-6)
    assert evaluate_sliding_window(cases.tiny_model("nnlm"), TEXT, 5).loss == pytest.approx(
        evaluate_segments(cases.tiny_model("nnlm"), TEXT, 7).loss, rel=1e-6
    )
    with pytest.raises(PolysemeError, match="read it by windows"):
        evaluate_segments(cases.tiny_model("gpt2"), TEXT, 5)


def test_losses_by_context():
    """A window model gains nothing from context beyond its window."""
    places = torch.arange(40, 100, 7)
    found = losses_by_context(cases.tiny_model("nnlm"), TEXT, places, [2, 5, 9, 40], max_batch_tokens=64)
    assert torch.allclose(found[1], found[2]) and not torch.equal(*found[:2])
    assert torch.allclose(found[1], found[3]) and found.shape == (4, len(places))
    whole = evaluate_sliding_window(cases.tiny_model("gpt2"), TEXT[20:41], 20)
    one = losses_by_context(cases.tiny_model("gpt2"), TEXT, torch.arange(21, 41), [20])
    assert one.shape == (1, 20) and whole.num_tokens == 20


def test_effective_contexts_by_hand():
    """The context grows by ten tokens; a gain is relative to the best of the group, on the hardest tokens."""
    even = torch.ones(10)
    losses = {
        "far": torch.stack([3.0 * even, 2.0 * even, 1.5 * even, 1.0 * even]),
        "near": torch.stack([2.5 * even, 2.2 * even, 2.19 * even, 2.19 * even]),
    }
    assert relative_effective_contexts(losses, [10, 20, 30, 40]) == {"far": 40, "near": 20}
    assert relative_effective_contexts(losses, [10, 20, 30, 40], threshold=0.3) == {"far": 10, "near": 10}
    hard = losses["near"].clone()
    hard[2, 0] = 1.0  # one token of ten gains
    hard[:2, 0] = 2.6
    best = {"near": hard, "flat": 2.6 * torch.ones(4, 10)}
    assert relative_effective_contexts(best, [10, 20, 30, 40], hardest_fraction=0.1)["near"] == 10, (
        "no gain from 10 to 20 where it is hard"
    )
