"""Translation by its commands, from pairs to scores, on a toy language with a known dictionary."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file

import polyseme
from polyseme.errors import PolysemeError
from polyseme.generation.config import GenerationConfig
from polyseme.tasks.metrics.translation import score_translations
from tests.support.commands import run_cli
from tests.support.text import ADJECTIVES, ANIMALS, PLACES, VERBS

WORDS = {word: f"{word[::-1]}o" for word in (*ANIMALS, *VERBS, *ADJECTIVES, *PLACES)}
RECIPE = {
    "name": "toy", "family": "transformer", "model": {"num_layers": 1, "dim": 48, "num_heads": 4, "dropout": 0.0},
    "objective": {"kind": "Translation"}, "max_len": 48, "batch_tokens": 768, "micro_batch_tokens": 768,
    "budget": {"steps": 140}, "optimizer": {"lr": 6e-3, "beta2": 0.98, "weight_decay": 0.0},
    "schedule": {"shape": "inverse_sqrt", "warmup": 40}, "eval_every": 100, "save_every": 20, "num_averaged": 3,
    "valid_fraction": 0.02,
}  # fmt: skip


def pairs(number, seed):
    draw = random.Random(seed)
    found = []
    for _ in range(number):
        words = [draw.choice(ADJECTIVES), draw.choice(ANIMALS), draw.choice(VERBS), draw.choice(PLACES)]
        words = words[: draw.randint(2, 4)]
        found.append((" ".join(words), " ".join(WORDS[w] for w in words)))
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Prepare one and two vocabularies, run a recipe with each, and write texts to translate."""
    folder = tmp_path_factory.mktemp("translation")
    for name, number, seed in (("train", 1500, 1), ("test", 30, 2)):
        rows = pairs(number, seed)
        (folder / f"{name}.en").write_text("".join(a + "\n" for a, _ in rows))
        (folder / f"{name}.xx").write_text("".join(b + "\n" for _, b in rows))
    both = folder / "train.en", folder / "train.xx"
    run_cli("tokenizer", "train", *both, "--kind", "bpe", "--vocab-size", 380, "--out", folder / "joint")
    for side in both:
        run_cli("tokenizer", "train", side, "--kind", "bpe", "--vocab-size", 330, "--out", folder / side.suffix[1:])
    run_cli("pairs", *both, "--tokenizer", folder / "joint", "--out", folder / "pairs")
    run_cli("pairs", *both, "--tokenizer", folder / "en", "--target-tokenizer", folder / "xx", "--out", folder / "two")
    (folder / "toy.json").write_text(json.dumps(RECIPE))
    for corpus, steps in (("pairs", 140), ("two", 4)):
        run_cli("pretrain", folder / "toy.json", "--corpus", folder / corpus, "--out", folder / f"run-{corpus}",
             "--budget", f"{steps}steps")  # fmt: skip
    return folder


def test_it_learns_the_language(made, tmp_path):
    model = made / "run-pairs/model"
    said = run_cli("translate", model, "--data", made / "test.en", "--reference", made / "test.xx", "--out",
                tmp_path / "out.txt", "--report", tmp_path / "r.html", "--json")  # fmt: skip
    measured = json.loads(said)
    assert measured["bleu"] > 60 and "version:" in measured["bleu_signature"] and measured["texts"] == 30
    assert sum(row["texts"] for row in measured["by_length"]) == 30
    lines = (tmp_path / "out.txt").read_text().splitlines()
    import sacrebleu

    right = (made / "test.xx").read_text().splitlines()
    assert measured["bleu"] == pytest.approx(sacrebleu.corpus_bleu(lines, [right]).score)
    assert measured["chrf"] == pytest.approx(sacrebleu.corpus_chrf(lines, [right]).score)
    page = (tmp_path / "r.html").read_text()
    assert measured["bleu_signature"] in page and lines[0] in page


def test_an_empty_text_has_an_empty_translation(made, run_cli, tmp_path):
    (tmp_path / "in.txt").write_text("\nold cat\n\n   \nold cat\n\n")
    run_cli("translate", made / "run-pairs/model", "--data", tmp_path / "in.txt", "--out", tmp_path / "out.txt")
    lines = (tmp_path / "out.txt").read_text().split("\n")
    assert len(lines) == 7 and lines[1] == lines[4] != "" and not any(lines[i] for i in (0, 2, 3, 5, 6))


def test_a_long_text_is_refused_or_split_never_cut(made):
    model = polyseme.load(made / "run-pairs/model", device="cpu")
    long = " ".join(["old cat."] * 5000)
    with pytest.raises(PolysemeError, match=r"text 2 has [\d,]+ tokens with its end token, and the model reads 512"):
        model.translate(["old cat", long])
    short = "old cat. young dog. "
    halves = model.translate(["old cat.", "young dog."], GenerationConfig(0))
    limit, writer = 8, model._text_generator
    assert len(writer.encode_source(short)) > limit
    object.__setattr__(model.model.config.trunk.encoder.embeddings, "max_len", limit)
    (whole,) = model.translate([short], GenerationConfig(0), split=lambda _: ["old cat.", "young dog."])
    assert whole.text == " ".join(half.text for half in halves)
    with pytest.raises(PolysemeError, match="in a sentence"):
        model.translate([long], GenerationConfig(0), split=lambda text: [text])


def test_the_search_is_that_of_the_paper_by_default(made, run_cli, tmp_path):
    """Vaswani et al. 2017, §6.1: a beam of 4, and the length penalty ((5 + n) / 6)^0.6."""
    model = polyseme.load(made / "run-pairs/model", device="cpu")
    settings = {"num_beams": 4, "length_penalty": 0.6, "length_offset": 5.0}
    texts = ["old cat", "young dog", "a"]
    assert model.translate(texts) == model.translate(texts, GenerationConfig(0, **settings))
    assert model.translate("a", num_beams=0) == model.translate("a", GenerationConfig(0))
    (tmp_path / "in.txt").write_text("\n".join(texts))
    files = ("--data", tmp_path / "in.txt", "--reference", tmp_path / "in.txt", "--json")
    metrics = json.loads(run_cli("translate", made / "run-pairs/model", *files))
    assert {name: metrics[name] for name in settings} == settings


def test_vocabularies_of_their_own(made):
    model = polyseme.load(made / "run-two/model", device="cpu")
    spec = model.model.config.trunk
    assert spec.embeddings.vocab_size == model.tokenizer.vocab_size
    assert spec.decoder.embeddings.vocab_size == model.folder.target_tokenizer.vocab_size
    assert model.folder.target_tokenizer.hash != model.tokenizer.hash
    (found,) = model.translate(["old cat"])
    assert isinstance(found.text, str) and found.score < 0
    joint = polyseme.load(made / "run-pairs/model", device="cpu")
    assert joint.folder.target_tokenizer is None and joint.model.trunk.has_shared_embeddings


def test_the_model_is_the_mean_of_the_last_checkpoints(made):
    run = made / "run-pairs"
    steps = json.loads((run / "results.json").read_text())["averaged_steps"]
    assert steps == [140, 120, 100]
    files = [load_file(run / f"checkpoints/step-{step}/model.safetensors") for step in steps]
    model = polyseme.load(run / "model", device="cpu").model.state_dict()
    for name, tensor in model.items():
        mean = torch.stack([file[name].double() for file in files]).mean(0)
        torch.testing.assert_close(tensor.double(), mean, atol=1e-7, rtol=0)


def test_resumed_it_ends_with_the_same_weights(made, tmp_path):
    from polyseme.recipes import get_training_recipe
    from polyseme.train import pretrain as module
    from polyseme.train.recipe import BudgetConfig

    recipe = get_training_recipe(str(made / "toy.json")).replace(budget=BudgetConfig(steps=30), save_every=5)
    module.pretrain(recipe, made / "pairs", tmp_path / "whole")
    save, saved = module.save_checkpoint, []

    def crash(folder, checkpoint, keep):
        found = save(folder, checkpoint, keep)
        saved.append(checkpoint.step)
        if checkpoint.step == 15:
            raise KeyboardInterrupt
        return found

    module.save_checkpoint = crash
    try:
        with pytest.raises(KeyboardInterrupt):
            module.pretrain(recipe, made / "pairs", tmp_path / "cut")
    finally:
        module.save_checkpoint = save
    module.pretrain(recipe, made / "pairs", tmp_path / "cut", resume=True)
    a, b = (load_file(tmp_path / name / "model/model.safetensors") for name in ("whole", "cut"))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_what_cannot_be_translated(made, project, rejects, tmp_path):
    model = made / "run-pairs/model"
    (tmp_path / "one.txt").write_text("old cat\n")
    rejects("translate", project / "run-gpt2/model", "--data", tmp_path / "one.txt", match="cannot translate")
    rejects(
        "translate", model, "--data", made / "test.en", "--reference", tmp_path / "one.txt", match=("30 texts", "has 1")
    )
    rejects("translate", model, "--data", tmp_path / "one.txt", "--report", tmp_path / "x.html", match="--reference")
    rejects("translate", model, "--data", tmp_path / "none.txt", match="none.txt")
    rejects("pretrain", made / "toy.json", "--corpus", project / "corpus-gpt2", "--out", tmp_path / "r",
            match="not a corpus of pairs")  # fmt: skip
    rejects("pairs", made / "train.en", made / "train.xx", "--tokenizer", made / "joint", "--out", tmp_path / "p",
            "--keys", "en", match="two sides")  # fmt: skip


def test_measures_need_their_texts():
    with pytest.raises(PolysemeError, match="references"):
        score_translations(["a"], ["a", "b"], ["a"])
    with pytest.raises(PolysemeError, match="nothing to measure"):
        score_translations([], [], [])
