"""nzcl for torch.distributed: importing this module adds the backend "nzcl".

>>> import torch.distributed, nzcl_torch
>>> torch.distributed.init_process_group("nzcl")

Where this package is installed, PyTorch from 2.5 on finds it by its entry points, and needs no import.
"""

import importlib


def register():
    """Adds the backend "nzcl" to torch.distributed, unless that was done. PyTorch calls it by this package's entry points, the one of
    "torch.backends" at the end of its own import, so it loads nothing of nzcl yet."""
    import atexit
    import inspect
    import torch.distributed

    c10d = torch.distributed.distributed_c10d
    if "NZCL" in c10d.Backend._plugins:
        return
    # PyTorch 1.13 does not ask for devices.
    asked = {"devices": ["cpu", "cuda"]} if "devices" in inspect.signature(c10d.Backend.register_backend).parameters else {}
    c10d.Backend.register_backend("nzcl", _create, **asked)
    atexit.register(_close_groups)
    for name, wrapper in {"monitored_barrier": _monitored_barrier_of, "_set_pg_timeout": _set_pg_timeout_of}.items():
        if original := getattr(c10d, name, None):
            wrapped = wrapper(original)
            setattr(c10d, name, wrapped)
            if hasattr(torch.distributed, name):
                setattr(torch.distributed, name, wrapped)


def __getattr__(name):
    """The compiled part is loaded when it is first used."""
    if name not in ("_C", "BucketHook"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    compiled = importlib.import_module("._C", __name__)
    return compiled if name == "_C" else compiled.BucketHook


def _compiled():
    return importlib.import_module("._C", __name__)


_successor = None  # of the default group, while shrink() makes the next one


def _create(store, rank, size, timeout):
    global _successor
    if _successor is not None:
        made, _successor = _compiled().create_from(successor=_successor, store=store, timeout=timeout), None
        return made
    return _compiled().create(store=store, rank=rank, size=size, timeout=timeout)


def _backend_of(group):
    """PyTorch's own object of a group (the default one if None) from 2.0 on has nzcl's group as its backend; before, it is nzcl's group."""
    import torch.distributed

    group = group or torch.distributed.distributed_c10d._get_default_group()
    return group._get_backend(torch.device("cpu")) if hasattr(group, "_get_backend") else group


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
    hook = _compiled().register_hook(reducer=model.reducer, group=_backend_of(model.process_group), parameters=list(model.module.parameters()),
                                     compress=compress, automatic=automatic, tries=tries, more_steps=more_steps, start=start,
                                     min_bytes=min_bytes, convolution_bin=convolution_bin)
    model.logger._set_comm_hook_name("nzcl")
    return hook


def statistics(group=None):
    """What a process group of nzcl has moved on this rank since it was made."""
    return _compiled().statistics(_backend_of(group))


def shrink(timeout=None):
    """Goes on without ranks that have died. To be called by all that are left, when a call of the default group has failed: makes a default
    group of them, with ranks in the old order, whichever have died. Returns the new rank and the number of ranks.

    Other groups and whatever holds the old default group, such as DistributedDataParallel, have to be made anew. What failed operations have
    written is lost, and some ranks may have come further than others: begin again at a step that all have kept, as
    include/nzcl/ELASTIC.md says. `timeout` (a timedelta) is the new group's; by default that of PyTorch.
    """
    import torch.distributed as dist

    global _successor
    successor = _compiled().shrink(_backend_of(None))
    rank, size = successor.rank(), successor.size()
    store = _common_store(successor, rank, size)
    dist.destroy_process_group()
    _successor = successor
    try:
        dist.init_process_group("nzcl", store=store, rank=rank, world_size=size, **({} if timeout is None else {"timeout": timeout}))
    finally:
        _successor = None
    return rank, size


def _common_store(successor, rank, size):
    """A store of rank 0's: that of the job may have died with its rank 0. The new communicator tells where it is."""
    import json
    import socket
    import torch.distributed as dist

    def store(host, port, **more):
        try:  # Debian's PyTorch 2 is built without libuv, which its store asks for by default
            return dist.TCPStore(host, port, size, wait_for_workers=False, use_libuv=False, **more)
        except TypeError:  # PyTorch 1.13 has no other one
            return dist.TCPStore(host, port, size, wait_for_workers=False, **more)

    if rank == 0:
        mine = store("localhost", 0, is_master=True)
        hosts = ["localhost", *sorted({info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)})]
        successor.first_says(json.dumps({"name": socket.gethostname(), "hosts": hosts, "port": mine.port}))
        return mine
    place = json.loads(successor.first_says(""))
    same_host = place["name"] == socket.gethostname()
    for host in [place["name"], *place["hosts"]]:
        if host == "localhost" and not same_host:
            continue
        try:
            socket.create_connection((host, place["port"]), timeout=3).close()
        except OSError:
            continue
        return store(host, place["port"], is_master=False)
    raise RuntimeError(f"nzcl: the store of rank 0 was not reached at port {place['port']} of {place['name']}, {', '.join(place['hosts'])}")


def set_timeout(timeout, group=None):
    """The timeout (a timedelta) of the group's operations that are called from now on, unless the call has one of its own."""
    _compiled().set_timeout(_backend_of(group), timeout)


def _close_groups():
    """At the end of the program: closes groups that were not destroyed. An exception that ended the program fails them, so that the other ranks
    learn of it at once and do not wait for this one."""
    import sys

    compiled = sys.modules.get(f"{__name__}._C")
    if compiled is None:  # there were no groups
        return
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    compiled.close_all(failure="" if error is None else f"its program ended with {type(error).__name__}: {error}")


def _is_nzcl(group):
    import torch.distributed

    c10d = torch.distributed.distributed_c10d
    return not c10d._rank_not_in_group(group) and c10d.get_backend(group) == "nzcl"


def _monitored_barrier_of(original):
    """torch.distributed.monitored_barrier() refuses every backend but Gloo by its name. nzcl's group has Gloo do it."""
    import functools

    @functools.wraps(original)
    def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
        import torch.distributed

        c10d = torch.distributed.distributed_c10d
        if not _is_nzcl(group) or _compiled().fallback_forbidden():
            return original(group, timeout, wait_all_ranks)
        group = c10d._get_default_group() if group is None else group
        return group.monitored_barrier(c10d.default_pg_timeout if timeout is None else timeout, wait_all_ranks=wait_all_ranks)

    return monitored_barrier


def _set_pg_timeout_of(original):
    """PyTorch 2.6 sets the timeout of Gloo's and NCCL's groups only, and warns of others."""
    import functools

    @functools.wraps(original)
    def _set_pg_timeout(timeout, group=None):
        if _is_nzcl(group):
            set_timeout(timeout, group)
        else:
            original(timeout, group)

    return _set_pg_timeout


register()
