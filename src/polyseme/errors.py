"""A user's mistake, told in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PolysemeError(Exception):
    """Something the user can put right. The message is one line: what is wrong, the value, where.

    The command line prints it and exits with status 2; nothing half written is left behind.
    """

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


class Interrupted(Exception):
    """A signal asked a run to leave; everything done so far is saved."""

    def __init__(self, signum: int, step: int):
        super().__init__(f"stopped at step {step} and saved; (drop the flag)")
        self.signum = signum


def suggest(name: str, valid: Iterable[str]) -> str:
    """The tail of an error message that names the closest valid thing, or all of them when few."""
    names = sorted(valid)
    close_matches = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close_matches:
        return f"did you mean {close_matches[0]!r}?"
    listed = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    return f"valid: {listed}" if names else "there is none"
