"""A smaller model taught by a larger one: a teacher's folder and a corpus to a run folder with the student in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polyseme.corpus.store import Corpus
from polyseme.errors import UserError
from polyseme.nn.model import Model, ModelSpec
from polyseme.objectives.distillation import Distilled
from polyseme.objectives.specs import CausalLM
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.pretrain import Lesson, pretrain
from polyseme.train.recipe import Recipe
from polyseme.train.warm_start import weights_hash
from polyseme.weights.folder import load_model

STUDENTS = {"bert": "distilbert"}  # a family whose students have one of their own; the others keep theirs


def distil(recipe: Recipe, teacher_path: Path, corpus_path: Path, out: Path, resume: bool = False) -> dict[str, Any]:
    """Run the recipe, whose objective becomes a distillation if it is none, and return its results.

    The student starts with layers of the teacher. The run folder is that of `pretrain`, and a run is resumed in the
    same way, with the same teacher.
    """
    recipe = taught(recipe)
    assert isinstance(recipe.objective, Distilled)
    tokenizer = Tokenizer.load(Corpus.open(corpus_path).path / "tokenizer")
    folder = load_model(teacher_path)
    teacher, head = folder.model, recipe.objective.head
    if folder.tokenizer.hash != tokenizer.hash:
        raise UserError(
            f"{corpus_path} has another vocabulary than {teacher_path}: prepare it with --tokenizer {teacher_path}"
        )
    if head not in teacher.heads:
        has = ", ".join(teacher.heads) or "none"
        raise UserError(f"{teacher_path} cannot teach: it has no head {head!r} (its heads: {has})")
    student = recipe.check().model_spec(teacher.spec.trunk.embeddings.vocab_size).build(recipe.seed)
    take_layers(student, teacher)
    about = {"teacher": str(teacher_path), "teacher_hash": weights_hash(teacher_path)}
    return pretrain(recipe, corpus_path, out, resume, Lesson(student, teacher, about))


def taught(recipe: Recipe) -> Recipe:
    """The recipe with a teacher beside its objective."""
    objective = recipe.objective
    return recipe if isinstance(objective, Distilled) else recipe.replace(objective=Distilled(objective))


def student_of(teacher: ModelSpec, recipe: Recipe) -> Recipe:
    """The recipe for a student with half of the teacher's layers and all else as the teacher has it."""
    trunk, block = teacher.transformer, teacher.transformer.block
    family = STUDENTS.get(teacher.family, teacher.family)
    sizes = {
        "num_layers": (trunk.num_layers + 1) // 2,
        "dim": trunk.dim,
        "num_heads": block.attention.num_heads,
        "ffn_dim": block.ffn.ffn_dim,
        "max_len": trunk.embeddings.max_len,
        "activation": block.ffn.activation,
    }
    objective = CausalLM() if trunk.causal else recipe.objective
    max_len = min(recipe.max_len, trunk.embeddings.max_len)
    name = f"{family}-student"
    return recipe.replace(name=name, family=family, size="", model=sizes, objective=objective, max_len=max_len)


def layers(of_student: int, of_teacher: int) -> list[int]:
    """The teacher's layer that each of the student's starts as: evenly spread, the first and the last among them.

    Of 12 for 6 these are 0, 2, 4, 7, 9 and 11, as in DistilBERT's released code.
    """
    if of_student > of_teacher:
        raise UserError(f"a student of {of_student} layers cannot start from a teacher of {of_teacher}")
    return [round(i * (of_teacher - 1) / max(of_student - 1, 1)) for i in range(of_student)]


def take_layers(student: Model, teacher: Model) -> None:
    """Give the student the teacher's embeddings, some of its layers, and the heads that both have.

    Where the student has no segments, the teacher's first one, which every single text has, goes into the positions.
    """
    given, wanted = teacher.state_dict(), student.state_dict()
    taken = {name: tensor for name, tensor in given.items() if not name.startswith("trunk.blocks.")}
    segments, positions = "trunk.embeddings.segments.weight", "trunk.embeddings.positions.weight"
    if segments in given and segments not in wanted and positions in given:
        taken[positions] = given[positions] + given[segments][0]
    if positions in taken and positions in wanted:
        taken[positions] = taken[positions][: len(wanted[positions])]  # a student may read less
    below, above = student.spec.transformer.depths, teacher.spec.transformer.depths
    for depth, source in enumerate(layers(len(below), len(above))):
        start, own = f"trunk.blocks.{above[source]}.", f"trunk.blocks.{below[depth]}."
        taken |= {own + name.removeprefix(start): t for name, t in given.items() if name.startswith(start)}
    for name, tensor in wanted.items():
        if name not in taken and not name.startswith("heads."):
            raise UserError(f"the student cannot start from its teacher ({teacher.spec.family}), which has no {name}")
        if name in taken and taken[name].shape != tensor.shape:
            sizes = f"{tuple(tensor.shape)} in the student and {tuple(taken[name].shape)} in the teacher"
            raise UserError(f"the student cannot start from its teacher: {name} is {sizes}")
    student.load_state_dict({name: t for name, t in taken.items() if name in wanted}, strict=False)
