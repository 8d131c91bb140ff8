"""nzcl for torch.distributed: importing this module adds the backend "nzcl".

>>> import torch.distributed, nzcl_torch
>>> torch.distributed.init_process_group("nzcl")
"""

import torch.distributed

from . import _C


def _create(store, rank, size, timeout):
    return _C.create(store=store, rank=rank, size=size, timeout=timeout)


if "NZCL" not in torch.distributed.Backend._plugins:
    torch.distributed.Backend.register_backend("nzcl", _create)
