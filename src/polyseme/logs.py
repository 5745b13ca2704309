"""Logging for programs. The library logs under the name `polyseme` and installs no handler by itself."""

import logging
import sys


class StderrHandler(logging.Handler):
    """Write messages to standard error as plain lines."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"{record.getMessage()}\n")
        sys.stderr.flush()


def log_to_stderr(level: int = logging.INFO) -> None:
    """Show the library's messages on standard error; calling it again changes the level."""
    logger = logging.getLogger("polyseme")
    logger.setLevel(level)
    if not any(isinstance(handler, StderrHandler) for handler in logger.handlers):
        logger.addHandler(StderrHandler())
        logger.propagate = False
