"""Regenerate the figures of docs/lecture.md: run every command of the page, and copy the figures that it shows.

    python benchmarks/lecture.py                    # all of it; about five minutes on one core
    python benchmarks/lecture.py --inputs FOLDER    # only write the texts that the commands read

Nothing is downloaded: the models are `mini`, which comes with the package, and small ones that the commands of the page
train on the documentation of the installed Python packages and on generated pairs of sentences. The commands print the
figures that the prose of the page cites.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polyseme
from polyseme.corpus.sources.python_docs import read_documents
from polyseme.explain import attention_steps

PAGE = Path(__file__).parents[1] / "docs" / "lecture.md"
TEXT = "The animal didn't cross the street because it was too tired."
MAX_CHARS = 600_000  # of documentation

# English and German words: subjects and objects with the articles of their cases.
SUBJECTS = dict(man="der Mann", woman="die Frau", child="das Kind", student="der Student", girl="das Mädchen")
OBJECTS = dict(book="das Buch", letter="den Brief", newspaper="die Zeitung", picture="das Bild", plan="den Plan")
VERBS = dict(read="gelesen", found="gefunden", written="geschrieben", seen="gesehen", forgotten="vergessen")
ADJECTIVES = dict(old="alte", young="junge", small="kleine", new="neue", good="gute")
ADVERBS = dict(today="heute", yesterday="gestern", here="hier", often="oft", never="nie")


def sentence_pair(rng: random.Random) -> tuple[str, str]:
    """Return an English sentence and its German translation: the adverb moves to the front, the verb to the end."""
    groups = (SUBJECTS, VERBS, OBJECTS, ADVERBS)
    subject, verb, thing, adverb = (rng.choice(list(words.items())) for words in groups)
    adjectives = [rng.choice([*ADJECTIVES.items(), ("", "")]) for _ in range(2)]
    (nominative, agent), (accusative, noun) = subject[1].split(), thing[1].split()
    ending = "n" if accusative == "den" and adjectives[1][1] else ""
    english = f"the {adjectives[0][0]} {subject[0]} has {verb[0]} the {adjectives[1][0]} {thing[0]} {adverb[0]}"
    german = f"{adverb[1]} hat {nominative} {adjectives[0][1]} {agent} "
    german += f"{accusative} {adjectives[1][1]}{ending} {noun} {verb[1]}"
    return " ".join(english.split()), " ".join(german.split())


def write_inputs(folder: Path) -> None:
    """Write the texts that the commands of the page read."""
    rng = random.Random(0)
    pairs = [sentence_pair(rng) for _ in range(4000)]
    lines = "\n".join(text for _, text in itertools.islice(read_documents(), 400))[:MAX_CHARS].split("\n")
    files = {
        "train.en": [english for english, _ in pairs],
        "train.de": [german for _, german in pairs],
        "text.txt": lines,
        "long.txt": [line for line in lines if len(line.split()) > 60][:60],
        "sentences.txt": [line for line in lines if 8 <= len(line.split()) <= 40][:400],
    }
    for name, content in files.items():
        (folder / name).write_text("\n".join(content) + "\n", encoding="utf-8")


def page_commands(page: str) -> list[list[str]]:
    """Return the words of each `polyseme` command in the code blocks of a page."""
    blocks = re.findall(r"^```bash\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("polyseme ")]


def run_command(words: list[str], folder: Path) -> None:
    """Run a command of the program in a folder, with one thread, and print its output and its time."""
    print("$ polyseme", shlex.join(words), flush=True)
    start = time.perf_counter()
    program = [sys.executable, "-c", "from polyseme.cli.main import main; main()", *words]
    subprocess.run(program, cwd=folder, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    print(f"  {time.perf_counter() - start:.1f} s", flush=True)


def format_steps() -> str:
    """Format the steps of the head in which "it" attends to "animal" as a table."""
    steps = attention_steps(polyseme.load("mini"), TEXT, layer=6, head=1, token="it")
    lines = [f"| key | q·k | scaled by {steps.scale:.3f} | weight |", "|---|---|---|---|"]
    for key, product, score, weight in zip(steps.keys, steps.products, steps.scores, steps.weights):
        lines.append(f"| `{key}` | {product:.2f} | {score:.2f} | {weight:.3f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=Path, help="only write the texts that the commands read, into this folder")
    options = parser.parse_args()
    if options.inputs:
        options.inputs.mkdir(parents=True, exist_ok=True)
        write_inputs(options.inputs)
        return
    page = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder)
        for words in page_commands(page):
            run_command(words, folder)
        figures = PAGE.parent / "figures"
        figures.mkdir(exist_ok=True)
        for figure in re.findall(r"\]\(figures/([^)]+)\)", page):
            shutil.copyfile(folder / figure, figures / figure)
    table = f"<!-- steps -->\n{format_steps()}\n<!-- end -->"
    page = re.sub(r"<!-- steps -->\n.*?<!-- end -->", lambda _: table, page, flags=re.DOTALL)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
