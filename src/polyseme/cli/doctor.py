"""`polyseme doctor`: versions, devices, extras, and what is broken or slow on this machine."""

import subprocess
import sys
import time
from itertools import groupby
from typing import Annotated

import typer
from typer import Option

from polyseme.cli import options
from polyseme.cli.output import print_json, print_table, print_wrapped
from polyseme.machine import Finding, Machine

TRIAL_HELP = "Also run torch: float32, bfloat16 and torch.compile, each in a process of its own (up to a minute)."
TRIAL_TIMEOUT = 120
_SETUP = "import torch; device = 'cuda' if torch.cuda.is_available() else 'cpu'; "
TRIALS = {
    "float32": _SETUP + "x = torch.ones(64, 64, device=device); assert (x @ x).sum().item() == 64 ** 3",
    "bfloat16": _SETUP + "x = torch.ones(64, 64, device=device).bfloat16(); assert (x @ x).sum().item() == 64 ** 3",
    "torch.compile": _SETUP
    + "f = torch.compile(lambda x: x.sin() + 1); assert f(torch.zeros(8, device=device)).sum() == 8",
}
TRIAL_ADVICE = {
    "float32": "install torch again: https://pytorch.org/get-started/locally",
    "bfloat16": "leave the precision at float32; with AMX, try ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16",
    "torch.compile": "install g++ and python3-dev, or pass --set compile=false",
}


def doctor(
    trial: Annotated[bool, Option("--trial", help=TRIAL_HELP)] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Report versions, devices, and what is broken or slow here.

    Exits with 1 if something is broken.
    """
    machine = Machine.inspect()
    trials = {name: run_trial(name) for name in TRIALS} if trial else {}
    findings = [*(each for each in trials.values() if isinstance(each, Finding)), *machine.find_problems()]
    seconds = {name: each for name, each in trials.items() if not isinstance(each, Finding)}
    if as_json:
        print_json({**machine.to_json(), "findings": [vars(each) for each in findings], "trial_seconds": seconds})
    else:
        _print_machine(machine)
        for name, value in seconds.items():
            print(f"{name}: works ({value:.1f} s)")
        _print_findings(findings)
    if any(finding.severity == "broken" for finding in findings):
        raise typer.Exit(1)


def run_trial(name: str) -> float | Finding:
    """Run a trial in a process of its own, which may crash; return its seconds, or what is wrong."""
    started = time.perf_counter()
    try:
        process = subprocess.run(
            [sys.executable, "-c", TRIALS[name]], capture_output=True, text=True, timeout=TRIAL_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return Finding("slow", f"{name} takes more than {TRIAL_TIMEOUT} seconds", TRIAL_ADVICE[name])
    if process.returncode == 0:
        return time.perf_counter() - started
    lines = process.stderr.strip().splitlines() or ["no message"]
    reason = f"signal {-process.returncode}" if process.returncode < 0 else lines[-1][:200]
    return Finding("broken" if name == "float32" else "slow", f"{name} does not work ({reason})", TRIAL_ADVICE[name])


def version(is_requested: bool) -> None:
    """Print the versions and the device, and exit."""
    if is_requested:
        machine = Machine.inspect()
        torch = f"torch {machine.torch or 'missing'}"
        print(f"polyseme {machine.polyseme or 'from source'} ({torch}, Python {machine.python}, {machine.device})")
        raise typer.Exit()


def _print_machine(machine: Machine) -> None:
    cuda = f"CUDA {machine.torch_cuda}" if machine.torch_cuda else "without CUDA"
    cpu = machine.cpu
    instructions = [name for name in ("avx2", "avx512f", "amx_bf16") if name in cpu.flags]
    rows = [
        ("polyseme", machine.polyseme or "from source"),
        ("Python", f"{machine.python}, {sys.executable}"),
        ("torch", f"{machine.torch or 'missing'}, {cuda}"),
        ("system", machine.system),
        ("CPU", f"{cpu.name}, {cpu.num_usable_cores} of {cpu.num_cores} cores, {' '.join(instructions) or 'no AVX2'}"),
        ("memory", f"{machine.memory_gb} GB"),
        *(("GPU", f"{g.name}, {g.memory_gb} GB, {'bf16' if g.supports_bf16 else 'no bf16'}") for g in machine.gpus),
        *([] if machine.gpus else [("GPU", "none")]),
        ("compiler", machine.compiler or "none"),
        *((f"disk {folder}", f"{free_gb:,.1f} GB free") for folder, free_gb in machine.disk_free_gb.items()),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:{width}}  {value}")
    print()
    print_table(
        ["needs", "version", "required"],
        [(p.name, p.version or "missing", p.required) for p in machine.packages if not p.extra],
    )
    print()
    extras = []
    for extra, group in groupby((p for p in machine.packages if p.extra), key=lambda package: package.extra):
        packages = list(group)
        is_complete = all(package.is_usable for package in packages)
        versions = ", ".join(f"{p.name} {p.version}" if p.version else f"no {p.name}" for p in packages)
        extras.append((extra, versions if is_complete else f"{versions}: pip install 'polyseme[{extra}]'"))
    print_table(["extra", "installed"], extras)


def _print_findings(findings: list[Finding]) -> None:
    print()
    for finding in findings:
        print_wrapped(f"{finding.severity}: {finding.problem}; {finding.advice}", 2)
    if not any(finding.severity == "broken" for finding in findings):
        print("nothing is broken")
