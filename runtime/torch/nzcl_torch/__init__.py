"""nzcl for torch.distributed: importing this module adds the backend "nzcl".

>>> import torch.distributed, nzcl_torch
>>> torch.distributed.init_process_group("nzcl")
"""

import atexit
import functools
import sys

import torch.distributed

from . import _C
from ._C import BucketHook  # noqa: F401


def _create(store, rank, size, timeout):
    return _C.create(store=store, rank=rank, size=size, timeout=timeout)


def register_hook(model, compress="", *, automatic=False, tries=5, more_steps=1.5, start=1, min_bytes=4096, convolution_bin=50):
    """Gives a DistributedDataParallel model the hook by which each bucket of gradients travels dense, sparse or compressed.

    compress: nzcl's text of a compressor, such as "adacomp:500" or "topk:0.01"; without it buckets are never compressed.
    automatic: try `tries` steps with and without, and compress only if that is `more_steps` times faster on the slowest rank: with compression a
        model needs more steps for the same accuracy (1 weighs time alone).
    start: the first step (from 0) that is compressed; at least 1, because DistributedDataParallel arranges its buckets anew after step 0.
    min_bytes: smaller buckets stay dense.
    convolution_bin: AdaComp's bin for gradients with three dimensions or more.

    Returns the hook: report() says what each bucket sends, state_dict() and load_state_dict() are for checkpoints, one for each rank, and
    set_rate(lr) before each step says the learning rate, so that what is sent late counts with the rate of its own step. Give it wherever
    the rate falls.
    """
    hook = _C.register_hook(reducer=model.reducer, group=model.process_group, parameters=list(model.module.parameters()),
                            compress=compress, automatic=automatic, tries=tries, more_steps=more_steps, start=start,
                            min_bytes=min_bytes, convolution_bin=convolution_bin)
    model.logger._set_comm_hook_name("nzcl")
    return hook


def statistics(group=None):
    """What a process group of nzcl has moved on this rank since it was made."""
    return _C.statistics(group or torch.distributed.distributed_c10d._get_default_group())


def _close_groups():
    """At the end of the program: closes groups that were not destroyed. An exception that ended the program fails them, so that the other ranks
    learn of it at once and do not wait for this one."""
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    _C.close_all(failure="" if error is None else f"its program ended with {type(error).__name__}: {error}")


def _monitored_barrier_of(original):
    """torch.distributed.monitored_barrier() refuses every backend but Gloo by its name. nzcl's group has Gloo do it."""

    @functools.wraps(original)
    def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
        c10d = torch.distributed.distributed_c10d
        if c10d._rank_not_in_group(group) or c10d.get_backend(group) != "nzcl" or _C.fallback_forbidden():
            return original(group, timeout, wait_all_ranks)
        group = c10d._get_default_group() if group is None else group
        return group.monitored_barrier(c10d.default_pg_timeout if timeout is None else timeout, wait_all_ranks=wait_all_ranks)

    return monitored_barrier


if "NZCL" not in torch.distributed.Backend._plugins:
    torch.distributed.Backend.register_backend("nzcl", _create)
    atexit.register(_close_groups)
    torch.distributed.monitored_barrier = _monitored_barrier_of(torch.distributed.monitored_barrier)
    torch.distributed.distributed_c10d.monitored_barrier = torch.distributed.monitored_barrier
