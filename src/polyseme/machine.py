"""Facts about the installation and the machine, and what is broken or slow there; nothing heavy is imported."""

import os
import platform
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

Severity = Literal["broken", "slow", "note"]
MIN_DISK_GB, MIN_MEMORY_GB, MIN_SHM_GB = 5, 4, 1
_UMBRELLA_EXTRAS = ("all", "dev")
_REQUIREMENT = re.compile(r"([\w.-]+)([<>=!~,.\w]*)(?:; extra == \"(\w+)\")?")


@dataclass(frozen=True)
class Package:
    """A package that Polyseme needs, or that one of its extras needs."""

    name: str
    required: str  # versions, such as >=2.11,<2.14
    extra: str  # empty if Polyseme itself needs it
    version: str  # empty if it is not installed

    @property
    def is_usable(self) -> bool:
        """Whether it is installed in a version that is supported."""
        return bool(self.version) and all(
            _compare(self.version, *bound) for bound in re.findall(r"(>=|<)([\d.]+)", self.required)
        )


@dataclass(frozen=True)
class Cpu:
    """The processor, and how many of its cores this process may use."""

    name: str
    num_cores: int
    num_usable_cores: int
    flags: frozenset[str]


@dataclass(frozen=True)
class Gpu:
    """A GPU as its driver describes it."""

    name: str
    memory_gb: float
    compute_capability: float

    @property
    def supports_bf16(self) -> bool:
        """Whether it computes in bfloat16 (Ampere and later)."""
        return self.compute_capability >= 8


@dataclass(frozen=True)
class Finding:
    """Something that is broken, slow, or worth knowing, and one line of advice."""

    severity: Severity
    problem: str
    advice: str


@dataclass(frozen=True)
class Machine:
    """The installation and the machine."""

    polyseme: str
    python: str
    system: str
    torch: str
    torch_cuda: str  # version of CUDA that torch was built for, empty for none
    packages: tuple[Package, ...]
    cpu: Cpu
    memory_gb: float
    gpus: tuple[Gpu, ...]
    disk_free_gb: dict[str, float]  # by folder
    shm_gb: float | None
    compiler: str  # C++ compiler for `torch.compile`, empty for none
    has_python_headers: bool

    @classmethod
    def inspect(cls) -> "Machine":
        """Read the facts, in about a tenth of a second."""
        return cls(
            polyseme=read_version("polyseme"),
            python=platform.python_version(),
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
            torch=read_version("torch"),
            torch_cuda=_read_torch_cuda(),
            packages=tuple(list_packages()),
            cpu=_read_cpu(),
            memory_gb=round(read_memory_gb(), 1),
            gpus=tuple(list_gpus()),
            disk_free_gb={str(folder): _free_gb(folder) for folder in (Path.cwd(), Path(tempfile.gettempdir()))},
            shm_gb=_free_gb(Path("/dev/shm")) if Path("/dev/shm").is_dir() else None,
            compiler=_find_compiler(),
            has_python_headers=Path(sysconfig.get_path("include"), "Python.h").is_file(),
        )

    @property
    def device(self) -> str:
        """The device that models run on by default."""
        return self.gpus[0].name if self.gpus and self.torch_cuda else "CPU"

    def to_json(self) -> dict[str, Any]:
        """Return all facts and findings as values of JSON."""
        facts = asdict(self)
        facts["cpu"]["flags"] = sorted(self.cpu.flags)
        return {**facts, "device": self.device, "findings": [asdict(finding) for finding in self.find_problems()]}

    def find_problems(self) -> list[Finding]:
        """Return what is broken, then what is slow, then what is worth knowing."""
        findings = [*self._check_packages(), *self._check_gpus(), *self._check_cpu(), *self._check_space()]
        order: tuple[Severity, ...] = ("broken", "slow", "note")
        return sorted(findings, key=lambda finding: order.index(finding.severity))

    def _check_packages(self) -> Iterator[Finding]:
        for package in self.packages:
            if package.is_usable or (package.extra and not package.version):
                continue
            problem = (
                f"{package.name} {package.version} is installed" if package.version else f"{package.name} is missing"
            )
            severity: Severity = "slow" if package.extra else "broken"
            advice = f"pip install '{package.name}{package.required}'"
            yield Finding(severity, f"{problem}, but {package.required or 'any version'} is required", advice)

    def _check_gpus(self) -> Iterator[Finding]:
        if self.gpus and not self.torch_cuda:
            problem = f"there is a GPU ({self.gpus[0].name}), but torch {self.torch} was built without CUDA"
            yield Finding("slow", problem, "install torch with CUDA: https://pytorch.org/get-started/locally")
        if not self.gpus:
            advice = "use recipes that end in -tiny, with a time budget; base models can be fine-tuned, slowly"
            yield Finding("slow", "there is no GPU: pre-training of anything but tiny models is slow", advice)
        if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
            yield Finding("slow", "CUDA_VISIBLE_DEVICES is empty, which hides all GPUs", "unset it")
        for gpu in self.gpus:
            if not gpu.supports_bf16:
                problem = f"{gpu.name} has no bfloat16, in which models are trained by default"
                yield Finding("slow", problem, "set `precision` to float32")
        if len(self.gpus) > 1 and self.shm_gb is not None and self.shm_gb < MIN_SHM_GB:
            problem = f"/dev/shm has {self.shm_gb} GB, which training on several GPUs may exceed"
            yield Finding("slow", problem, "start the container with 8 GB of shared memory")

    def _check_cpu(self) -> Iterator[Finding]:
        cpu, threads = self.cpu, os.environ.get("OMP_NUM_THREADS", "")
        if cpu.flags and "avx2" not in cpu.flags and platform.machine() in ("x86_64", "AMD64"):
            yield Finding("slow", f"{cpu.name} has no AVX2: torch is several times slower", "use another machine")
        if "amx_bf16" in cpu.flags:
            problem = "bfloat16 products on a CPU with AMX crash in some virtual machines (illegal instruction)"
            advice = "leave `precision` at float32 on the CPU, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
            yield Finding("note", problem, advice)
        if threads.isdecimal() and int(threads) > cpu.num_usable_cores:
            problem = f"OMP_NUM_THREADS is {threads}, but {cpu.num_usable_cores} cores can be used"
            yield Finding("slow", problem, f"set OMP_NUM_THREADS={cpu.num_usable_cores}")
        elif threads == "1" and cpu.num_usable_cores > 1:
            problem = f"OMP_NUM_THREADS is 1, but {cpu.num_usable_cores} cores can be used"
            yield Finding("slow", problem, "unset it, unless several processes share the machine")
        elif not threads and cpu.num_usable_cores < cpu.num_cores:
            problem = (
                f"this process may use {cpu.num_usable_cores} of {cpu.num_cores} cores, of which torch may not know"
            )
            yield Finding("slow", problem, f"set OMP_NUM_THREADS={cpu.num_usable_cores}")
        if not self.compiler:
            problem = "there is no C++ compiler, which recipes with compile=true need"
            yield Finding("slow", problem, "install g++, or set `compile` to false")
        elif self.gpus and not self.has_python_headers:
            problem = "Python's headers (Python.h) are missing, which kernels for the GPU need"
            yield Finding("slow", problem, "install the package python3-dev")

    def _check_space(self) -> Iterator[Finding]:
        if self.memory_gb < MIN_MEMORY_GB:
            problem = f"there are {self.memory_gb} GB of memory, less than {MIN_MEMORY_GB}"
            yield Finding("slow", problem, "use tiny models, and smaller batches (`micro_batch_tokens`)")
        for folder, free_gb in self.disk_free_gb.items():
            if free_gb < MIN_DISK_GB:
                problem = f"{folder} has {free_gb} GB of free space; a checkpoint of BERT-base takes 1.3 GB"
                yield Finding("slow", problem, "free some space, or write to another disk")
            if not os.access(folder, os.W_OK):
                yield Finding("note", f"{folder} is not writable", "write the output to another folder")


def read_version(package: str) -> str:
    """Return the installed version of a package, or an empty string."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def list_packages() -> Iterator[Package]:
    """Yield the requirements of Polyseme and of each extra, with the versions that are installed."""
    try:
        requirements = metadata.requires("polyseme") or []
    except metadata.PackageNotFoundError:  # run from a source tree
        requirements = []
    for requirement in requirements:
        if (match := _REQUIREMENT.fullmatch(requirement)) and match[3] not in _UMBRELLA_EXTRAS:
            yield Package(match[1], match[2], match[3] or "", read_version(match[1]))


def list_gpus() -> Iterator[Gpu]:
    """Yield the GPUs that NVIDIA's driver lists; none if there is no driver."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return
    for line in output.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 3 and cells[1].isdecimal():
            capability = float(cells[2]) if re.fullmatch(r"\d+\.\d+", cells[2]) else 0.0
            yield Gpu(cells[0], round(int(cells[1]) / 1024, 1), capability)


def read_memory_gb() -> float:
    """Return the memory of the machine, or less if the container has a limit."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    limit = _read_text(Path("/sys/fs/cgroup/memory.max")).strip()
    return (min(total, int(limit)) if limit.isdecimal() else total) / (1 << 30)


def _compare(version: str, operator: str, bound: str) -> bool:
    first, second = (
        [int(part) for part in [*re.findall(r"\d+", text.partition("+")[0]), "0", "0"][:3]] for text in (version, bound)
    )
    return first >= second if operator == ">=" else first < second


def _read_torch_cuda() -> str:
    """Return the version of CUDA that torch was built for, from its file `version.py`, without importing torch."""
    spec = find_spec("torch")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        match = re.search(r"^cuda\b[^=]*= '([\d.]+)'", _read_text(Path(folder, "version.py")), re.MULTILINE)
        return match[1] if match else ""
    return ""


def _read_cpu() -> Cpu:
    info = _read_text(Path("/proc/cpuinfo"))
    name, flags = (re.search(rf"^{key}\s*: (.*)$", info, re.MULTILINE) for key in ("model name", "(?:flags|Features)"))
    num_cores = os.cpu_count() or 1
    num_usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else num_cores
    quota, _, period = _read_text(Path("/sys/fs/cgroup/cpu.max")).strip().partition(" ")
    if quota.isdecimal() and period.isdecimal():
        num_usable = max(1, min(num_usable, int(quota) // int(period)))
    return Cpu(
        name[1] if name else platform.machine(), num_cores, num_usable, frozenset(flags[1].split() if flags else ())
    )


def _free_gb(folder: Path) -> float:
    return round(shutil.disk_usage(folder).free / (1 << 30), 1)


def _find_compiler() -> str:
    names = filter(None, (os.environ.get("CXX"), "g++", "clang++", "c++"))
    return next((path for name in names if (path := shutil.which(name))), "")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
