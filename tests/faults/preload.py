"""What the children of `tests/faults/harness.py` need, imported once."""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import polyseme.cli.main
import polyseme.finetuning.api
import polyseme.inference.load
import polyseme.pipelines.ulmfit
import polyseme.train.pretrain  # noqa: F401
from polyseme.logs import log_to_stderr
from tests.support import commands  # noqa: F401

log_to_stderr()
os.fsync = lambda handle: None
