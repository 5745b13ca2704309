"""Which layers to use and how to fine-tune: BERT's table 7, ELMo's layers, and the stages of ULMFiT.

Each of these studies trains one model; its other arms use the same model in another way.
"""

from typing import Any

from polyseme.objectives.causal_lm import CausalLM
from polyseme.objectives.masked_lm import MaskedLM
from polyseme.studies.base import Arm, Question, Study
from polyseme.studies.catalog.lineage import FEATURE_ARMS, FINETUNED_ARMS
from polyseme.studies.catalog.settings import SMALL_TRANSFORMER, train_with

TABLE_7 = "Devlin et al. 2019, table 7"
FEATURES_ALONE = {"num_layers": 2, "word_dim": 0, "use_char_cnn": False}


def _frozen(name: str, layers: str) -> Arm:
    options = {"layers": layers, "network": FEATURES_ALONE}
    return Arm(name, from_arm="fine-tuned", transfer="features", transfer_options=options)


FEATURE_LAYERS = Study(
    name="feature-layers",
    title="Fine-tuned, or frozen: which layers",
    source=f"{TABLE_7} and §5.3",
    arms=(
        Arm(
            "fine-tuned",
            "bert-small",
            {**SMALL_TRANSFORMER, "model.num_layers": 8, **train_with(MaskedLM())},
            note="8 layers of 512, so that the last four are not all. Two BiLSTM layers read the frozen ones, as in "
            "the paper. The weighted sums include the embeddings if all layers are summed.",
        ),
        _frozen("embeddings", "embeddings"),
        _frozen("second-to-last", "second_to_last"),
        _frozen("last", "last"),
        _frozen("sum-last-4", "scalar_mix_last_4"),
        _frozen("concat-last-4", "concat_last_4"),
        _frozen("sum-all", "scalar_mix"),
    ),
    metrics=("wnut-17", "ud-pos"),
    questions=(
        Question(
            "Is fine-tuning better than the best features?",
            *("fine-tuned", "concat-last-4", "wnut-17", "higher"),
            source=f"{TABLE_7}: CoNLL-2003 dev F1 96.4 and 96.1",
            published=0.3,
        ),
        Question(
            "Is the second-to-last layer better than the last?",
            *("second-to-last", "last", "wnut-17", "higher"),
            source=f"{TABLE_7}: 95.6 and 94.9",
            published=0.7,
        ),
        Question(
            "Are four concatenated layers better than the last?",
            *("concat-last-4", "last", "wnut-17", "higher"),
            source=f"{TABLE_7}: 96.1 and 94.9",
            published=1.2,
        ),
        Question(
            "Is a weighted sum of four layers better than one of all?",
            *("sum-last-4", "sum-all", "wnut-17", "higher"),
            source=f"{TABLE_7}: 95.9 and 95.5",
            published=0.4,
        ),
        Question(
            "Are embeddings alone worse than the last layer?",
            *("embeddings", "last", "wnut-17", "lower"),
            source=f"{TABLE_7}: 91.0 and 94.9",
            published=-3.9,
        ),
    ),
)

PETERS = "Peters et al. 2018"
ELMO = next(arm for arm in FEATURE_ARMS if arm.name == "elmo")


def _elmo(name: str, **options: Any) -> Arm:
    return Arm(name, from_arm="all-layers", transfer="features", transfer_options=options)


ELMO_LAYERS = Study(
    name="elmo-layers",
    title="ELMo: which layers, and where they join the network",
    source=f"{PETERS}, tables 2, 3 and 6",
    arms=(
        Arm(
            "all-layers",
            ELMO.recipe,
            {**ELMO.overrides, **train_with(CausalLM(direction="both"))},
            "features",
            {"layers": "scalar_mix"},
            tokenizer=ELMO.tokenizer,
            note="Word embeddings are learned from the task alone; the paper starts from GloVe.",
        ),
        _elmo("words-alone", features=[]),
        _elmo("last-layer", layers="last"),
        _elmo("first-layer", layers="1"),
        _elmo("all-layers-large-penalty", layers="scalar_mix", network={"mix_penalty": 1.0}),
        _elmo("at-output", layers="scalar_mix", join_at="output"),
        _elmo("at-both", layers="scalar_mix", join_at="both"),
    ),
    metrics=("wnut-17", "ud-pos", "squad-shifts"),
    questions=(
        Question(
            "Does ELMo help?",
            *("all-layers", "words-alone", "squad-shifts", "higher"),
            source=f"{PETERS}, table 2: SQuAD 85.2 and 80.8",
            published=4.4,
        ),
        Question(
            "Are all layers better than the last?",
            *("all-layers", "last-layer", "squad-shifts", "higher"),
            source=f"{PETERS}, table 2: SQuAD 85.2 and 84.7",
            published=0.5,
        ),
        Question(
            "Is a small penalty on the weights of layers better than a large one?",
            *("all-layers", "all-layers-large-penalty", "squad-shifts", "higher"),
            source=f"{PETERS}, table 2: SQuAD 85.2 and 85.0",
            published=0.2,
        ),
        Question(
            "Is ELMo better at the input and the output than at the input alone?",
            *("at-both", "all-layers", "squad-shifts", "higher"),
            source=f"{PETERS}, table 3: SQuAD 85.6 and 85.1",
            published=0.5,
        ),
        Question(
            "Is ELMo worse at the output alone?",
            *("at-output", "all-layers", "squad-shifts", "lower"),
            source=f"{PETERS}, table 3: SQuAD 84.8 and 85.1",
            published=-0.3,
        ),
        Question(
            "Does the first layer know more about parts of speech than the last?",
            *("first-layer", "last-layer", "ud-pos", "higher"),
            source=f"{PETERS}, table 6: PTB accuracy 97.3 and 96.8",
            published=0.5,
        ),
    ),
)

HOWARD = "Howard and Ruder 2018"
ULMFIT = next(arm for arm in FINETUNED_ARMS if arm.name == "ulmfit")


def _ulmfit(name: str, note: str = "", **options: Any) -> Arm:
    return Arm(name, from_arm="ulmfit", transfer_options=options, note=note)


ULMFIT_STAGES = Study(
    name="ulmfit-stages",
    title="ULMFiT: what each stage and each trick contributes",
    source=f"{HOWARD}, tables 6 and 7",
    arms=(
        ULMFIT,
        _ulmfit("from-scratch", "The classifier alone, from random weights.", from_scratch=True, target_epochs=0.0),
        _ulmfit("no-target-lm", "The classifier starts from the general language model.", target_epochs=0.0),
        _ulmfit("one-rate", "The same learning rate in all layers of the classifier.", layer_decay=1.0),
        _ulmfit("no-unfreezing", "All layers of the classifier are trained from the start.", unfreeze_every=0.0),
        _ulmfit("cosine", "A cosine instead of the slanted triangular schedule.", schedule="cosine"),
    ),
    metrics=("trec", "sst-2"),
    questions=(
        Question(
            "Is pre-training better than training from scratch?",
            *("ulmfit", "from-scratch", "trec", "higher"),
            source=f"{HOWARD}, table 7: TREC-6 errors 5.69 and 13.36",
            published=7.67,
        ),
        Question(
            "Does the language model of the task's text help?",
            *("ulmfit", "no-target-lm", "trec", "higher"),
            source=f"{HOWARD}, table 6: TREC-6 errors 5.69 and 6.38",
            published=0.69,
        ),
        Question(
            "Do discriminative learning rates help?",
            *("ulmfit", "one-rate", "trec", "higher"),
            source=f"{HOWARD}, table 7: TREC-6 errors 5.69 and 6.02",
            published=0.33,
        ),
        Question(
            "Does gradual unfreezing help?",
            *("ulmfit", "no-unfreezing", "trec", "higher"),
            source=f"{HOWARD}, table 7: TREC-6 errors 5.86 and 6.21, without the slanted triangular schedule",
            published=0.35,
        ),
        Question(
            "Is the slanted triangular schedule better than a cosine?",
            *("ulmfit", "cosine", "trec", "higher"),
            source=f"{HOWARD}, table 7: TREC-6 errors 6.02 and 6.38, without discriminative learning rates",
            published=0.36,
        ),
    ),
)

FEATURE_STUDIES = (FEATURE_LAYERS, ELMO_LAYERS, ULMFIT_STAGES)
