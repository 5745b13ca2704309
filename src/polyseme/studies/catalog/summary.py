"""Tables of the studies and their questions for the documentation."""

from polyseme.studies.base import Question
from polyseme.studies.catalog import STUDIES


def format_markdown() -> str:
    """Format the studies as Markdown: a table of all of them, and one of the questions of each."""
    lines = ["| study | about | source | trained arms | other arms | measured by |", "|---|---|---|---|---|---|"]
    for study in STUDIES.values():
        num_trained = sum(not arm.from_arm for arm in study.arms)
        cells = (f"`{study.name}`", study.title, study.source, num_trained, len(study.arms) - num_trained)
        lines.append(f"| {' | '.join(map(str, cells))} | {', '.join(study.metrics)} |")
    for study in STUDIES.values():
        lines += ["", f"## {study.name}", ""]
        lines += ["| question | measured as | predicted | published | source |", "|---|---|---|---|---|"]
        lines += [_format_question(question) for question in study.questions]
        lines += [f"\n- {arm.name}: {arm.note}" for arm in study.arms if arm.note]
    return "\n".join(lines).replace("\n\n- ", "\n- ").replace("|\n- ", "|\n\n- ")


def _format_question(question: Question) -> str:
    published = "" if question.published is None else f"{question.published:+g}".replace("-", "−")
    difference = f"`{question.arm}` − `{question.reference}`, {question.metric}"
    return f"| {question.text} | {difference} | {question.predicted} | {published} | {question.source} |"
