"""Size limits: files per folder and lines per function; `test_design.py` limits the lines per file."""

import ast
from collections import Counter
from pathlib import PurePosixPath

from tests.design.sources import TREES, nodes

MAX_FILES, MAX_FUNCTION_LINES = 15, 60
LARGE_FOLDERS = {"families", "cli", "tasks", "objectives"}  # one file per family, command, task or objective
# Functions that may be longer, and why.
LONG_FUNCTIONS = {
    "nn/kernels/flash_attention.py:_backward_keys": "one Triton kernel",
}


def test_no_folder_has_too_many_files():
    sizes = Counter(PurePosixPath(path).parent.as_posix() for path in TREES)
    assert not {folder: size for folder, size in sizes.items() if size > MAX_FILES and folder not in LARGE_FOLDERS}


def test_no_function_is_too_long():
    long = {
        f"{path}:{node.name}"
        for path, tree in TREES.items()
        for node in nodes(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno > MAX_FUNCTION_LINES
    }
    assert long == set(LONG_FUNCTIONS)
