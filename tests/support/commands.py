"""Run commands of the command line inside the test process."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
import traceback
from dataclasses import dataclass
from unittest import mock

import typer

# Typer rebuilds all commands at every call, which takes longer than most of them.
get_command = functools.cache(typer.main.get_command)


@dataclass(frozen=True)
class CommandResult:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str


def cli(*args: object) -> CommandResult:
    """Run a command as `polyseme …` does; an exception that escapes `main` gives status 1 and a traceback."""
    from polyseme.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    status: object = 0
    with (
        mock.patch.object(sys, "argv", ["polyseme", *map(str, args)]),
        mock.patch.object(typer.main, "get_command", get_command),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            status = 0 if end.code is None else end.code
        except Exception:
            traceback.print_exc(file=err)
            status = 1
    return CommandResult(int(status), out.getvalue(), err.getvalue())  # type: ignore[call-overload]


def run_cli(*args: object) -> str:
    """Run a command that must succeed, and return what it prints."""
    command = cli(*args)
    assert command.status == 0, f"{args}: {command.status}\n{command.out}\n{command.err}"
    return command.out
