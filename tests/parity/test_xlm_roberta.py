"""XLM-RoBERTa and CamemBERT: states and logits as in `transformers`, folders in both directions, their vocabularies."""

import io
import json
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken

import polyseme
from polyseme.families import FAMILIES
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import load_model, save_model
from tests.conftest import documents
from tests.support.hf_models import convert_model, randomize

transformers = pytest.importorskip("transformers")
FAMILY_PREFIXES = {"xlm_roberta": "XLMRoberta", "camembert": "Camembert"}
MODEL_TYPES = {"xlm_roberta": "xlm-roberta", "camembert": "camembert"}
HEADS = {"MaskedLM": "masked", "SequenceClassification": "classify", "TokenClassification": "tag"}
LENGTHS = (7, 3, 12)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train("unigram-roberta", iter(documents(40, seed=5)), 110)


def build_hf_model(family: str, head: str, vocab_size: int = 99):
    prefix = FAMILY_PREFIXES[family]
    config = getattr(transformers, f"{prefix}Config")(
        vocab_size=vocab_size, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
        max_position_embeddings=42, type_vocab_size=1, layer_norm_eps=1e-5, num_labels=3,
    )  # fmt: skip
    torch.manual_seed(0)
    return randomize(getattr(transformers, f"{prefix}For{head}")(config).eval())


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", FAMILY_PREFIXES)
def test_logits_match(family, head):
    hf_model = build_hf_model(family, head).double()
    model = convert_model(hf_model, family, (HEADS[head],), ("a", "b", "c")).double()
    layout = PackedLayout.from_lengths(LENGTHS)
    tokens = torch.randint(5, 99, (layout.num_tokens,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        mask = layout.attention_mask().long()
        expected = hf_model(input_ids=layout.pad(tokens, 1), attention_mask=mask, output_hidden_states=True)
        output = model.trunk(Inputs(tokens, layout))
        logits = model.predict(HEADS[head], output.hidden, layout)
    torch.testing.assert_close(output.hidden, layout.unpad(expected.hidden_states[-1]), atol=1e-10, rtol=0)
    expected_logits = expected.logits if head == "SequenceClassification" else layout.unpad(expected.logits)
    torch.testing.assert_close(logits, expected_logits, atol=1e-10, rtol=0)


@pytest.mark.parametrize("family", FAMILY_PREFIXES)
def test_folders_in_both_directions(family, tokenizer, tmp_path):
    """What `transformers` saved is loaded, and saved again under the same model type."""
    hf_model = build_hf_model(family, "MaskedLM", tokenizer.vocab_size)
    hf_model.save_pretrained(tmp_path / "theirs")
    tokenizer.save_files(tmp_path / "theirs")
    loaded = load_model(tmp_path / "theirs")
    assert loaded.model.config.family == family and list(loaded.model.heads) == ["masked"]
    save_model(tmp_path / "ours", loaded.model, loaded.tokenizer)
    assert json.loads((tmp_path / "ours/config.json").read_text())["model_type"] == MODEL_TYPES[family]
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "ours")
    assert type(again) is type(hf_model) and again.config.max_position_embeddings == 42
    state, saved = hf_model.state_dict(), again.state_dict()
    assert set(state) == set(saved) and all(torch.equal(state[name], saved[name]) for name in state)
    assert polyseme.verify(tmp_path / "ours").has_hashes
    text = documents(1, seed=3)[0]
    auto_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    for args in ((text[:80],), (text[:40], text[40:80])):
        assert polyseme.load(tmp_path / "ours").encode(*args).input_ids == auto_tokenizer(*args)["input_ids"]
    assert len(polyseme.load(tmp_path / "ours").fill(f"the {tokenizer.mask_token} sat", top_k=2)[0]) == 2


@pytest.mark.parametrize("family", FAMILY_PREFIXES)
def test_fine_tuned_models_keep_their_type(family, tokenizer, tmp_path):
    spec = FAMILIES[family].model_config(num_layers=1, dim=16, num_heads=2, vocab_size=tokenizer.vocab_size, max_len=40)
    save_model(tmp_path / "base", spec.build(seed=0), tokenizer)
    rows = [(("cat", "dog")[i % 2], f"the {('cat', 'dog')[i % 2]} sat") for i in range(16)]
    (tmp_path / "data.tsv").write_text("label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in rows))
    data = tmp_path / "data.tsv"
    run = polyseme.finetune(tmp_path / "base", "classification", train=data, dev=data, out=tmp_path / "run", epochs=1)
    config = json.loads((Path(run.model) / "config.json").read_text())
    prefix = FAMILY_PREFIXES[family]
    assert (config["model_type"], config["architectures"]) == (
        MODEL_TYPES[family],
        [f"{prefix}ForSequenceClassification"],
    )
    assert polyseme.load(run.model).predict("the cat sat").label in ("cat", "dog")


@pytest.mark.parametrize("family", FAMILY_PREFIXES)
def test_ids_of_a_sentencepiece_file(family, tmp_path):
    """A folder with the sentencepiece file alone has the ids of fairseq, as `transformers` converts it."""
    spm, converters = pytest.importorskip("sentencepiece"), pytest.importorskip("transformers.convert_slow_tokenizer")
    model = io.BytesIO()
    sentences = iter(documents(30, seed=5))
    spm.SentencePieceTrainer.train(
        sentence_iterator=sentences, model_writer=model, vocab_size=80, hard_vocab_limit=False, minloglevel=3
    )
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model.getvalue())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": MODEL_TYPES[family]}))
    tokenizer = Tokenizer.load(tmp_path)
    tokenizer.validate()

    class SlowTokenizer:
        """What the converter reads of a tokenizer."""

        vocab_file = str(tmp_path / "sentencepiece.bpe.model")

        def convert_tokens_to_ids(self, token: str) -> int:
            return tokenizer.backend.token_to_id(token)

    converted = getattr(converters, f"{FAMILY_PREFIXES[family]}Converter")(SlowTokenizer()).converted()
    assert [converted.id_to_token(i) for i in range(converted.get_vocab_size())] == tokenizer.vocabulary
    for text in documents(5, seed=9):
        assert tokenizer.build_inputs_with_special_tokens(tokenizer.encode(text))[0] == converted.encode(text).ids
    # The published tokenizer.json has this pipeline and these added tokens; saving validates them.
    converted.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True, special=True)])
    Tokenizer(converted).save_files(tmp_path)
    assert Tokenizer.load(tmp_path).special_token_ids == tokenizer.special_token_ids
