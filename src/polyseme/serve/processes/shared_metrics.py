"""Metrics of several processes: each writes its own to a file of a folder, and any of them adds up all files."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from polyseme.errors import DataError
from polyseme.io.json import read_json, write_json
from polyseme.serve.metrics import Metrics, Snapshot, format_snapshots

SUPERVISOR = "supervisor"  # its file holds the counts of processes that have ended
PUBLISH_SECONDS = 0.5


class SharedMetrics:
    """The metrics of one of several processes, and of all of them together.

    A process writes its file before it reports, so that no count ever goes down from one report to the next.
    """

    def __init__(self, folder: Path, name: str, take_snapshot: Callable[[], Snapshot]):
        self.folder, self.name, self.take_snapshot = folder, name, take_snapshot
        self._published: Snapshot = {}
        self._lock, self._is_closing = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._publish_regularly, name="metrics", daemon=True)

    def start(self) -> None:
        """Write the file, now and from time to time, for the reports of other processes."""
        self.publish()
        self._thread.start()

    def close(self) -> None:
        """Write the file for the last time."""
        self._is_closing.set()
        self._thread.join()
        self.publish()

    def publish(self) -> Snapshot:
        """Write the file if something has changed; return what it contains."""
        with self._lock:
            snapshot = self.take_snapshot()
            if snapshot != self._published:
                write_json(self.folder / f"{self.name}.json", snapshot)
                self._published = snapshot
            return snapshot

    def format(self) -> str:
        """Return the metrics of all processes in Prometheus' text format."""
        snapshots = {self.name: self.publish()}
        for path in sorted(self.folder.glob("*.json"), key=lambda path: path.stem == SUPERVISOR):  # that one last
            if path.stem != self.name:
                snapshots |= {name: each for name, each in read_snapshot(path)}
        included = snapshots.get(SUPERVISOR, {}).get("included", [])
        return format_snapshots([each for name, each in snapshots.items() if name not in included])

    def _publish_regularly(self) -> None:
        while not self._is_closing.wait(PUBLISH_SECONDS):
            self.publish()


class EndedMetrics:
    """What the process that starts others reports: the counts of those that have ended, and how many there are."""

    def __init__(self, folder: Path):
        self.folder, self.metrics = folder, Metrics()
        self.included: list[str] = []
        self.workers: list[str] = []

    def add(self, name: str) -> None:
        """Take over the counts of a process that has ended, and remove its file."""
        path = self.folder / f"{name}.json"
        for _, snapshot in read_snapshot(path):
            self.metrics.add(snapshot)
        self.included.append(name)
        self.workers = [each for each in self.workers if each != name]
        self._write()  # before the file is removed: a reader that has seen it ignores it
        path.unlink(missing_ok=True)

    def set_workers(self, names: Sequence[str]) -> None:
        """Report the processes that answer requests, by the names of their files."""
        self.workers = list(names)
        self.included = [name for name in self.included if name not in self.workers]  # process ids are used again
        self._write()

    def _write(self) -> None:
        gauges: dict[str, Any] = {"polyseme_workers": {(): float(len(self.workers))}}
        snapshot = {**self.metrics.to_snapshot(gauges), "included": self.included}
        write_json(self.folder / f"{SUPERVISOR}.json", snapshot)


def read_snapshot(path: Path) -> list[tuple[str, Snapshot]]:
    """Return the name and the content of a file; none if it was removed meanwhile."""
    try:
        return [(path.stem, read_json(path))]
    except DataError:
        return []
