"""Training recipes of language models: n-grams, feed-forward, recurrent, Transformers, and those that give features."""

from polyseme.ngram.train import NgramRecipe
from polyseme.objectives.causal_lm import CausalLM
from polyseme.objectives.hybrid_lm import HybridLM
from polyseme.objectives.streaming_lm import StreamingCausalLM
from polyseme.recipes.base import NO_DROPOUT, SHORT_COSINE, define, define_tiny
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
from polyseme.train.recipe import BudgetConfig, Recipe


def ngram3() -> NgramRecipe:
    """Trigrams with interpolated modified Kneser-Ney smoothing: a baseline in a second."""
    return NgramRecipe(name="ngram-3", order=3)


def ngram5() -> NgramRecipe:
    """Up to 5-grams with interpolated modified Kneser-Ney smoothing (Chen and Goodman 1999)."""
    return NgramRecipe(name="ngram-5", order=5)


def nnlm_ap() -> Recipe:
    """The AP News model (§4.2): vectors of 100, 60 hidden units, five previous words, 5 epochs of 14 M words.

    Bengio et al. 2003 use stochastic gradient ascent with learning rate 1e-3, decreasing with the number of updates,
    and weight decay 1e-5; batch size, learning rate and schedule here are for AdamW.
    """
    optimizer = OptimizerConfig(lr=2e-3, weight_decay=1e-5)
    schedule = ScheduleConfig("cosine", warmup=200, min_lr_ratio=0.05)
    recipe = define("nnlm-ap", CausalLM(), optimizer, schedule, batch_tokens=4096, tokens=70_000_000, every=1000)
    return recipe.replace(max_len=512, log_every=50)


def nnlm_tiny() -> Recipe:
    """Vectors of 64, 128 hidden units, five previous tokens, for experiments: two minutes on a CPU."""
    return define_tiny("nnlm", CausalLM(), max_len=512, batch_tokens=2048, steps=1000, lr=5e-3, schedule=SHORT_COSINE)


def rnn_lm_medium() -> Recipe:
    """LSTM with 2 layers of 650 for the Penn Treebank: 20 parallel streams, segments of 35 tokens, clipping at 5.

    Zaremba et al. 2014, §4.1; their 39 epochs of a million words are 50,000 steps. The paper uses SGD; here AdamW.
    """
    optimizer = OptimizerConfig(lr=1e-3, eps=1e-8, weight_decay=0.0, max_grad_norm=5.0)
    schedule = ScheduleConfig("cosine", warmup=100)
    recipe = define(
        "rnn_lm-medium", StreamingCausalLM(), optimizer, schedule, batch_tokens=700, steps=50_000, every=2000
    )
    return recipe.replace(max_len=35)


def rnn_lm_tiny() -> Recipe:
    """LSTM of 128 units, for experiments: two minutes on a CPU. `model.cell` may also be gru or rnn."""
    return define_tiny(
        "rnn_lm", StreamingCausalLM(), max_len=64, batch_tokens=2048, steps=500, lr=5e-3, schedule=SHORT_COSINE
    )


def gpt_base() -> Recipe:
    """GPT as in the paper: 64 × 512 tokens per step, 100 epochs of BooksCorpus.

    The corpus uses the published vocabulary, which has no tokens for the beginning and end of a text.
    Radford et al. 2018, §4.1: Adam with learning rate 2.5e-4, 2,000 warm-up steps, cosine to zero, weight decay 0.01 of
    matrices, dropout 0.1. BooksCorpus has 800 M words (Devlin et al. 2019, §3.1), about a billion tokens.
    """
    optimizer, schedule = OptimizerConfig(lr=2.5e-4, eps=1e-8), ScheduleConfig("cosine", warmup=2000)
    recipe = define(
        "gpt-base", CausalLM(add_bos_eos=False), optimizer, schedule, batch_tokens=32768, tokens=100_000_000_000
    )
    return recipe.replace(max_len=512, compile=True)


def gpt_tiny() -> Recipe:
    """GPT with 2 layers of 128, for experiments: two minutes on two CPU cores.

    To train that fast, it has no dropout, a high learning rate, short sequences, and an initial standard deviation of
    0.06. With the paper's 0.02, a post-norm model of this size learns only word frequencies in that time.
    """
    model = {**NO_DROPOUT, "init_std": 0.06}
    return gpt2_tiny().replace(name="gpt-tiny", family="gpt", model=model, save_every=500)


def gpt2_small() -> Recipe:
    """GPT-2 small: 512 × 1,024 tokens per step.

    The batch size is that of the paper (§2.3), which specifies no learning rate or length of training; those follow
    table 2.1 of GPT-3 for the same size: 6e-4, cosine to 10 %, β₂ 0.95, weight decay 0.1.
    """
    optimizer = OptimizerConfig(lr=6e-4, beta2=0.95, eps=1e-8, weight_decay=0.1)
    schedule = ScheduleConfig("cosine", warmup=700, min_lr_ratio=0.1)
    recipe = define(
        "gpt2-small", CausalLM(), optimizer, schedule, batch_tokens=524288, tokens=10_000_000_000, every=1000
    )
    return recipe.replace(max_len=1024, micro_batch_tokens=32768, compile=True, log_every=50)


def gpt2_tiny() -> Recipe:
    """GPT-2 with 2 layers of 128, for experiments: two minutes on two CPU cores."""
    schedule = ScheduleConfig("cosine", warmup=0.1)
    return define_tiny(
        "gpt2", CausalLM(), max_len=64, batch_tokens=2048, steps=600, model=NO_DROPOUT, schedule=schedule
    )


def gpt_bert_small() -> Recipe:
    """GPT-BERT with 4 layers of 512, for one GPU: half of the micro-batches masked, half causal.

    Charpentier and Samuel 2024: masked next-token prediction and causal LM by one head, 1 : 1. Learning rate, weight
    decay and schedule are those of bert-small, for comparison.
    """
    optimizer, schedule = OptimizerConfig(lr=1e-3, beta2=0.98), ScheduleConfig("linear", warmup=1000)
    objective = HybridLM(mask_prob=0.2)
    recipe = define("gpt-bert-small", objective, optimizer, schedule, batch_tokens=131072, steps=20_000, every=500)
    return recipe.replace(max_len=128, micro_batch_tokens=65536, log_every=10, compile=True)


def gpt_bert_tiny() -> Recipe:
    """GPT-BERT with 2 layers of 128, for experiments: minutes on a CPU."""
    objective = HybridLM(mask_prob=0.2)
    return define_tiny("gpt-bert", objective, max_len=64, steps=1000, batch_tokens=4096, micro_batch_tokens=2048)


def transformer_xl_base() -> Recipe:
    """Transformer-XL base for WikiText-103: 60 parallel streams, segments and memory of 150 tokens, 200,000 steps.

    Dai et al. 2019, §4.1, and the authors' code: Adam with learning rate 2.5e-4, cosine to zero, clipping at 0.25, no
    weight decay, dropout 0.1.
    """
    optimizer = OptimizerConfig(lr=2.5e-4, eps=1e-8, weight_decay=0.0, max_grad_norm=0.25)
    schedule = ScheduleConfig("cosine", warmup=1)
    recipe = define(
        "transformer_xl-base", StreamingCausalLM(), optimizer, schedule, batch_tokens=9000, steps=200_000, every=4000
    )
    return recipe.replace(max_len=150)


def transformer_xl_tiny() -> Recipe:
    """Transformer-XL with 2 layers of 128, for experiments: minutes on a CPU."""
    model, schedule = {**NO_DROPOUT, "memory_len": 64}, SHORT_COSINE.replace(warmup=100)
    return define_tiny(
        "transformer_xl", StreamingCausalLM(), max_len=64, batch_tokens=2048, steps=900, model=model, schedule=schedule
    )


def music_base() -> Recipe:
    """Music Transformer on piano performances, split at 2,048 events as in the paper (Huang et al. 2018, §4.2).

    The paper does not specify the length of training; learning rate and schedule are not from the paper.
    """
    optimizer = OptimizerConfig(lr=5e-4, beta2=0.98, eps=1e-8)
    schedule = ScheduleConfig("cosine", warmup=1000, min_lr_ratio=0.1)
    recipe = define("music-base", CausalLM(), optimizer, schedule, batch_tokens=65536, steps=20_000, every=1000)
    return recipe.replace(max_len=2048, micro_batch_tokens=16384, log_every=50)


def music_tiny() -> Recipe:
    """Music Transformer with 2 layers of 128, for experiments: two minutes on a CPU."""
    return define_tiny(
        "music", CausalLM(), max_len=256, batch_tokens=4096, steps=400, model=NO_DROPOUT, schedule=SHORT_COSINE
    )


def performance_rnn_base() -> Recipe:
    """Three layers of 512 units on segments of 512 events in 64 parallel streams.

    The length of training, learning rate and schedule are not those of the original.
    """
    optimizer = OptimizerConfig(lr=1e-3, eps=1e-8, weight_decay=0.0)
    schedule = ScheduleConfig("cosine", warmup=500, min_lr_ratio=0.05)
    recipe = define(
        "performance_rnn-base", StreamingCausalLM(), optimizer, schedule, batch_tokens=32768, steps=20_000, every=1000
    )
    return recipe.replace(max_len=512, log_every=50)


def performance_rnn_tiny() -> Recipe:
    """An LSTM of 128 units, for experiments: two minutes on a CPU."""
    recipe = define_tiny("performance_rnn", StreamingCausalLM(), max_len=128, batch_tokens=4096, steps=400, lr=5e-3)
    return recipe.replace(model={"dropout": 0.0}, schedule=SHORT_COSINE)


BOTH_DIRECTIONS = CausalLM(direction="both")  # of ELMo, Flair and TagLM, whose states are features of other models


def elmo_original() -> Recipe:
    """ELMo as published, 93.6 M parameters: 128 × 20 tokens per step on three GPUs, ten epochs of 1B Word.

    Peters et al. 2018, §3.4, and the published program: Adagrad with a constant learning rate of 0.2. The program
    starts the sum of squares at 1 and clips at 10, with gradients of 20 times the mean of the two directions' losses.
    Here the loss is their sum, a tenth of that: the same updates have a sum that starts at 0.01, and clipping at 1.
    Ten epochs are 1,000,000 steps.
    """
    optimizer = OptimizerConfig(name="adagrad", lr=0.2, initial_sum=0.01, weight_decay=0.0)
    schedule = ScheduleConfig("constant", warmup=1)
    return define(
        "elmo-original", BOTH_DIRECTIONS, optimizer, schedule, batch_tokens=7680, steps=1_000_000, max_len=128
    )


def elmo_small() -> Recipe:
    """ELMo-small, 13.6 M parameters: an hour on one GPU, with AdamW."""
    recipe = elmo_original().replace(name="elmo-small", size="small", batch_tokens=16384, micro_batch_tokens=16384)
    optimizer = OptimizerConfig(lr=2e-3, weight_decay=0.0, max_grad_norm=10.0)
    recipe = recipe.replace(optimizer=optimizer, schedule=ScheduleConfig("cosine", warmup=2000))
    return recipe.replace(budget=BudgetConfig(minutes=60), eval_every=1000, save_every=1000)


def elmo_tiny() -> Recipe:
    """ELMo with states of 128, for experiments on a CPU."""
    return define_tiny(
        "elmo", BOTH_DIRECTIONS, max_len=64, batch_tokens=2048, steps=900, lr=5e-3, schedule=SHORT_COSINE
    )


def flair_paper() -> Recipe:
    """LSTMs of 2048 units in both directions, 100 × 250 characters per step, clipping at 0.25 (Akbik et al. 2018, §3).

    The steps are one epoch of the 1B Word benchmark. The paper uses SGD with learning rate 20; here AdamW.
    """
    optimizer = OptimizerConfig(lr=1e-3, weight_decay=0.0, max_grad_norm=0.25)
    schedule = ScheduleConfig("cosine", warmup=1000)
    recipe = define("flair", BOTH_DIRECTIONS, optimizer, schedule, batch_tokens=25_000, steps=220_000, max_len=250)
    return recipe.replace(family="flair", size="paper")


def flair_small() -> Recipe:
    """LSTMs of 1024 units: an hour on one GPU."""
    recipe = flair_paper().replace(name="flair-small", size="small", batch_tokens=50_000, micro_batch_tokens=50_000)
    optimizer = recipe.optimizer.replace(lr=2e-3)
    return recipe.replace(budget=BudgetConfig(minutes=60), optimizer=optimizer, eval_every=1000, save_every=1000)


def flair_tiny() -> Recipe:
    """LSTMs of 192 units, for experiments: two minutes on a CPU."""
    return define_tiny(
        "flair", BOTH_DIRECTIONS, max_len=128, batch_tokens=4096, steps=400, lr=5e-3, schedule=SHORT_COSINE
    )


def taglm_paper() -> Recipe:
    """LSTM-2048-512 (§3) in both directions; the paper's forward model is larger and reads characters.

    Peters et al. 2017; an hour on one GPU. A tagger joins the last layer's states between its first two layers.
    """
    sizes = {"num_layers": 1, "dim": 512, "hidden_dim": 2048, "has_projection": True}
    recipe = elmo_small().replace(
        name="taglm", family="rnn_lm", size="", schedule=ScheduleConfig("cosine", warmup=1000)
    )
    return recipe.replace(model={**sizes, "direction": "both", "dropout": 0.1})


def taglm_tiny() -> Recipe:
    """LSTMs of 128 units, for experiments: two minutes on a CPU."""
    recipe = define_tiny(
        "rnn_lm", BOTH_DIRECTIONS, max_len=64, batch_tokens=2048, steps=300, lr=5e-3, schedule=SHORT_COSINE, every=150
    )
    return recipe.replace(name="taglm-tiny", model={"direction": "both"})
