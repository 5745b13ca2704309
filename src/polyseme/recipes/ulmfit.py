"""Training recipes of AWD-LSTM, of ULMFiT's general language model, and of its second stage on target-task text."""

from polyseme.objectives.streaming_lm import StreamingCausalLM
from polyseme.recipes.base import define, define_tiny
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
from polyseme.train.recipe import BudgetConfig, Recipe

STREAMING_LM = StreamingCausalLM(bptt_std=5.0, activation_reg=2.0, temporal_activation_reg=1.0)
# Howard and Ruder 2018, §4.1
ADAM = OptimizerConfig(lr=4e-3, beta1=0.7, beta2=0.99, eps=1e-8, weight_decay=0.0, max_grad_norm=0.25)


def awd() -> Recipe:
    """AWD-LSTM for WikiText-2: NT-ASGD, learning rate 30, 80 streams of about 70 tokens, 750 epochs, AR 2, TAR 1.

    Merity et al. 2018, §5 and §6, and the authors' code.
    """
    return define(
        "ulmfit-awd",
        STREAMING_LM,
        max_len=70,
        batch_tokens=5600,
        size="paper",
        model={"embedding_row_dropout": 0.1, "input_dropout": 0.65, "hidden_dropout": 0.2},
        steps=750 * 373,
        optimizer=OptimizerConfig(lr=30.0, weight_decay=1.2e-6, max_grad_norm=0.25, name="nt_asgd", patience=5),
        schedule=ScheduleConfig("constant", warmup=1),
        every=373,  # an epoch of WikiText-2
        eval_tokens=1 << 20,
        log_every=50,
    )


def lecture() -> Recipe:
    """ULMFiT's general language model with the lecture's sizes: 300 → 1150 → 1150 → 300, tied."""
    return paper().replace(name="ulmfit-lecture", size="lecture")


def paper() -> Recipe:
    """ULMFiT's general language model with the paper's sizes: 400 → 1150 → 1150 → 400, tied.

    Howard and Ruder 2018, §4.1: segments of 70 tokens, Adam with learning rate 4e-3, β₁ 0.7 and β₂ 0.99. The paper
    specifies no more for its 103 M words; here 256 parallel streams, half of the dropout, slanted triangular schedule.
    """
    schedule = ScheduleConfig("slanted", 0.1)
    recipe = define("ulmfit-paper", STREAMING_LM, ADAM, schedule, batch_tokens=17920, steps=30_000, every=1000)
    return recipe.replace(max_len=70, model={"dropout": 0.5}, log_every=50)


def tiny() -> Recipe:
    """ULMFiT's language model with 2 layers and embeddings of 64, for experiments: minutes on a CPU."""
    optimizer, schedule = ADAM.replace(max_grad_norm=1.0), ScheduleConfig("slanted", 0.1)
    recipe = define_tiny("ulmfit", STREAMING_LM, optimizer, schedule, batch_tokens=1024, steps=900, every=300)
    return recipe.replace(max_len=32, model={"dropout": 0.2})


def to_backward(recipe: Recipe) -> Recipe:
    """Return the same recipe for a backward language model."""
    assert isinstance(recipe.objective, StreamingCausalLM)
    model, objective = recipe.model | {"direction": "backward"}, recipe.objective.replace(direction="backward")
    return recipe.replace(name=f"{recipe.name}-backward", model=model, objective=objective)


def build_target_recipe(
    general: Recipe, tokens: int, epochs: float = 10.0, lr: float = 4e-3, num_streams: int = 64
) -> Recipe:
    """Return the recipe of the second stage: fine-tune the general model on the text of a task (§3.2).

    It has discriminative learning rates, each layer's 2.6 times that of the layer below, and a slanted triangular
    schedule over the whole run. Short texts are read in fewer parallel streams, so that an epoch has several steps.
    """
    num_streams = max(min(num_streams, tokens // (20 * general.max_len)), 1)
    batch_tokens = num_streams * general.max_len
    steps = max(int(epochs * tokens / (0.975 * batch_tokens)), 10)
    name, optimizer = general.name.replace("ulmfit", "ulmfit-target"), ADAM.replace(lr=lr, layer_decay=1 / 2.6)
    recipe = general.replace(name=name, optimizer=optimizer, schedule=ScheduleConfig("slanted", 0.1))
    recipe = recipe.replace(batch_tokens=batch_tokens, micro_batch_tokens=batch_tokens, valid_fraction=0.1)
    intervals = {"eval_every": steps, "save_every": steps, "log_every": max(steps // 100, 1)}
    return recipe.replace(budget=BudgetConfig(steps=steps), **intervals)
