"""Tests of what PyTorch has from 2.0 on: torch2_test.py CASE. See ranks.py."""

import datetime
import os
import subprocess
import sys

from ranks import expect_error, group, main, outcomes, run, start_ranks, wait_for_all

# --- What the ranks do


def operations():
    import nzcl_torch

    return nzcl_torch.statistics()["operations"]


def rank_group():
    """The group is a backend of PyTorch's own process group."""
    torch, dist, rank, size = group()
    import nzcl_torch

    pg = dist.distributed_c10d._get_default_group()
    backend = pg._get_backend(torch.device("cpu"))
    assert pg.name() == "custom" and backend.name() == "nzcl", (pg.name(), backend.name())
    assert (backend.rank(), backend.size()) == (rank, size)
    assert dist.get_backend_config() == "cpu:nzcl,cuda:nzcl", dist.get_backend_config()
    assert dist.distributed_c10d.Backend.backend_capability["nzcl"] == ["cpu", "cuda"]
    assert dist.is_backend_available("nzcl")
    mixed = dist.new_group(backend="cpu:nzcl,cuda:gloo")
    t = torch.ones(3)
    dist.all_reduce(t, group=mixed)
    assert (t == size).all()
    nzcl_torch.register()  # again, as an entry point does after an import
    dist.destroy_process_group()


def rank_coalesced():
    """The forms that take several tensors in one call: each of them is done, also those in other types, and those that Gloo does."""
    torch, dist, rank, size = group()
    c10d = dist.distributed_c10d
    pg = c10d._get_default_group()
    types = (torch.float, torch.int8, torch.bool)
    inputs = [torch.full((2, i + 1), rank + 1).to(dtype) for i, dtype in enumerate(types)]
    outputs = [torch.zeros(2 * size, i + 1, dtype=dtype) for i, dtype in enumerate(types)]
    before = operations()
    pg.allgather_into_tensor_coalesced(outputs, inputs).wait()
    assert operations() == before + len(types)
    for out, mine in zip(outputs, inputs):
        assert all(torch.equal(out[2 * r:2 * r + 2], torch.full_like(mine, r + 1)) for r in range(size)), out

    total = size * (size + 1) // 2
    for op, expected in ((dist.ReduceOp.SUM, total), (dist.ReduceOp.AVG, total / size), (dist.ReduceOp.MAX, size),
                         (dist.ReduceOp.PRODUCT, [None, 1, 2, 6][size])):
        dtypes = (torch.float, torch.double) if op == dist.ReduceOp.AVG else (torch.float, torch.int16, torch.long)
        inputs = [torch.full((size * (i + 2),), rank + 1, dtype=dtype) for i, dtype in enumerate(dtypes)]
        outputs = [torch.zeros(i + 2, dtype=dtype) for i, dtype in enumerate(dtypes)]
        options = dist.ReduceScatterOptions()
        options.reduceOp = op
        pg.reduce_scatter_tensor_coalesced(outputs, inputs, options).wait()
        assert all((out == expected).all() for out in outputs), (op, outputs)
    expect_error(lambda: pg.allgather_into_tensor_coalesced([torch.ones(size)], [torch.ones(1), torch.ones(1)]), "as many outputs as inputs")

    # PyTorch's own manager, in each of its ways, with and without startCoalescing().
    for device in (None, torch.device("cpu")):
        tensors = [torch.full((5,), float(rank)) for _ in range(4)]
        with c10d._coalescing_manager(device=device, async_ops=True) as manager:
            for t in tensors:
                dist.all_reduce(t)
        manager.wait()
        assert all((t == size * (size - 1) / 2).all() for t in tensors), tensors
        gathered = [torch.zeros(3 * size) for _ in range(2)]
        with c10d._coalescing_manager(device=device):
            for out in gathered:
                dist.all_gather_into_tensor(out, torch.full((3,), float(rank)))
        assert all((out.view(size, 3)[r] == r).all() for out in gathered for r in range(size))
        scattered = [torch.zeros(2) for _ in range(2)]
        with c10d._coalescing_manager(device=device):
            for out in scattered:
                dist.reduce_scatter_tensor(out, torch.ones(2 * size))
        assert all((out == size).all() for out in scattered)

    # What is between the two calls of a backend is over when the work of the second one is, messages of Gloo as well.
    backend = pg._get_backend(torch.device("cpu"))
    backend._start_coalescing() if hasattr(backend, "_start_coalescing") else pg._start_coalescing(torch.device("cpu"))
    works = [pg.allreduce([torch.ones(100000)]) for _ in range(3)]
    received = torch.zeros(4)
    pg.send([torch.full((4,), float(rank))], (rank + 1) % size, 0)
    pg.recv([received], (rank - 1) % size, 0)
    together = pg._end_coalescing(torch.device("cpu"))
    together.wait()
    assert all(work.is_completed() for work in works) and together.is_completed()
    assert (received == (rank - 1) % size).all()
    expect_error(lambda: pg._end_coalescing(torch.device("cpu")), "without startCoalescing")
    dist.destroy_process_group()


def rank_sparse_call():
    """c10d's own call for sparse tensors, by which PyTorch's all_reduce goes for them."""
    torch, dist, rank, size = group()
    before = operations()
    t = torch.sparse_coo_tensor([[rank, 5]], torch.ones(2, 3), (8, 3))
    dist.all_reduce(t)
    assert operations() > before and t.is_sparse
    expected = torch.zeros(8, 3)
    for r in range(size):
        expected[r] += 1
        expected[5] += 1
    assert torch.equal(t.to_dense(), expected), t
    dist.destroy_process_group()


def rank_timeouts():
    """The group's timeout can be changed, and a call may have one of its own."""
    torch, dist, rank, size = group()
    import nzcl_torch

    for change in (lambda: nzcl_torch.set_timeout(datetime.timedelta(seconds=2)),
                   lambda: dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=1))):
        pg = dist.new_group(timeout=datetime.timedelta(seconds=300))
        default = dist.distributed_c10d._get_default_group()
        change()
        t = torch.ones(3)
        dist.all_reduce(t)
        assert (t == size).all()
        del pg, default
    expect_error(lambda: nzcl_torch.set_timeout(datetime.timedelta(0)), "longer than 0")
    wait_for_all(dist, rank, size)
    if rank == 0:  # the others do not come
        begin = datetime.datetime.now()
        expect_error(lambda: dist.all_reduce(torch.ones(3)), "no progress for 1 s")
        took = (datetime.datetime.now() - begin).total_seconds()
        assert took < 30, took
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set("timed out", "")
    store.wait(["timed out"])


def rank_functional():
    """The functional collectives, by which compiled programs communicate, are nzcl's."""
    torch, dist, rank, size = group()
    import torch.distributed._functional_collectives as functional

    pg = dist.distributed_c10d._get_default_group()
    t = torch.full((4,), rank + 1.0)
    total = size * (size + 1) / 2

    def done(count, call, expected):
        before = operations()
        result = call()
        result = [functional.wait_tensor(one) for one in result] if isinstance(result, list) else functional.wait_tensor(result)
        assert operations() >= before + count, call
        for mine, one in zip(result if isinstance(result, list) else [result], expected):
            assert torch.equal(mine, one), (mine, one)

    gathered = torch.cat([torch.full((4,), r + 1.0) for r in range(size)])
    everything = torch.full((2 * size,), rank + 1.0)
    done(1, lambda: functional.all_reduce(t, "sum", pg), [torch.full((4,), total)])
    done(1, lambda: functional.all_reduce(t, "avg", pg), [torch.full((4,), total / size)])
    done(2, lambda: functional.all_reduce_coalesced([t, t], "sum", pg), 2 * [torch.full((4,), total)])
    done(1, lambda: functional.all_gather_tensor(t, 0, pg), [gathered])
    done(2, lambda: functional.all_gather_into_tensor_coalesced([t, t], pg), [gathered, gathered])
    done(1, lambda: functional.reduce_scatter_tensor(everything, "sum", 0, pg), [torch.full((2,), total)])
    done(2, lambda: functional.reduce_scatter_tensor_coalesced([everything, everything], "sum", [0, 0], pg), 2 * [torch.full((2,), total)])
    done(1, lambda: functional.broadcast(t, 0, pg), [torch.ones(4)])
    done(0, lambda: functional.all_to_all_single(everything, None, None, pg), [torch.cat([torch.full((2,), r + 1.0) for r in range(size)])])
    for name in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"):
        assert hasattr(torch.ops._c10d_functional, name)
    assert (t == rank + 1).all(), "functional collectives leave their inputs alone"
    dist.destroy_process_group()


def rank_compiled():
    """A compiled function with collectives in it gives what it gives uncompiled. The first one is compiled to machine code."""
    torch, dist, rank, size = group()

    def function(x):
        y = x * 2
        dist.all_reduce(y, group=dist.group.WORLD)  # PyTorch 2.6 compiles calls that name their group
        gathered = torch.zeros(size * y.numel())
        dist.all_gather_into_tensor(gathered, y + rank, group=dist.group.WORLD)
        return gathered.sin().sum() + y.sum()

    x = torch.arange(6.0) + rank
    expected = function(x)
    for backend in ("inductor", "aot_eager"):
        torch._dynamo.reset()
        counter = operations()
        result = torch.compile(function, backend=backend, fullgraph=True)(x)
        assert torch.allclose(result, expected), (backend, result, expected)
        assert operations() >= counter + 2

    # DistributedDataParallel, whose reducer is the same compiled or not.
    def losses(compiled):
        torch.manual_seed(5)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        parallel = torch.nn.parallel.DistributedDataParallel(model)
        step = torch.compile(parallel, backend="aot_eager") if compiled else parallel
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        result = []
        for i in range(5):
            inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * i + rank))
            optimizer.zero_grad()
            loss = step(inputs).square().mean()
            loss.backward()
            optimizer.step()
            result.append(loss.item())
        return result

    assert torch.allclose(torch.tensor(losses(True)), torch.tensor(losses(False)), atol=1e-6)
    dist.destroy_process_group()


def rank_mesh():
    """Device meshes with one and two dimensions, and tensors that are distributed over them."""
    torch, dist, rank, size = group()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    whole = torch.arange(24.0).view(12, 2)
    for shape in ((size,), (2, size // 2)) if size % 2 == 0 else ((size,),):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("rows", "columns")[:len(shape)])
        for dimension in range(len(shape)):
            own = mesh.get_group(dimension)
            assert dist.get_backend(own) == "nzcl"
            t = torch.ones(3)
            dist.all_reduce(t, group=own)
            assert (t == shape[dimension]).all()
        placements = [Shard(0)] + [Replicate()] * (len(shape) - 1)
        t = distribute_tensor(whole, mesh, placements)
        assert isinstance(t, DTensor) and t.to_local().shape[0] == 12 // shape[0]
        assert torch.equal(t.full_tensor(), whole)
        assert torch.equal(t.redistribute(mesh, [Shard(1) if shape[0] == 2 else Replicate()] + [Replicate()] * (len(shape) - 1)).full_tensor(), whole)
        assert torch.equal((t.t() @ t).full_tensor(), whole.t() @ whole)  # is summed over the ranks
    dist.destroy_process_group()


def model_of(torch):
    torch.manual_seed(4)
    return torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))


def train(torch, model, optimizer, rank, size, steps=8):
    """The losses of this rank's share of each batch. With one rank, it is the whole batch."""
    losses = []
    for step in range(steps):
        inputs = torch.randn(12, 12, generator=torch.Generator().manual_seed(step))
        share = inputs.chunk(size)[rank]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(share), share[:, :4].argmax(1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check_like_one_rank(torch, parameters, make_optimizer):
    """The parameters are those that one rank comes to with the whole batches."""
    model = model_of(torch)
    train(torch, model, make_optimizer(model.parameters()), 0, 1)
    for mine, expected in zip(parameters, model.parameters(), strict=True):
        assert torch.allclose(mine, expected, atol=1e-5), (mine - expected).abs().max()


def rank_fsdp():
    """FSDP2 shards parameters, gathers them before they are used, and scatters the sums of gradients."""
    torch, dist, rank, size = group()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # What PyTorch 2.6 lacks of FSDP2 on the CPU it lacks with every backend. FSDP2 calls methods of streams that the CPU's do not have; what
    # they would order the CPU does in order anyway. And it keeps whole parameters until the backward pass is over (reshard_after_forward=False),
    # because there parameters that are gathered again count as changed in place.
    stream = torch.cpu.Stream
    if not hasattr(stream, "record_event"):
        stream.record_event = lambda self, event=None: torch.cpu.Event()
        stream.wait_event = lambda self, event: None
    model = model_of(torch)
    mesh = init_device_mesh("cpu", (size,))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)

    def make(parameters):
        return torch.optim.Adam(parameters, lr=0.01)

    before = operations()
    train(torch, model, make(model.parameters()), rank, size)
    assert operations() - before >= 8 * (3 + 3), "gathers and scatters are nzcl's"
    check_like_one_rank(torch, [p.full_tensor().detach() for p in model.parameters()], make)
    dist.destroy_process_group()


def rank_zero():
    """ZeRO shards the optimizer's state: each rank updates its part of the parameters and broadcasts it."""
    torch, dist, rank, size = group()
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = model_of(torch)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    train(torch, parallel, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01), rank, size)
    check_like_one_rank(torch, [p.detach() for p in model.parameters()], lambda parameters: torch.optim.Adam(parameters, lr=0.01))
    dist.destroy_process_group()


def rank_debugged():
    """With TORCH_DISTRIBUTED_DEBUG=DETAIL PyTorch checks each call of the ranks before the backend gets it."""
    torch, dist, rank, size = group()
    t = torch.ones(5)
    dist.all_reduce(t)
    assert (t == size).all()
    wait_for_all(dist, rank, size)
    expect_error(lambda: dist.all_reduce(torch.ones(3 + rank)), "shape")
    dist.destroy_process_group()


def rank_not_imported():
    """The program does not import nzcl_torch: PyTorch finds it by its entry point, and loads nothing of it that is not used."""
    import torch
    import torch.distributed as dist

    assert "nzcl_torch" in sys.modules and "nzcl_torch._C" not in sys.modules
    dist.init_process_group("nzcl")
    t = torch.ones(3)
    dist.all_reduce(t)
    assert (t == dist.get_world_size()).all() and "nzcl_torch._C" in sys.modules
    dist.destroy_process_group()


# --- Cases


def case_debugged():
    run("debugged", sizes=(2,), TORCH_DISTRIBUTED_DEBUG="DETAIL")


def case_mesh():
    run("mesh", sizes=(2, 3, 4))


def case_compiled():
    run("compiled", sizes=(2,))


def case_timeouts():
    run("timeouts", sizes=(2,), NZCL_CLOSE_TIMEOUT_S="1")


def case_entry_points():
    """Both entry points of the package are there, and the one that this PyTorch has makes an import unnecessary."""
    from importlib.metadata import entry_points

    for name in ("torch.distributed.backends", "torch.backends"):
        found = [entry for entry in entry_points(group=name) if entry.name == "nzcl"]
        assert len(found) == 1 and found[0].value == "nzcl_torch:register", (name, found)
    run("not_imported", sizes=(2,))
    # Where that is switched off, importing nzcl_torch does the same, and without either PyTorch says that it knows no such backend.
    program = "import torch.distributed as d; print('NZCL' in d.Backend._plugins); import nzcl_torch; print('NZCL' in d.Backend._plugins)"
    done = subprocess.run([sys.executable, "-c", program], env=dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0"), capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True"], done
    # nzcl_torch is imported before torch, which then finds a package that is half imported.
    done = subprocess.run([sys.executable, "-c", "import nzcl_torch; nzcl_torch.BucketHook; nzcl_torch._C"], capture_output=True, text=True)
    assert done.returncode == 0, done


if __name__ == "__main__":
    main(globals())
