"""Pre-training recipes of bidirectional encoders."""

from polyseme.objectives.distillation import Distillation
from polyseme.objectives.masked_lm import MaskedLM, SpanMaskedLM
from polyseme.objectives.permutation_lm import PermutationLM
from polyseme.objectives.sentence_pairs import MaskedLMWithSentencePairs
from polyseme.recipes.base import NO_DROPOUT, define, define_tiny
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
from polyseme.train.recipe import BudgetConfig, Recipe, ShortSequencesConfig

ALBERT_OBJECTIVE = MaskedLMWithSentencePairs(mask_unit="ngram", pair_task="sop")


def demo() -> Recipe:
    """A two-layer BERT on Python's documentation, trained by `./dev demo`.

    To train in minutes on a CPU, it differs from BERT: masked LM only, no dropout, a high learning rate, and, with
    measurements in docs/log.md, a larger initial standard deviation (0.06), 40 % masked words and short sequences.
    """
    model = {**NO_DROPOUT, "max_len": 128, "init_std": 0.06}
    recipe = define_tiny("bert", MaskedLM(mask_prob=0.4, mask_unit="word"), batch_tokens=2048, max_len=48, model=model)
    return recipe.replace(name="demo", budget=BudgetConfig(minutes=4.0), eval_tokens=32768, save_every=1000)


def bert_base() -> Recipe:
    """BERT-base as in the paper: 1,000,000 steps of 256 sequences, of 128 tokens in 90 % of the steps, then 512.

    Devlin et al. 2019, appendix A.2: Adam with learning rate 1e-4, β₂ 0.999, weight decay 0.01, 10,000 warm-up steps,
    linear decay, dropout 0.1. Random replacements are any token of the vocabulary, as in the authors' code.
    """
    optimizer, schedule = OptimizerConfig(lr=1e-4), ScheduleConfig("linear", warmup=10_000)
    recipe = define(
        "bert-base",
        MaskedLMWithSentencePairs(num_static_masks=10, random_tokens="all"),
        optimizer,
        schedule,
        batch_tokens=131072,
        steps=1_000_000,
    )
    short_sequences = ShortSequencesConfig(max_len=128, fraction=0.9, batch_tokens=256 * 128)
    return recipe.replace(max_len=512, micro_batch_tokens=32768, compile=True, short_sequences=short_sequences)


def bert_large() -> Recipe:
    """BERT-large as in the paper."""
    return bert_base().replace(name="bert-large", size="large", micro_batch_tokens=16384)


def bert_small() -> Recipe:
    """BERT-small (4 layers of 512) with whole-word masked LM only, for one GPU."""
    optimizer, schedule = OptimizerConfig(lr=1e-3, beta2=0.98), ScheduleConfig("linear", warmup=1000)
    recipe = define(
        "bert-small", MaskedLM(mask_unit="word"), optimizer, schedule, batch_tokens=131072, steps=20_000, every=500
    )
    return recipe.replace(max_len=128, micro_batch_tokens=65536, log_every=10)


def bert_tiny() -> Recipe:
    """BERT-tiny (2 layers of 128), for experiments: minutes on a CPU."""
    return define_tiny("bert", MaskedLMWithSentencePairs(), max_len=128, batch_tokens=8192, steps=2000, lr=2e-3)


def modernbert_small() -> Recipe:
    """ModernBERT at the size of BERT-small (4 layers of 512), for one GPU.

    Warner et al. 2024, §2.2.2: 30 % masked tokens, no sentence pairs, no dropout. Learning rate, weight decay and
    schedule are those of bert-small, for comparison.
    """
    objective = MaskedLM(mask_prob=0.3)
    return bert_small().replace(name="modernbert-small", family="modernbert", objective=objective, compile=True)


def mini() -> Recipe:
    """The recipe of the bundled model: ModernBERT's layout with 10 layers of 320, for ten minutes of one GPU.

    Settings are those that were best in docs/results/speedrun.md: 30 % masked tokens, short sequences, Muon.
    """
    model = {**NO_DROPOUT, "num_layers": 10, "dim": 320, "num_heads": 5, "max_len": 512}
    optimizer = OptimizerConfig(lr=2e-3, beta2=0.98, name="muon")
    schedule, objective = ScheduleConfig("linear", warmup=0.06), MaskedLM(mask_prob=0.3)
    recipe = define("modernbert-mini", objective, optimizer, schedule, batch_tokens=131072, steps=10_000, max_len=96)
    recipe = recipe.replace(name="mini", size="", model=model, micro_batch_tokens=65536, compile=True)
    return recipe.replace(eval_every=2000, save_every=10_000)


def modernbert_tiny() -> Recipe:
    """ModernBERT with 2 layers of 128, for experiments: minutes on a CPU."""
    return define_tiny("modernbert", MaskedLM(mask_prob=0.3), max_len=128, batch_tokens=8192, steps=2000, lr=2e-3)


def roberta_base() -> Recipe:
    """RoBERTa-base as in the paper: 8,192 × 512 tokens per step, 500,000 steps, full sentences, dynamic masking.

    Liu et al. 2019, table 9: Adam with learning rate 6e-4, β₂ 0.98 and ε 1e-6, weight decay 0.01, 24,000 warm-up steps,
    linear decay, dropout 0.1, no clipping.
    """
    optimizer = OptimizerConfig(lr=6e-4, beta2=0.98, max_grad_norm=0.0)
    schedule = ScheduleConfig("linear", warmup=24_000)
    recipe = define(
        "roberta-base", MaskedLM(cross_documents=True), optimizer, schedule, batch_tokens=8192 * 512, steps=500_000
    )
    return recipe.replace(
        max_len=512, micro_batch_tokens=32768, compile=True, eval_every=2000, save_every=1000, log_every=10
    )


def roberta_large() -> Recipe:
    """RoBERTa-large as in the paper: like base, with learning rate 4e-4 and 30,000 warm-up steps."""
    recipe = roberta_base().replace(name="roberta-large", size="large", micro_batch_tokens=16384)
    return recipe.replace(optimizer=recipe.optimizer.replace(lr=4e-4), schedule=recipe.schedule.replace(warmup=30_000))


def roberta_tiny() -> Recipe:
    """RoBERTa with 2 layers of 128, for experiments: two minutes on two CPU cores.

    To train that fast, it differs as in the demo: no dropout, a high learning rate, a larger initial standard
    deviation, more masked tokens, short sequences, small batches.
    """
    objective = MaskedLM(mask_prob=0.4, cross_documents=True)
    model = {**NO_DROPOUT, "init_std": 0.06}
    return define_tiny(
        "roberta", objective, max_len=64, batch_tokens=2048, steps=700, model=model, eval_tokens=32768, save_every=500
    )


def distilbert_base() -> Recipe:
    """DistilBERT from BERT-base as in the paper: soft targets, masked LM and cosine loss, dynamic masking.

    Sanh et al. 2019, §3: large batches, no next-sentence prediction. The rest is from the released code: Adam with
    learning rate 5e-4, β₂ 0.98 and ε 1e-6, no weight decay, 5 % warm-up, clipping at 5, three epochs of BERT's
    3.3 billion words, and masks that prefer rare tokens.
    """
    optimizer = OptimizerConfig(lr=5e-4, beta2=0.98, weight_decay=0.0, max_grad_norm=5.0)
    schedule = ScheduleConfig("linear", warmup=0.05)
    recipe = define(
        "distilbert-base",
        Distillation(MaskedLM(mask_smoothing=0.7, random_tokens="all"), freeze_positions=True),
        optimizer,
        schedule,
        batch_tokens=4096 * 512,
        tokens=13_000_000_000,
        every=500,
    )
    return recipe.replace(max_len=512, micro_batch_tokens=32768, compile=True, log_every=10)


def distilbert_tiny() -> Recipe:
    """DistilBERT with 2 layers of 128, with or without a teacher: two minutes on two CPU cores."""
    return roberta_tiny().replace(name="distilbert-tiny", family="distilbert", objective=MaskedLM(mask_prob=0.4))


def albert_base() -> Recipe:
    """ALBERT-base as in the paper: 4,096 × 512 tokens per step, 125,000 steps.

    Lan et al. 2020, §4.1: n-gram masking, sentence order, LAMB with peak learning rate 0.00176, 10 % short inputs. The
    warm-up of 3,125 steps and weight decay 0.01 are from the authors' code.
    """
    optimizer, schedule = OptimizerConfig(name="lamb", lr=0.00176), ScheduleConfig("linear", warmup=3125)
    objective = ALBERT_OBJECTIVE.replace(random_tokens="all")
    recipe = define("albert-base", objective, optimizer, schedule, batch_tokens=2_097_152, steps=125_000)
    return recipe.replace(max_len=512, micro_batch_tokens=32768, compile=True)


def albert_large() -> Recipe:
    """ALBERT-large as in the paper."""
    return albert_base().replace(name="albert-large", size="large", micro_batch_tokens=16384)


def albert_xlarge() -> Recipe:
    """ALBERT-xlarge as in the paper."""
    recipe = albert_base().replace(micro_batch_tokens=8192, gradient_checkpointing=True)
    return recipe.replace(name="albert-xlarge", size="xlarge")


def albert_xxlarge() -> Recipe:
    """ALBERT-xxlarge as in the paper, without dropout (§4.8)."""
    return albert_xlarge().replace(name="albert-xxlarge", size="xxlarge", model=NO_DROPOUT)


def albert_tiny() -> Recipe:
    """ALBERT with 2 layers of 128 and embeddings of 64, for experiments: minutes on a CPU."""
    recipe = demo().replace(max_len=64, budget=BudgetConfig(minutes=2.0), eval_every=500)
    return recipe.replace(name="albert-tiny", family="albert", objective=ALBERT_OBJECTIVE)


def spanbert_large() -> Recipe:
    """SpanBERT as in the paper, at the size of BERT-large: 256 × 512 tokens per step, 2.4 million steps.

    Joshi et al. 2020, §4.2: AdamW with learning rate 1e-4, ε 1e-8 and weight decay 0.1, 10,000 warm-up steps, linear
    decay, dropout 0.1; single sequences of up to 512 tokens, dynamic masking.
    """
    objective, optimizer = SpanMaskedLM(random_tokens="all"), OptimizerConfig(lr=1e-4, eps=1e-8, weight_decay=0.1)
    recipe = bert_large().replace(name="spanbert-large", family="spanbert", objective=objective)
    recipe = recipe.replace(short_sequences=ShortSequencesConfig(), optimizer=optimizer)
    return recipe.replace(budget=BudgetConfig(steps=2_400_000))


def spanbert_base() -> Recipe:
    """SpanBERT at the size of BERT-base, published with the same settings."""
    return spanbert_large().replace(name="spanbert-base", size="base", micro_batch_tokens=32768)


def spanbert_tiny() -> Recipe:
    """SpanBERT with 2 layers of 128, for experiments: minutes on a CPU."""
    return albert_tiny().replace(name="spanbert-tiny", family="spanbert", objective=SpanMaskedLM())


def xlnet_base() -> Recipe:
    """XLNet-base after the paper: one token in six predicted, 512 tokens.

    Yang et al. 2019, §3.1 and A.4, for the large model: batches of 8,192 × 512, 500,000 steps, Adam with learning rate
    4e-4, ε 1e-6, weight decay 0.01, 40,000 warm-up steps, linear decay; the base model here has a quarter of the batch.
    """
    optimizer, schedule = OptimizerConfig(lr=4e-4), ScheduleConfig("linear", warmup=40_000)
    recipe = define("xlnet-base", PermutationLM(), optimizer, schedule, batch_tokens=1_048_576, steps=500_000)
    return recipe.replace(max_len=512, micro_batch_tokens=16384)


def xlnet_tiny() -> Recipe:
    """XLNet with 2 layers of 128, for experiments: minutes on a CPU."""
    return define_tiny(
        "xlnet", PermutationLM(), max_len=64, batch_tokens=4096, steps=550, model={**NO_DROPOUT, "init_std": 0.05}
    )
