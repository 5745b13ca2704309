"""The ablations of BERT's paper (Devlin et al. 2019): objectives, sizes, masking."""

from collections.abc import Mapping
from typing import Any

from polyseme.objectives.causal_lm import CausalLM
from polyseme.objectives.masked_lm import MaskedLM
from polyseme.objectives.sentence_pairs import MaskedLMWithSentencePairs
from polyseme.studies.base import Arm, Question, Study
from polyseme.studies.catalog.settings import SMALL_TRANSFORMER, train_with

PAPER = "Devlin et al. 2019"


def _bert(name: str, overrides: Mapping[str, Any], note: str = "") -> Arm:
    return Arm(name, "bert-small", {**SMALL_TRANSFORMER, **overrides}, note=note)


TABLE_5 = f"{PAPER}, table 5"
OBJECTIVES = Study(
    name="bert-objectives",
    title="Which pre-training task matters: next sentences, both directions",
    source=f"{TABLE_5} and §5.1",
    arms=(
        _bert("mlm-nsp", train_with(MaskedLMWithSentencePairs())),
        _bert(
            "mlm",
            train_with(MaskedLMWithSentencePairs(pair_task="none")),
            note="The paper's 'No NSP'. The input still has two segments, which follow each other in the text.",
        ),
        _bert(
            "left-to-right",
            train_with(CausalLM(), **{"model.causal": True}),
            note="The paper's 'LTR & No NSP': the same network reads left to right, in fine-tuning too.",
        ),
        Arm(
            "left-to-right-bilstm",
            from_arm="left-to-right",
            transfer_options={"bilstm": True},
            note="The same model with a randomly initialized BiLSTM on top in fine-tuning.",
        ),
    ),
    metrics=("blimp", "sst-2", "mrpc", "squad-shifts"),
    questions=(
        Question(
            "Does next-sentence prediction help with answer spans?",
            *("mlm-nsp", "mlm", "squad-shifts", "higher"),
            source=f"{TABLE_5}: SQuAD 88.5 and 87.9",
            published=0.6,
        ),
        Question(
            "Does next-sentence prediction help with sentence pairs?",
            *("mlm-nsp", "mlm", "mrpc", "higher"),
            source=f"{TABLE_5}: MRPC 86.7 and 86.5",
            published=0.2,
        ),
        Question(
            "Does next-sentence prediction help with single sentences?",
            *("mlm-nsp", "mlm", "sst-2", "higher"),
            source=f"{TABLE_5}: SST-2 92.7 and 92.6",
            published=0.1,
        ),
        Question(
            "Is left-to-right worse for sentence pairs?",
            *("left-to-right", "mlm", "mrpc", "lower"),
            source=f"{TABLE_5}: MRPC 77.5 and 86.5",
            published=-9.0,
        ),
        Question(
            "Is left-to-right worse for answer spans?",
            *("left-to-right", "mlm", "squad-shifts", "lower"),
            source=f"{TABLE_5}: SQuAD 77.8 and 87.9",
            published=-10.1,
        ),
        Question(
            "Is left-to-right worse for single sentences?",
            *("left-to-right", "mlm", "sst-2", "lower"),
            source=f"{TABLE_5}: SST-2 92.1 and 92.6",
            published=-0.5,
        ),
        Question(
            "Does a BiLSTM on top repair answer spans?",
            *("left-to-right-bilstm", "left-to-right", "squad-shifts", "higher"),
            source=f"{TABLE_5}: SQuAD 84.9 and 77.8",
            published=7.1,
        ),
        Question(
            "Does a BiLSTM on top hurt sentence pairs?",
            *("left-to-right-bilstm", "left-to-right", "mrpc", "lower"),
            source=f"{TABLE_5}: MRPC 75.7 and 77.5",
            published=-1.8,
        ),
    ),
)

TABLE_6 = f"{PAPER}, table 6"
# the paper's rows with a hidden size of 512 instead of 768, and 768 instead of 1024
SIZES = {
    "3x512": (3, 512, 8),
    "6x512-2-heads": (6, 512, 2),
    "6x512": (6, 512, 8),
    "12x512": (12, 512, 8),
    "12x768": (12, 768, 12),
    "24x768": (24, 768, 12),
}


def _size_question(text: str, arm: str, reference: str, perplexities: tuple[float, float], sst_2: float) -> Question:
    source = f"{TABLE_6}: SST-2; perplexities of masked tokens {perplexities[0]} and {perplexities[1]}"
    return Question(text, arm, reference, "sst-2", "higher", source, published=sst_2)


SIZE = Study(
    name="bert-size",
    title="Are larger models better",
    source=f"{TABLE_6} and §5.2",
    arms=tuple(
        _bert(
            name,
            train_with(
                MaskedLM(),
                **dict(zip(("model.num_layers", "model.dim", "model.num_heads"), size)),
                micro_batch_tokens=16_384 if size[0] * size[1] > 10_000 else 32_768,
            ),
            note="Two thirds of the paper's hidden size. The paper trains for equal steps: use a budget in steps or "
            "tokens to do so; with a time budget a larger model reads less text."
            if name == "3x512"
            else "",
        )
        for name, size in SIZES.items()
    ),
    metrics=("valid_loss", "blimp", "sst-2", "mrpc"),
    questions=(
        _size_question("Are 6 layers better than 3?", "6x512", "3x512", (4.68, 5.84), 2.9),
        _size_question("Are 12 layers better than 6?", "12x512", "6x512", (3.99, 4.68), 1.6),
        _size_question("Is a wider network better?", "12x768", "12x512", (3.54, 3.99), 0.4),
        _size_question("Are 24 layers better than 12?", "24x768", "12x768", (3.23, 3.54), 0.4),
        _size_question("Are more attention heads better?", "6x512", "6x512-2-heads", (4.68, 5.24), 0.6),
        Question(
            "Do 12 layers predict masked tokens better than 6?",
            *("12x512", "6x512", "valid_loss", "lower"),
            source=f"{TABLE_6}: perplexities 3.99 and 4.68, as a difference in nats",
            published=-0.16,
        ),
    ),
)

TABLE_8 = f"{PAPER}, table 8"
# percent of the chosen tokens that become [MASK], stay, or become a random token
MASKING = ((80, 10, 10), (100, 0, 0), (80, 0, 20), (80, 20, 0), (0, 20, 80), (0, 0, 100))


def _masking_arms(num_masked: int, num_same: int, num_random: int) -> tuple[Arm, Arm]:
    name = f"{num_masked}-{num_same}-{num_random}"
    objective = MaskedLM(random_token_prob=num_random / 100, keep_token_prob=num_same / 100)
    features = {"layers": "concat_last_4", "network": {"num_layers": 2, "word_dim": 0, "use_char_cnn": False}}
    return (
        _bert(name, train_with(objective)),
        Arm(f"{name}-features", from_arm=name, transfer="features", transfer_options=features),
    )


MASKING_STRATEGY = Study(
    name="bert-masking",
    title="What becomes of a masked token: [MASK], the same or a random token",
    source=f"{TABLE_8} and appendix C.2",
    arms=tuple(arm for percents in MASKING for arm in _masking_arms(*percents)),
    metrics=("blimp", "wnut-17", "ud-pos"),
    questions=(
        Question(
            "Is always [MASK] worse, if the model is frozen?",
            *("100-0-0-features", "80-10-10-features", "wnut-17", "lower"),
            source=f"{TABLE_8}: NER by features 94.0 and 94.9",
            published=-0.9,
        ),
        Question(
            "Is always [MASK] worse, if the model is fine-tuned?",
            *("100-0-0", "80-10-10", "wnut-17", "lower"),
            source=f"{TABLE_8}: NER 94.9 and 95.4",
            published=-0.5,
        ),
        Question(
            "Are random tokens alone worse, if the model is fine-tuned?",
            *("0-0-100", "80-10-10", "wnut-17", "lower"),
            source=f"{TABLE_8}: NER 94.9 and 95.4",
            published=-0.5,
        ),
        Question(
            "Are random tokens alone worse, if the model is frozen?",
            *("0-0-100-features", "80-10-10-features", "wnut-17", "lower"),
            source=f"{TABLE_8}: NER by features 94.6 and 94.9",
            published=-0.3,
        ),
        Question(
            "Is a random instead of the same token worse?",
            *("80-0-20", "80-10-10", "wnut-17", "lower"),
            source=f"{TABLE_8}: NER 95.2 and 95.4",
            published=-0.2,
        ),
        Question(
            "Is the same instead of a random token worse?",
            *("80-20-0", "80-10-10", "wnut-17", "lower"),
            source=f"{TABLE_8}: NER 95.2 and 95.4",
            published=-0.2,
        ),
        Question(
            "Is no [MASK] at all worse?",
            *("0-20-80", "80-10-10", "wnut-17", "lower"),
            source=f"{TABLE_8}: NER 94.8 and 95.4",
            published=-0.6,
        ),
    ),
)

BERT_STUDIES = (OBJECTIVES, SIZE, MASKING_STRATEGY)
