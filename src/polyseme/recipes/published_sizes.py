"""Recipes of the other published sizes, each like a recipe of the same family but for what its paper changes."""

from collections.abc import Callable

from polyseme.recipes import encoder_decoders as s2s
from polyseme.recipes import encoders as enc
from polyseme.recipes import language_models as lm
from polyseme.train.optimizer import ScheduleConfig
from polyseme.train.recipe import BudgetConfig, Recipe, ShortSequencesConfig


def bert_mini() -> Recipe:
    """BERT-mini (4 layers of 256; Turc et al. 2019), with the settings of bert-small."""
    return enc.bert_small().replace(name="bert-mini", size="mini")


def bert_medium() -> Recipe:
    """BERT-medium (8 layers of 512; Turc et al. 2019), with the settings of bert-small."""
    return enc.bert_small().replace(name="bert-medium", size="medium")


def bert_multilingual() -> Recipe:
    """Multilingual BERT: BERT-base with a vocabulary of 119,547 tokens of 104 languages.

    Settings are those of BERT-base. The authors sample languages by their size to the power of 0.7: set the weights of
    the sources when preparing the corpus.
    """
    return enc.bert_base().replace(name="bert-multilingual", size="multilingual")


def bert_xlarge() -> Recipe:
    """BERT-xlarge of ALBERT's comparison: 24 layers of 2,048, 4,096 × 512 tokens per step, 125,000 steps.

    Lan et al. 2020, table 2 and §4.1.
    """
    albert = enc.albert_xlarge()
    settings = {"batch_tokens": albert.batch_tokens, "optimizer": albert.optimizer, "schedule": albert.schedule}
    recipe = enc.bert_base().replace(name="bert-xlarge", size="xlarge", budget=albert.budget, **settings)
    return recipe.replace(micro_batch_tokens=8192, gradient_checkpointing=True, short_sequences=ShortSequencesConfig())


def modernbert_base() -> Recipe:
    """ModernBERT-base: the paper's first phase, 1.72 trillion tokens in sequences of 1,024.

    Warner et al. 2024, §2.2 and appendix A: 30 % masked, 4,608 sequences per step, learning rate 8e-4, constant after a
    warm-up of 3 billion tokens, StableAdamW without clipping of the gradient. In the authors' program, a step at that
    rate decays weights by 1e-5; here the decay is multiplied by the rate. The batch grows over the first 50 billion
    tokens. The two phases with 8,192 tokens are not included.
    """
    recipe = enc.modernbert_small().replace(name="modernbert-base", size="base", max_len=1024)
    optimizer = recipe.optimizer.replace(name="stable_adamw", lr=8e-4, weight_decay=1e-5 / 8e-4, max_grad_norm=0.0)
    batch_tokens = 4608 * 1024
    return recipe.replace(
        optimizer=optimizer,
        schedule=ScheduleConfig("constant", warmup=3e9 // batch_tokens),
        budget=BudgetConfig(tokens=1_719_000_000_000),
        batch_tokens=batch_tokens,
        micro_batch_tokens=32 * 1024,
        batch_warmup_steps=2 * 50_000_000_000 // batch_tokens,
        eval_every=5000,
        save_every=5000,
        log_every=100,
    )


def modernbert_large() -> Recipe:
    """ModernBERT-large: the paper's first phase, like base, with learning rate 5e-4 and 4,928 sequences per step."""
    recipe = modernbert_base().replace(name="modernbert-large", size="large", batch_tokens=4928 * 1024)
    return recipe.replace(
        optimizer=recipe.optimizer.replace(lr=5e-4, weight_decay=1e-5 / 5e-4),
        schedule=ScheduleConfig("constant", warmup=2e9 // recipe.batch_tokens),
        batch_warmup_steps=2 * 10_000_000_000 // recipe.batch_tokens,
        micro_batch_tokens=16 * 1024,
    )


def xlm_roberta_base() -> Recipe:
    """XLM-R base: RoBERTa's settings over 100 languages, 1.5 million steps (Conneau et al. 2020, §3 and §5)."""
    recipe = enc.roberta_base().replace(name="xlm_roberta-base", family="xlm_roberta", micro_batch_tokens=16384)
    return recipe.replace(budget=BudgetConfig(steps=1_500_000))


def xlm_roberta_large() -> Recipe:
    """XLM-R large: RoBERTa-large's settings over 100 languages, 1.5 million steps."""
    recipe = enc.roberta_large().replace(name="xlm_roberta-large", family="xlm_roberta")
    return recipe.replace(budget=BudgetConfig(steps=1_500_000))


def camembert_base() -> Recipe:
    """CamemBERT-base: RoBERTa on French, whole words masked, 100,000 steps of 8,192 × 512 tokens.

    Martin et al. 2020, §4: learning rate 7e-4, 10,000 warm-up steps, linear decay.
    """
    recipe = enc.roberta_base().replace(name="camembert-base", family="camembert")
    recipe = recipe.replace(objective=recipe.objective.replace(mask_unit="word"), budget=BudgetConfig(steps=100_000))
    return recipe.replace(optimizer=recipe.optimizer.replace(lr=7e-4), schedule=ScheduleConfig("linear", warmup=10_000))


def camembert_large() -> Recipe:
    """CamemBERT-large, with the settings of base."""
    return camembert_base().replace(name="camembert-large", size="large", micro_batch_tokens=16384)


def xlnet_large() -> Recipe:
    """XLNet-large as in the paper: 8,192 × 512 tokens per step, 500,000 steps (Yang et al. 2019, appendix A.4)."""
    recipe = enc.xlnet_base().replace(name="xlnet-large", size="large", batch_tokens=8192 * 512)
    return recipe.replace(micro_batch_tokens=8192)


def transformer_xl_large() -> Recipe:
    """Transformer-XL large for WikiText-103: 128 streams, segments and memory of 384, 4,000,000 steps.

    Dai et al. 2019, §4.1, and the authors' code: Adam with learning rate 2.5e-4, 16,000 warm-up steps, dropout 0.2.
    """
    recipe = lm.transformer_xl_base().replace(name="transformer_xl-large", size="large", max_len=384)
    recipe = recipe.replace(batch_tokens=128 * 384, micro_batch_tokens=32 * 384, budget=BudgetConfig(steps=4_000_000))
    model = {"dropout": 0.2, "attention_dropout": 0.2}
    return recipe.replace(model=model, schedule=ScheduleConfig("cosine", warmup=16_000))


def rnn_lm_small() -> Recipe:
    """LSTM with 2 layers of 200 for the Penn Treebank, without dropout: segments of 20 tokens, 13 epochs.

    Zaremba et al. 2014, §4.1. The paper uses SGD; here AdamW.
    """
    recipe = lm.rnn_lm_medium().replace(name="rnn_lm-small", size="small", max_len=20)
    return recipe.replace(batch_tokens=400, micro_batch_tokens=400, budget=BudgetConfig(steps=30_000))


def rnn_lm_large() -> Recipe:
    """LSTM with 2 layers of 1,500 for the Penn Treebank: dropout 0.65, clipping at 10, 55 epochs.

    Zaremba et al. 2014, §4.1. The paper uses SGD; here AdamW.
    """
    recipe = lm.rnn_lm_medium().replace(name="rnn_lm-large", size="large", budget=BudgetConfig(steps=73_000))
    return recipe.replace(optimizer=recipe.optimizer.replace(max_grad_norm=10.0))


def elmo_medium() -> Recipe:
    """ELMo-medium, 28 M parameters, with the settings of the original."""
    return lm.elmo_original().replace(name="elmo-medium", size="medium")


def transformer_big() -> Recipe:
    """Transformer-big as in the paper for English to German: dropout 0.3, 300,000 steps, 20 checkpoints averaged.

    Vaswani et al. 2017, table 3 and §6.1. For English to French the paper has dropout 0.1.
    """
    recipe = s2s.transformer_base().replace(name="transformer-big", size="big", model={"dropout": 0.3})
    optimizer = recipe.optimizer.replace(lr=(1024 * 4000) ** -0.5)
    return recipe.replace(
        optimizer=optimizer,
        budget=BudgetConfig(steps=300_000),
        save_every=600,
        num_averaged=20,
        micro_batch_tokens=8192,
    )


def seq2seq_luong() -> Recipe:
    """Four LSTM layers of 1,000 with multiplicative attention for English to German: 12 epochs of 4.5 M pairs.

    Luong et al. 2015, §4.1: 128 pairs per step, dropout 0.2, clipping at 5. The paper uses SGD; here AdamW.
    """
    recipe = s2s.seq2seq_multi30k().replace(name="seq2seq-luong", size="luong", model={}, num_averaged=0)
    optimizer = recipe.optimizer.replace(lr=1e-3, max_grad_norm=5.0)
    settings = {"eval_every": 5000, "save_every": 5000, "schedule": ScheduleConfig("inverse_sqrt", warmup=4000)}
    return recipe.replace(optimizer=optimizer, budget=BudgetConfig(steps=420_000), **settings)


def _t5(size: str, micro_batch_tokens: int, is_v11: bool) -> Callable[[], Recipe]:
    base = s2s.t5_v11 if is_v11 else s2s.t5_base

    def recipe() -> Recipe:
        sized = base().replace(name=f"t5-{size}", size=size, micro_batch_tokens=micro_batch_tokens)
        return sized.replace(gradient_checkpointing=micro_batch_tokens <= 8192)

    version = "T5 v1.1-" if is_v11 else "T5-"
    recipe.__doc__ = f"{version}{size.removeprefix('v1.1-')}, like {base().name}."
    return recipe


def _gpt2(size: str, lr: float, micro_batch_tokens: int) -> Callable[[], Recipe]:
    def recipe() -> Recipe:
        small = lm.gpt2_small()
        optimizer = small.optimizer.replace(lr=lr)
        return small.replace(name=f"gpt2-{size}", size=size, optimizer=optimizer, micro_batch_tokens=micro_batch_tokens)

    recipe.__doc__ = f"GPT-2 {size}, like gpt2-small, with GPT-3's learning rate of that size, {lr:g}."
    return recipe


def _gpt3(size: str, batch_tokens: int, lr: float, warmup_tokens: float) -> Callable[[], Recipe]:
    """Return the recipe function of one of GPT-3's sizes; the batch grows over the first `warmup_tokens` tokens.

    Brown et al. 2020, table 2.1 and appendix B. The cosine ends with the run; in the paper after 260 of 300 billion.
    """

    def recipe() -> Recipe:
        schedule = ScheduleConfig("cosine", warmup=375_000_000 // batch_tokens, min_lr_ratio=0.1)
        settings = {"budget": BudgetConfig(tokens=300_000_000_000), "max_len": 2048, "schedule": schedule}
        small = lm.gpt2_small().replace(name=f"gpt3-{size}", size=f"gpt3-{size}", **settings)
        return small.replace(
            optimizer=small.optimizer.replace(lr=lr),
            batch_tokens=batch_tokens,
            micro_batch_tokens=32768,
            batch_warmup_steps=int(2 * warmup_tokens / batch_tokens),
            gradient_checkpointing=not size.endswith("m"),
        )

    name = f"{size[:-1]} {'million' if size.endswith('m') else 'billion'}"
    batch = f"{batch_tokens / 1e6:.1f} M tokens per step"
    recipe.__doc__ = f"GPT-3 with {name} parameters as in the paper: {batch}, learning rate {lr:g}, 300 billion tokens."
    return recipe


T5_SIZES = (
    *(_t5("3b", 4096, False), _t5("11b", 2048, False), _t5("v1.1-small", 32768, True), _t5("v1.1-large", 16384, True)),
    *(_t5("v1.1-xl", 4096, True), _t5("v1.1-xxl", 2048, True)),
)
GPT2_SIZES = _gpt2("medium", 3e-4, 16384), _gpt2("large", 2.5e-4, 8192), _gpt2("xl", 2e-4, 8192)
GPT3_SIZES = (
    *(_gpt3("125m", 1 << 19, 6e-4, 4e9), _gpt3("350m", 1 << 19, 3e-4, 4e9), _gpt3("760m", 1 << 19, 2.5e-4, 4e9)),
    *(_gpt3("1.3b", 1 << 20, 2e-4, 6e9), _gpt3("2.7b", 1 << 20, 1.6e-4, 6e9), _gpt3("6.7b", 1 << 21, 1.2e-4, 10e9)),
    *(_gpt3("13b", 1 << 21, 1e-4, 10e9), _gpt3("175b", 100 * 32768, 0.6e-4, 12e9)),
)
