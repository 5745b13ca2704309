"""Choices after BERT: Muon and ModernBERT's layout, how much to mask, and masked and causal LM in one model."""

from typing import Any

from polyseme.objectives.hybrid_lm import HybridLM
from polyseme.objectives.masked_lm import MaskedLM
from polyseme.studies.base import Arm, Question, Study
from polyseme.studies.catalog.settings import GLUE, NO_DROPOUT, SHORT_RUN, SMALL, SMALL_TRANSFORMER, train_with

DROPOUT = {"model.dropout": 0.1, "model.attention_dropout": 0.1}
PLAIN: dict[str, Any] = {
    **SHORT_RUN,
    **SMALL,
    **DROPOUT,
    **train_with(MaskedLM()),
    "optimizer": {**SHORT_RUN["optimizer"], "name": "adamw", "lr": 1e-3},
}
CHANGES: dict[str, dict[str, Any]] = {
    "no-dropout": NO_DROPOUT,
    "30-percent": train_with(MaskedLM(mask_prob=0.3)),
    "layout": {"family": "modernbert"},
    "muon": {"optimizer": SHORT_RUN["optimizer"]},
    "batch-warmup": {"batch_warmup_steps": 400},
}
CONTRIBUTIONS = {  # held-out nats by which each change improved the others, after 20 seconds and with one seed
    "no-dropout": "0.32",
    "30-percent": "0.10",
    "layout": "0.12",
    "muon": "0.21",
}


def _arm(name: str, *changes: str, note: str = "") -> Arm:
    overrides = dict(PLAIN)
    for change in changes:
        overrides |= CHANGES[change]
    return Arm(name, "bert-small", overrides, note=note)


MUON_LAYOUT = Study(
    name="muon-layout",
    title="Which changes since BERT pay off in a short run",
    source="Warner et al. 2024, §2; Jordan et al. 2024, Muon; docs/results/modern.md",
    arms=(
        _arm("plain", note="BERT's layout, dropout 0.1, 15 % masked, AdamW."),
        *(_arm(name, name) for name in CHANGES),
        _arm("all", *CHANGES, note="Learning rates are searched in every arm, so that they are no change here."),
        *(_arm(f"all-but-{name}", *(change for change in CHANGES if change != name)) for name in CHANGES),
    ),
    metrics=("pseudo_bits_per_character", "blimp", *(name for name in GLUE if name != "sst-2")),
    questions=(
        Question(
            "Does Muon alone help?",
            *("muon", "plain", "pseudo_bits_per_character", "lower"),
            source="docs/results/modern.md: 6.09 instead of 7.29 nats, one seed",
        ),
        Question(
            "Does the layout alone help?",
            *("layout", "plain", "pseudo_bits_per_character", "lower"),
            source="docs/results/modern.md: 4.29 instead of 7.29 nats, one seed",
        ),
        *(
            Question(
                f"Does it cost something to leave out {name}?",
                *(f"all-but-{name}", "all", "pseudo_bits_per_character", "higher"),
                source=f"docs/results/modern.md: {nats} nats, one seed",
            )
            for name, nats in CONTRIBUTIONS.items()
        ),
    ),
)

WETTIG = "Wettig et al. 2023"
MASKING_RATE = Study(
    name="masking-rate",
    title="How many tokens to mask",
    source=f"{WETTIG}, §3 and figure 1",
    arms=tuple(
        Arm(
            f"{percent}-percent",
            "bert-small",
            {**SMALL_TRANSFORMER, **train_with(MaskedLM(mask_prob=percent / 100))},
            note="80 % of the chosen tokens become [MASK], at every rate." if percent == 15 else "",
        )
        for percent in (15, 20, 30, 40, 50)
    ),
    metrics=("pseudo_bits_per_character", "blimp", "sst-2", "mrpc", "squad-shifts"),
    questions=(
        Question(
            "Is 40 % better than 15 % for answer spans?",
            *("40-percent", "15-percent", "squad-shifts", "higher"),
            source=f"{WETTIG}, abstract: 40 % outperforms 15 % on GLUE and SQuAD, for models of BERT-large's size",
        ),
        Question(
            "Is 40 % better than 15 % for paraphrases?",
            *("40-percent", "15-percent", "mrpc", "higher"),
            source=f"{WETTIG}, abstract: 40 % outperforms 15 % on GLUE and SQuAD, for models of BERT-large's size",
        ),
        Question(
            "Is 50 % worse than 20 % in a small model?",
            *("50-percent", "20-percent", "squad-shifts", "lower"),
            source=f"{WETTIG}, §3: smaller models have their optimum at lower rates",
        ),
    ),
)

CHARPENTIER = "Charpentier and Samuel 2024"
FIGURE_2 = f"{CHARPENTIER}, figure 2"


def _hybrid(name: str, causal_fraction: float, note: str = "") -> Arm:
    objective = HybridLM(causal_fraction=causal_fraction)
    overrides = {**SMALL_TRANSFORMER, **train_with(objective), "micro_batch_tokens": 4_096}
    return Arm(name, "gpt-bert-small", overrides, note=note)


HYBRID = Study(
    name="hybrid",
    title="Masked and causal language modeling in one model",
    source=f"{FIGURE_2} and §4.2",
    arms=(
        Arm(
            "masked",
            "modernbert-small",
            {**SMALL_TRANSFORMER, **train_with(MaskedLM()), "micro_batch_tokens": 4_096},
            note="The same layout with ordinary masked LM. Its minimal pairs are scored by pseudo-log-likelihoods, the "
            "others' from left to right.",
        ),
        _hybrid("causal", 1.0),
        _hybrid("hybrid-1-1", 0.5, "As many causal as masked sequences. Fine-tuned in both directions."),
        _hybrid("hybrid-1-7", 0.125, "One causal sequence for seven masked ones."),
    ),
    metrics=("bits_per_character", "blimp", "cola", "mrpc", "squad-shifts"),
    questions=(
        Question(
            "Does masked LM as well help a causal model with grammar?",
            *("hybrid-1-1", "causal", "blimp", "higher"),
            source=f"{FIGURE_2}: 79.2 and 76.6, read left to right",
            published=2.6,
        ),
        Question(
            "Does it help more if it is half of the sequences than if it is most?",
            *("hybrid-1-7", "hybrid-1-1", "blimp", "lower"),
            source=f"{FIGURE_2}: 78.1 and 79.2, read left to right",
            published=-1.1,
        ),
        Question(
            "Is a mostly masked hybrid better in fine-tuning than a causal model?",
            *("hybrid-1-7", "causal", "mrpc", "higher"),
            source=f"{FIGURE_2}: MNLI; the difference is about three points",
        ),
        Question(
            "Is a mostly masked hybrid better in fine-tuning than a masked model?",
            *("hybrid-1-7", "masked", "mrpc", "higher"),
            source=f"{CHARPENTIER}, abstract: the hybrid outperforms masked-only models",
        ),
    ),
)

MODERN_STUDIES = (MUON_LAYOUT, MASKING_RATE, HYBRID)
