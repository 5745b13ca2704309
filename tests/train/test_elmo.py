"""ELMo runs: characters of the vocabulary, both directions, an unbiased sampled softmax."""

import pytest
import torch
import torch.nn.functional as F

import polyseme
from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.families import FAMILIES
from polyseme.nn.layers.char_cnn import BOS_CHARACTER, CharCNN, CharCNNConfig, words_to_char_ids
from polyseme.nn.losses import sampled_softmax_loss
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.recipes import get_training_recipe
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.pretrain import pretrain
from tests.support.text import documents


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elmo")
    (folder / "text.txt").write_text("\n".join(documents(120)) + "\n")
    tokenizer = Tokenizer.train("bpe", iter(documents(120)), 330)
    prepare([folder / "text.txt"], tokenizer, folder / "corpus", PrepareConfig(split="line", num_workers=1))
    recipe = get_training_recipe("elmo-tiny").replace(
        size="", model={"dim": 32, "ffn_dim": 48, "num_highway": 1, "char_dim": 8}
    )
    for path, value in (("budget.steps", "50"), ("optimizer.lr", "0.02"), ("schedule.warmup", "5"),
                        ("valid_fraction", "0.1"), ("batch_tokens", "512"), ("micro_batch_tokens", "512"),
                        ("max_len", "20")):  # fmt: skip
        recipe = recipe.with_override(path, value)
    return folder, pretrain(recipe, folder / "corpus", folder / "run")


def test_it_learns_both_directions(run):
    folder, results = run
    found = {name: value for name, value in results.items() if isinstance(value, float)}
    model = polyseme.load(folder / "run" / "model")
    assert torch.equal(model.model.heads["next"].decoder.weight, model.model.heads["previous"].decoder.weight)
    assert model.model.heads["previous"].decoder is model.model.heads["next"].decoder
    text, wrong = "The old cat sees the grey dog in the river.", "river the in dog grey the sees cat old The."
    better, worse = (score.log_prob for score in model.score([text, wrong]))
    assert better > worse + 10, found


def test_it_knows_how_its_tokens_are_written(run):
    model = polyseme.load(run[0] / "run" / "model")
    bottom, tokenizer = model.model.trunk.embeddings, model.tokenizer
    places = tokenizer.encode("The old cat sees the grey dog.")
    words = [tokenizer.decode([place]).strip() or tokenizer.convert_ids_to_tokens([place])[0] for place in places]
    assert bottom.spellings[places].tolist() == words_to_char_ids(words).tolist() and max(map(len, words)) > 2


def test_the_law_of_distinct_words():
    """A token id and its characters give the same embedding, and each distinct word is processed once."""
    torch.manual_seed(0)
    bottom = CharCNN(CharCNNConfig(9, 6, 32, ((1, 4), (3, 5)), 4)).eval()
    words = ["cat", "dog", "猫", "a" * 70, "cat", BOS_CHARACTER]
    bottom.set_spellings(words)
    numbers, asked = torch.tensor([0, 1, 0, 2, 3, 5, 4, 0]), []
    bottom.convolutions[0].register_forward_hook(lambda _, given, __: asked.append(given[0].shape[0]))
    layout, characters = PackedLayout.from_lengths([8]), words_to_char_ids([words[i] for i in numbers])
    by_number = bottom(Inputs(numbers, layout))
    by_character = bottom(Inputs(torch.from_numpy(characters), layout))
    torch.testing.assert_close(by_number, by_character)
    assert asked == [6, 5]  # two numbers are one word
    assert torch.equal(by_number[0], by_number[7]) and not torch.equal(by_number[0], by_number[1])


def test_trimming_changes_nothing():
    torch.manual_seed(0)
    bottom = CharCNN(CharCNNConfig(3, 6, 32, ((1, 4), (7, 5)), 4)).double().eval()
    for word in ("a", "a" * 40, "a" * 44, "a" * 48, "a" * 60):
        whole = torch.from_numpy(words_to_char_ids([word])).long()
        x = F.embedding(whole, bottom.char_embeddings.weight).transpose(1, 2)
        x = torch.cat([F.relu(c(x).amax(-1)) for c in bottom.convolutions], -1)
        for highway in bottom.highways:
            x = highway(x)
        torch.testing.assert_close(bottom.embed_char_ids(whole), bottom.projection(x), atol=1e-14, rtol=0)


def test_the_sampled_softmax_is_close_to_the_whole():
    generator = torch.Generator().manual_seed(0)
    size, rows = 400, 64
    matrix, bias = torch.randn(size, 8, generator=generator) * 0.3, torch.randn(size, generator=generator) * 0.3
    states = torch.randn(rows, 8, generator=generator)
    values = torch.randint(0, size, (rows,), generator=generator)
    values[0] = -100
    whole = F.cross_entropy(F.linear(states, matrix, bias), values, ignore_index=-100, reduction="sum")
    torch.manual_seed(1)
    found = [sampled_softmax_loss(states, matrix, bias, values, -100, 300).item() for _ in range(40)]
    assert abs(sum(found) / len(found) - whole.item()) < 0.03 * whole.item()


def test_large_vocabularies_are_sampled():
    small, large = (
        FAMILIES["elmo"].model_config(dim=16, vocab_size=size).heads["next"].num_sampled for size in (1000, 100_000)
    )
    assert (small, large) == (0, 8192)


def test_muon_updates_all_matrices_but_the_characters():
    """Beside Muon's rates, AdamW makes the word vectors of 2,048 filters grow without bound."""
    trunk = FAMILIES["elmo"].trunk_config(vocab_size=50, dim=16, ffn_dim=24, num_layers=2).build()
    updated = {id(weight) for weight, _ in trunk.hidden_matrices()}
    others = [name for name, p in trunk.named_parameters() if p.ndim > 1 and id(p) not in updated]
    assert others == ["embeddings.char_embeddings.weight"]


def test_a_step_of_muon_moves_the_filters_of_a_convolution_alike():
    model = FAMILIES["elmo"].model_config(vocab_size=50, dim=16, ffn_dim=24, num_layers=2).build(seed=0)
    filters = model.trunk.embeddings.convolutions[3].weight  # [count, char_dim, width]
    config = OptimizerConfig(name="muon", lr=0.1, weight_decay=0.0)
    optimizer = config.build(model, model.trunk.layer_groups())
    before, filters.grad = (
        filters.detach().clone(),
        torch.randn(filters.shape, generator=torch.Generator().manual_seed(0)),
    )
    optimizer.step()
    moved = (before - filters.detach()).flatten(1)
    scale = 0.1 * 0.2 * max(moved.shape) ** 0.5
    assert (torch.linalg.svdvals(moved) / scale - 0.95).abs().max() < 0.35


def test_initial_values_are_those_of_the_released_code():
    embeddings = FAMILIES["elmo"].model_config(vocab_size=50, dim=16, num_layers=1).build(seed=0).trunk.embeddings
    assert all((highway.carry.bias == -2).all() for highway in embeddings.highways)
    stds = [conv.weight.std().item() for conv in embeddings.convolutions if conv.weight.numel() > 5000]
    assert stds and stds == pytest.approx([0.05 / 3**0.5] * len(stds), rel=0.05)
