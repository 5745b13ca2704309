"""A process that runs one job of a study: `python -m polyseme.studies.worker OUT KIND ARM SEED [METRIC]`."""

import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from polyseme.errors import Interrupted, PolysemeError
from polyseme.logs import log_to_stderr

WATCH_SECONDS = 2.0
FAILED_STATUS, STOPPED_STATUS = 2, 143


def main() -> None:
    """Run the job that the arguments name; exit with 2 if it fails, with its error in the last line of the output."""
    out, kind, arm, seed, *metric = sys.argv[1:]
    log_to_stderr()
    signal.signal(signal.SIGTERM, _stop)
    threading.Thread(target=_stop_without_parent, args=(os.getppid(),), daemon=True).start()
    try:
        from polyseme.studies.jobs import Job, run_job
        from polyseme.studies.plan import StudyPlan

        run_job(StudyPlan.read(Path(out)), Job(kind, arm, int(seed), *metric))  # type: ignore[arg-type]
    except Interrupted:
        sys.exit(STOPPED_STATUS)
    except Exception as error:
        if not isinstance(error, PolysemeError):
            traceback.print_exc()
        sys.stderr.write(f"{describe_error(error)}\n")
        sys.exit(FAILED_STATUS)


def describe_error(error: Exception) -> str:
    """Return an error in one line."""
    return str(error) if isinstance(error, PolysemeError) else f"{type(error).__name__}: {' '.join(str(error).split())}"


def _stop(signum: int, frame: Any) -> None:
    sys.exit(STOPPED_STATUS)


def _stop_without_parent(parent: int) -> None:
    """Stop when the process that started this one has ended, so that no job runs on unnoticed."""
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
