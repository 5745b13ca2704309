"""The ablations of ALBERT's paper (Lan et al. 2020): embedding size, shared layers, sentence-order prediction."""

from polyseme.objectives.sentence_pairs import MaskedLMWithSentencePairs
from polyseme.studies.base import Arm, Question, Study
from polyseme.studies.catalog.settings import SMALL_TRANSFORMER, train_with

PAPER = "Lan et al. 2020"
SOP = MaskedLMWithSentencePairs(mask_unit="ngram", pair_task="sop")
ALBERT = {**SMALL_TRANSFORMER, "model.embedding_dim": 128, **train_with(SOP)}
METRICS = ("valid_loss", "blimp", "sst-2", "mrpc", "squad-shifts")
DEPTH_NOTE = "4 layers of 512; ALBERT-base has 12 of 768."

TABLE_3 = f"{PAPER}, table 3"
EMBEDDING = Study(
    name="albert-embedding",
    title="How large should token embeddings be",
    source=f"{TABLE_3} and §4.4",
    arms=tuple(
        Arm(
            f"{label}-{dim}",
            "albert-base",
            {**ALBERT, "model.sharing": sharing, "model.embedding_dim": dim},
            note=f"{DEPTH_NOTE} The largest embeddings have the hidden size: 512 for the paper's 768, and as there a "
            "linear layer follows them."
            if (label, dim) == ("shared", 64)
            else "",
        )
        for label, sharing in (("shared", "all"), ("separate", "none"))
        for dim in (64, 128, 256, 512)
    ),
    metrics=METRICS,
    questions=(
        Question(
            "Shared layers: are embeddings of 128 better than 64?",
            *("shared-128", "shared-64", "sst-2", "higher"),
            source=f"{TABLE_3}: SST-2 90.3 and 89.4",
            published=0.9,
        ),
        Question(
            "Shared layers: are embeddings of 128 better for answer spans than those of the hidden size?",
            *("shared-128", "shared-512", "squad-shifts", "higher"),
            source=f"{TABLE_3}: SQuAD 1.1 F1 89.3 and 88.6",
            published=0.7,
        ),
        Question(
            "Separate layers: are embeddings of the hidden size better than 64?",
            *("separate-512", "separate-64", "sst-2", "higher"),
            source=f"{TABLE_3}: SST-2 92.8 and 91.5",
            published=1.3,
        ),
        Question(
            "Separate layers: are embeddings of the hidden size better for answer spans than 64?",
            *("separate-512", "separate-64", "squad-shifts", "higher"),
            source=f"{TABLE_3}: SQuAD 1.1 F1 90.4 and 89.9",
            published=0.5,
        ),
    ),
)

TABLE_4 = f"{PAPER}, table 4, E = 128"
SHARING = Study(
    name="albert-sharing",
    title="What do layers lose by sharing their parameters",
    source=f"{TABLE_4} and §4.5",
    arms=tuple(
        Arm(
            name,
            "albert-base",
            {**ALBERT, "model.sharing": sharing},
            note=f"{DEPTH_NOTE} The arms have the same hidden size and depth, not the same number of parameters."
            if sharing == "all"
            else "",
        )
        for name, sharing in (
            ("all-shared", "all"),
            ("attention-shared", "attention"),
            ("ffn-shared", "ffn"),
            ("not-shared", "none"),
        )
    ),
    metrics=METRICS,
    questions=(
        Question(
            "Does sharing all layers hurt single sentences?",
            *("all-shared", "not-shared", "sst-2", "lower"),
            source=f"{TABLE_4}: SST-2 90.3 and 91.5",
            published=-1.2,
        ),
        Question(
            "Does sharing all layers hurt answer spans?",
            *("all-shared", "not-shared", "squad-shifts", "lower"),
            source=f"{TABLE_4}: SQuAD 1.1 F1 89.3 and 89.9",
            published=-0.6,
        ),
        Question(
            "Does sharing feed-forward layers hurt more than sharing attention?",
            *("ffn-shared", "attention-shared", "squad-shifts", "lower"),
            source=f"{TABLE_4}: SQuAD 1.1 F1 88.9 and 89.9",
            published=-1.0,
        ),
        Question(
            "Does sharing attention alone cost nothing?",
            *("attention-shared", "not-shared", "sst-2", "higher"),
            source=f"{TABLE_4}: SST-2 91.9 and 91.5",
            published=0.4,
        ),
        Question(
            "Does sharing all layers hurt the prediction of masked tokens?",
            *("all-shared", "not-shared", "valid_loss", "higher"),
            source=f"{PAPER}, §4.5: 'the all-shared strategy hurts performance'; no losses are printed",
        ),
    ),
)

TABLE_5 = f"{PAPER}, table 5"
SOP_NSP = Study(
    name="albert-sop-nsp",
    title="Next sentence, sentence order, or neither",
    source=f"{TABLE_5} and §4.6",
    arms=tuple(
        Arm(
            name,
            "albert-base",
            {**ALBERT, **train_with(SOP.replace(pair_task=task))},
            note=note,
        )
        for name, task, note in (
            ("none", "none", f"{DEPTH_NOTE} The input still has two segments, in order."),
            ("nsp", "nsp", ""),
            ("sop", "sop", ""),
        )
    ),
    metrics=METRICS,
    questions=(
        Question(
            "Is sentence order better than next sentence for answer spans?",
            *("sop", "nsp", "squad-shifts", "higher"),
            source=f"{TABLE_5}: SQuAD 1.1 F1 89.3 and 88.4",
            published=0.9,
        ),
        Question(
            "Is sentence order better than neither for answer spans?",
            *("sop", "none", "squad-shifts", "higher"),
            source=f"{TABLE_5}: SQuAD 1.1 F1 89.3 and 88.6",
            published=0.7,
        ),
        Question(
            "Is next sentence worse than neither for answer spans?",
            *("nsp", "none", "squad-shifts", "lower"),
            source=f"{TABLE_5}: SQuAD 1.1 F1 88.4 and 88.6",
            published=-0.2,
        ),
        Question(
            "Is next sentence better than neither for single sentences?",
            *("nsp", "none", "sst-2", "higher"),
            source=f"{TABLE_5}: SST-2 91.1 and 89.9",
            published=1.2,
        ),
    ),
)

ALBERT_STUDIES = (EMBEDDING, SHARING, SOP_NSP)
