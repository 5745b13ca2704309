"""The training of a seed stops after any step and continues exactly."""

import random

import pytest
import torch

from polyseme.families import FAMILIES
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import Experiment, Split, TaskData, TaskRun
from polyseme.finetuning.training import SeedTraining
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.sequence import TextExample
from polyseme.tasks.tagging import TaggingExample, TaggingTask
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.optimizer import OptimizerConfig

WORDS = ["cat", "dog", "fish", "bird", "wolf", "bear"]


def experiment(config, several):
    tokenizer = Tokenizer.train("wordpiece", iter([" ".join(WORDS)] * 30), 120)
    draw = random.Random(0)
    words = [tuple(draw.choices(WORDS, k=draw.randint(2, 6))) for _ in range(40)]
    texts = [TextExample(f"d:{i}", " ".join(w), label="yes" if "wolf" in w else "no") for i, w in enumerate(words)]
    tagged = [TaggingExample(f"t:{i}", w, tuple("A" if x < "d" else "O" for x in w)) for i, w in enumerate(words)]
    chosen = [(ClassificationTask(), texts, "a"), (TaggingTask(), tagged, "b")][: 1 + several]
    family = FAMILIES["bert"]
    spec = family.model_config(num_layers=2, dim=16, num_heads=2, vocab_size=tokenizer.vocab_size, max_len=24)
    runs, heads = [], {}
    for task, examples, name in chosen:
        task = task.replace(name=name if several else "").fit(examples)
        split = Split(examples, list(task.encode(examples, tokenizer, 24)))
        runs.append(TaskRun(task, TaskData(task, examples, examples, task.name), split, split))
        heads |= task.heads(family, spec.trunk)
    return Experiment(tuple(runs), config, lambda seed: spec.replace(heads=heads).build(seed), None, {})


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("changes", [{}, {"unfreeze_every": 0.5}, {"patience": 2}])
def test_resume_is_exact(several, changes):
    config = FinetuneConfig(epochs=3.0, batch_size=8, optimizer=OptimizerConfig(lr=1e-2)).replace(**changes)
    made = experiment(config, several)
    whole = SeedTraining(made, 3)
    losses = [report.loss for report in whole.steps()]
    first = SeedTraining(made, 3)
    steps, stop = first.steps(), len(losses) // 2
    begun = [next(steps).loss for _ in range(stop)]
    state = first.checkpoint()
    steps.close()
    assert state.step == stop
    second = SeedTraining(made, 3)
    second.restore(state)
    assert begun + [report.loss for report in second.steps()] == losses
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, second.model.state_dict()[name]), name
