"""The lineage on equal terms: the same text, the same time, the same number of parameters outside embeddings."""

from typing import Any

from polyseme.objectives.causal_lm import CausalLM
from polyseme.objectives.masked_lm import MaskedLM, SpanMaskedLM
from polyseme.objectives.permutation_lm import PermutationLM
from polyseme.objectives.sentence_pairs import MaskedLMWithSentencePairs
from polyseme.objectives.span_corruption import SpanCorruption
from polyseme.objectives.streaming_lm import StreamingCausalLM
from polyseme.studies.base import Arm, Question, Study
from polyseme.studies.catalog.settings import GLUE, SHORT_RUN, SMALL_TRANSFORMER, train_with

# Recurrent models and those with a memory have no static shapes to compile; steps are captured as CUDA graphs instead.
UNCOMPILED: dict[str, Any] = {"compile": False}
RECURRENT: dict[str, Any] = {**SHORT_RUN, **UNCOMPILED, "size": "", "model.dropout": 0.0}
WORDS = "words:30000"
WORDS_ON_CPU = "Its own optimizer and batches, on a CPU; vectors of 300, initial values of the task's word embeddings."
FEATURES = "Frozen: its states are features next to word embeddings that are learned from the task alone."

STATIC_ARMS = (
    Arm(
        "n-gram",
        "ngram-5",
        transfer="none",
        note="Orders up to 5, modified Kneser-Ney, over the tokens of the study's vocabulary; counted once, on a CPU.",
    ),
    Arm("word2vec", "word2vec-tiny", {"model.dim": 300}, "features", tokenizer=WORDS, note=WORDS_ON_CPU),
    Arm(
        "fasttext",
        "fasttext-tiny",
        {"model.dim": 300},
        "features",
        tokenizer=WORDS,
        note=f"{WORDS_ON_CPU} 100,000 buckets of n-grams.",
    ),
    Arm("glove", "glove-tiny", {"model.dim": 300}, "features", tokenizer=WORDS, note=WORDS_ON_CPU),
)
FEATURE_ARMS = (
    Arm(
        "nnlm",
        "nnlm-ap",
        {**SHORT_RUN, **train_with(CausalLM()), "size": ""}
        | {"model.dim": 1024, "model.hidden_dim": 1024, "model.window": 12},
        "features",
        {"layers": "last"},
        note=f"A window of 12 subwords instead of 5 words, to have as many parameters as the others. {FEATURES}",
    ),
    Arm(
        "lstm",
        "rnn_lm-medium",
        {**RECURRENT, **train_with(StreamingCausalLM())}
        | {"model.num_layers": 2, "model.dim": 512, "model.hidden_dim": 1256},
        "features",
        {"layers": "last"},
        note=f"Layers of 1,256 and 512 units over subwords, left to right, with memory. {FEATURES} Unlike TagLM's they "
        "join the network at its input, which networks of all tasks have.",
    ),
    Arm(
        "elmo",
        "elmo-small",
        {**RECURRENT, **train_with(CausalLM(direction="both"))}
        | {"model.dim": 512, "model.ffn_dim": 1368, "max_len": 32},
        "features",
        {"layers": "scalar_mix", "network": {"layer_norm": True}},
        tokenizer=WORDS,
        note="LSTMs of 1,368 units projected to 256 in both directions, over sequences of 32 words (the released code "
        f"unrolls 20); a step has words, not subwords. {FEATURES} Layers are normalized before they are mixed.",
    ),
    Arm(
        "flair",
        "flair-small",
        {**RECURRENT, **train_with(CausalLM(direction="both")), "model.dim": 1208, "max_len": 256},
        "features",
        {"layers": "last"},
        tokenizer="characters",
        note=f"LSTMs of 1,208 units in both directions over sequences of 256 characters. {FEATURES}",
    ),
)
FINETUNED_ARMS = (
    Arm(
        "ulmfit",
        "ulmfit-paper",
        {**RECURRENT, **train_with(StreamingCausalLM())}
        | {"model.num_layers": 3, "model.dim": 400, "model.hidden_dim": 872},
        note="Layers of 872, 872 and 400 units. No dropout, no regularizers and fixed segments of 128 in pre-training: "
        "they are meant for many epochs. Fine-tuned in its stages, with its own optimizer and rate.",
    ),
    Arm(
        "gpt",
        "gpt-base",
        {**SMALL_TRANSFORMER, **train_with(CausalLM())},
        note="A start token, which the paper does not have. An auxiliary LM loss on texts and pairs, as in the paper.",
    ),
    Arm("gpt-2", "gpt2-small", {**SMALL_TRANSFORMER, **train_with(CausalLM())}, note="Fine-tuned, not prompted."),
    Arm(
        "bert",
        "bert-small",
        {**SMALL_TRANSFORMER, **train_with(MaskedLMWithSentencePairs(num_static_masks=10))},
        note="Masked LM with 15 % of the tokens, in BERT and in all models after it.",
    ),
    Arm(
        "roberta",
        "roberta-base",
        {**SMALL_TRANSFORMER, **train_with(MaskedLM(cross_documents=True))}
        | {"model.position_offset": 1, "model.num_segments": 0},
        note="The study's vocabulary instead of byte-level BPE; its padding has the id 0, after which positions start.",
    ),
    Arm(
        "albert",
        "albert-base",
        {**SMALL_TRANSFORMER, "model.embedding_dim": 128}
        | train_with(MaskedLMWithSentencePairs(mask_unit="ngram", pair_task="sop")),
        note="Matched in hidden size and depth, and so in computation; it has a quarter of the parameters, because its "
        "layers share them.",
    ),
    Arm("spanbert", "spanbert-base", {**SMALL_TRANSFORMER, **train_with(SpanMaskedLM())}),
    Arm(
        "xlnet",
        "xlnet-base",
        {**SMALL_TRANSFORMER, **train_with(PermutationLM())},
        note="Single segments without memory.",
    ),
    Arm(
        "transformer-xl",
        "transformer_xl-base",
        {**SMALL_TRANSFORMER, **UNCOMPILED, **train_with(StreamingCausalLM()), "model.memory_len": 128},
        note="Segments and memory of 128 tokens. Sentences are scored without memory, which it has rarely seen so: no "
        "question compares it with an LSTM, as the paper does on long text.",
    ),
    Arm(
        "t5",
        "t5-small",
        {**SMALL_TRANSFORMER, **train_with(SpanCorruption())}
        | {"model.num_layers": 2, "model.num_decoder_layers": 2, "model.ffn_dim": 1536},
        transfer_options={"optimizer.name": "adafactor", "optimizer.lr": 4e-3},
        tokenizer="wordpiece",
        note="2 layers of 512 in each stack, feed-forward layers of 1,536. Fine-tuned as text to text by Adafactor, as "
        "in the paper, at 0.004 instead of 0.001.",
    ),
    Arm(
        "modernbert",
        "modernbert-small",
        {**SMALL_TRANSFORMER, **train_with(MaskedLM())},
        note="Its layout: pre-norm, rotary positions, gated feed-forward, no biases. 15 % of the tokens are masked, as "
        "in the other arms, not the paper's 30 %.",
    ),
)
GLUE_TABLE = "Devlin et al. 2019, table 1"
QUESTIONS = (
    Question(
        "Does a neural model predict text better than n-grams?",
        *("nnlm", "n-gram", "bits_per_character", "lower"),
        source="Bengio et al. 2003, table 2: perplexity 109 instead of 117 on AP News",
    ),
    Question(
        "Does recurrence predict text better than a window?",
        *("lstm", "nnlm", "bits_per_character", "lower"),
        source="Mikolov et al. 2010, §1: a history of any length instead of a fixed one; no figure is compared here",
    ),
    Question(
        "Does an LSTM know more grammar than n-grams?",
        *("lstm", "n-gram", "blimp", "higher"),
        source="Warstadt et al. 2020, table 3: 69.8 and 61.2",
        published=8.6,
    ),
    Question(
        "Does GPT-2 know more grammar than an LSTM?",
        *("gpt-2", "lstm", "blimp", "higher"),
        source="Warstadt et al. 2020, table 3: 83.0 and 69.8; GPT-2 is larger and read more",
        published=13.2,
    ),
    Question(
        "Do contextual vectors tag names better than static ones?",
        *("elmo", "glove", "wnut-17", "higher"),
        source="Peters et al. 2018, table 1: CoNLL-2003 F1 92.22 and 90.15",
        published=2.07,
    ),
    Question(
        "Do character models tag names better than ELMo?",
        *("flair", "elmo", "wnut-17", "higher"),
        source="Akbik et al. 2018, table 2: CoNLL-2003 F1 93.09 and 92.22",
        published=0.87,
    ),
    Question(
        "Is a fine-tuned Transformer better than ELMo for acceptability?",
        *("gpt", "elmo", "cola", "higher"),
        source=f"{GLUE_TABLE}: 45.4 and 36.0",
        published=9.4,
    ),
    Question(
        "Is BERT better than GPT for paraphrases?",
        *("bert", "gpt", "mrpc", "higher"),
        source=f"{GLUE_TABLE}: F1 88.9 and 82.3",
        published=6.6,
    ),
    Question(
        "Is BERT better than GPT for similarity?",
        *("bert", "gpt", "sts-b", "higher"),
        source=f"{GLUE_TABLE}: 85.8 and 80.0",
        published=5.8,
    ),
    Question(
        "Is BERT better than GPT for acceptability?",
        *("bert", "gpt", "cola", "higher"),
        source=f"{GLUE_TABLE}: 52.1 and 45.4",
        published=6.7,
    ),
    Question(
        "Is RoBERTa better than BERT for single sentences?",
        *("roberta", "bert", "sst-2", "higher"),
        source="Liu et al. 2019, table 4: 95.3 and 93.7, large models on the same text",
        published=1.6,
    ),
    Question(
        "Is ALBERT worse than a BERT of the same hidden size and depth?",
        *("albert", "bert", "sst-2", "lower"),
        source="Lan et al. 2020, table 2: 90.3 and 92.8",
        published=-2.5,
    ),
    Question(
        "Is SpanBERT better than BERT for answer spans?",
        *("spanbert", "bert", "squad-shifts", "higher"),
        source="Joshi et al. 2020, table 1: SQuAD 1.1 F1 94.6 and 91.3, large models",
        published=3.3,
    ),
    Question(
        "Is XLNet better than BERT for answer spans?",
        *("xlnet", "bert", "squad-shifts", "higher"),
        source="Yang et al. 2019, table 1: SQuAD 1.1 F1 94.0 and 92.8, large models on the same text",
        published=1.2,
    ),
    Question(
        "Is span corruption with an encoder better than a language model for answer spans?",
        *("t5", "gpt-2", "squad-shifts", "higher"),
        source="Raffel et al. 2020, table 2: SQuAD exact match 77.59 and 53.81, 6 layers in each stack",
    ),
    Question(
        "Does ModernBERT's layout know more grammar than BERT's, after the same time?",
        *("modernbert", "bert", "blimp", "higher"),
        source="Warner et al. 2024, §2.1; no such figure is printed",
    ),
)
LINEAGE = Study(
    name="lineage",
    title="The lineage on equal terms",
    source="the lectures: from n-gram counts to ModernBERT, each model with the transfer it was designed for",
    arms=(*STATIC_ARMS, *FEATURE_ARMS, *FINETUNED_ARMS),
    metrics=(
        *("bits_per_character", "pseudo_bits_per_character", "blimp", *GLUE),
        *("wnut-17", "trec", "wic", "squad-shifts"),
    ),
    questions=QUESTIONS,
)

LINEAGE_STUDIES = (LINEAGE,)
