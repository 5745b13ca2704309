"""One rank of test_sum_two_ranks_give_the_same_gradient."""

import os
import sys

import torch
import torch.distributed as dist

from tests.support import cases

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=2)
for family in cases.NAMES:
    model = cases.tiny_model(family)
    rows = cases.sequences(cases.LENGTHS)[rank::2]
    grads = cases.gradients(model, [cases.training_batch(model, [row]) for row in rows])
    torch.save(grads, f"{sys.argv[1]}/{family}-{rank}.pt")
dist.destroy_process_group()
