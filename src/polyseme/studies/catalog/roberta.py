"""The ablations of RoBERTa's paper (Liu et al. 2019): dynamic masking, and larger batches."""

from polyseme.objectives.masked_lm import MaskedLM
from polyseme.studies.base import Arm, Question, Study
from polyseme.studies.catalog.settings import SMALL_TRANSFORMER, train_with

PAPER = "Liu et al. 2019"
TABLE_1 = f"{PAPER}, table 1"
DYNAMIC = Study(
    name="roberta-dynamic",
    title="Static or dynamic masking",
    source=f"{TABLE_1} and §4.1",
    arms=(
        Arm(
            "dynamic",
            "bert-small",
            {**SMALL_TRANSFORMER, **train_with(MaskedLM())},
            note="The paper's static model sees each of ten masks four times. A run of four epochs sees one mask four "
            "times (static-1); with ten (static-10) it never repeats one. The batches are BERT's, without pairs.",
        ),
        *(
            Arm(f"static-{n}", "bert-small", {**SMALL_TRANSFORMER, **train_with(MaskedLM(num_static_masks=n))})
            for n in (1, 10)
        ),
    ),
    metrics=("valid_loss", "blimp", "sst-2", "squad-shifts"),
    questions=(
        Question(
            "Is dynamic masking better for single sentences?",
            *("dynamic", "static-1", "sst-2", "higher"),
            source=f"{TABLE_1}: SST-2 92.9 and 92.5",
            published=0.4,
        ),
        Question(
            "Is dynamic masking better for answer spans?",
            *("dynamic", "static-1", "squad-shifts", "higher"),
            source=f"{TABLE_1}: SQuAD 2.0 F1 78.7 and 78.3",
            published=0.4,
        ),
        Question(
            "Does dynamic masking predict held-out tokens better?",
            *("dynamic", "static-1", "valid_loss", "lower"),
            source=f"{PAPER}, §4.1; no losses are printed",
        ),
    ),
)

TABLE_3 = f"{PAPER}, table 3"
# tokens per step and learning rate; the paper: 256, 2,000 and 8,000 sequences of 512, at 1e-4, 7e-4 and 1e-3
BATCHES = {"32k": (32_768, 1e-3), "131k": (131_072, 2e-3), "524k": (524_288, 4e-3)}
BATCH = Study(
    name="roberta-batch",
    title="Larger batches, equal tokens",
    source=f"{TABLE_3} and §4.3",
    arms=tuple(
        Arm(
            name,
            "bert-small",
            {
                **SMALL_TRANSFORMER,
                **train_with(MaskedLM()),
                "batch_tokens": tokens,
                "micro_batch_tokens": min(tokens, 65_536),
                "optimizer": {**SMALL_TRANSFORMER["optimizer"], "lr": lr},
            },
            note="The paper's batches have 131 thousand to 4 million tokens, for 131 billion tokens in all; a run of "
            "minutes needs smaller ones. Use a budget in tokens, so that all arms read the same number."
            if name == "32k"
            else "",
        )
        for name, (tokens, lr) in BATCHES.items()
    ),
    metrics=("valid_loss", "blimp", "sst-2"),
    questions=(
        Question(
            "Does a four times larger batch predict masked tokens better?",
            *("131k", "32k", "valid_loss", "lower"),
            source=f"{TABLE_3}: perplexities 3.68 (2K) and 3.99 (256), as a difference in nats",
            published=-0.08,
        ),
        Question(
            "Does a four times larger batch help with single sentences?",
            *("131k", "32k", "sst-2", "higher"),
            source=f"{TABLE_3}: SST-2 92.9 and 92.7",
            published=0.2,
        ),
        Question(
            "Does the largest batch predict masked tokens worse than the middle one?",
            *("524k", "131k", "valid_loss", "higher"),
            source=f"{TABLE_3}: perplexities 3.77 (8K) and 3.68 (2K), as a difference in nats",
            published=0.02,
        ),
    ),
)

ROBERTA_STUDIES = (DYNAMIC, BATCH)
