"""Studies: pre-training experiments as data, with arms, metrics, and the sign that a paper predicts.

from polyseme.studies import StudyOptions, list_studies, run_study
run_study("bert-objectives", "my/corpus", "DATA/", "my/study", budget="90s", seeds=3)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyseme.studies.base import Arm, Question, Study, list_studies, load_study
    from polyseme.studies.plan import StudyOptions
    from polyseme.studies.runner import StudyStatus, run_study

_MODULES = {
    "base": ("Arm", "Question", "Study", "list_studies", "load_study"),
    "plan": ("StudyOptions",),
    "runner": ("StudyStatus", "run_study"),
}
__all__ = ["Arm", "Question", "Study", "StudyOptions", "StudyStatus", "list_studies", "load_study", "run_study"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"polyseme.studies.{module}"), name)
    raise AttributeError(f"module 'polyseme.studies' has no attribute {name!r}")
