"""Tests of nzcl_torch: torch_test.py CASE starts some processes of itself, one for each rank, and checks what they say."""

import gc
import os
import signal
import subprocess
import sys
import tempfile
import time

from ranks import RANK_TIMEOUT_S, backend, expect_error, group, main, outcomes, run, start_ranks, wait_for_all

# --- What the ranks do


def rank_collectives():
    torch, dist, rank, size = group()
    total = size * (size + 1) // 2
    for dtype in (torch.float, torch.double, torch.half, torch.bfloat16, torch.int, torch.long, torch.uint8):
        t = torch.full((7, 33), rank + 1, dtype=dtype)
        dist.all_reduce(t)
        assert (t == total).all() and t.dtype == dtype, (dtype, t)
    t = torch.tensor([float(rank), -float(rank)])
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    assert t.tolist() == [size - 1, 0]
    dist.all_reduce(t, op=dist.ReduceOp.AVG)
    assert t.tolist() == [size - 1, 0]

    # A tensor with natural zeros, and one whose elements do not follow each other.
    t = torch.zeros(500, 64)
    t[rank::size] = rank + 1
    dist.all_reduce(t.t())
    for r in range(size):
        assert (t[r::size] == r + 1).all()

    for root in range(size):
        for dtype in (torch.float, torch.int16, torch.bool, torch.complex64):  # copied, whatever they stand for
            t = torch.arange(1000).to(dtype) if rank == root else torch.zeros(1000, dtype=dtype)
            dist.broadcast(t, root)
            assert (t == torch.arange(1000).to(dtype)).all(), dtype
        t = torch.full((100, 10), float(rank + 1))
        dist.reduce(t, root)
        assert rank != root or (t == total).all()

    t = torch.full((3, 5), rank, dtype=torch.long)
    outs = [torch.empty(3, 5, dtype=torch.long) for _ in range(size)]
    dist.all_gather(outs, t)
    assert all((outs[r] == r).all() for r in range(size))
    out = torch.empty(size * 3, 5, dtype=torch.long)
    dist._all_gather_base(out, t)
    assert all((out[3 * r:3 * r + 3] == r).all() for r in range(size))

    lengths = [4 + 3 * r for r in range(size)]
    out = torch.empty(lengths[rank])
    dist.reduce_scatter(out, [torch.full((n,), float(r + 10 * rank)) for r, n in enumerate(lengths)])
    assert (out == sum(rank + 10 * r for r in range(size))).all()
    out = torch.empty(6)
    dist._reduce_scatter_base(out, torch.arange(6.0 * size))
    assert (out == size * torch.arange(6.0 * rank, 6.0 * rank + 6)).all()

    works = [dist.all_reduce(torch.ones(1000 * i), async_op=True) for i in range(20)]
    for work in reversed(works):
        work.wait()
        assert work.is_completed()
    future = dist.all_reduce(torch.ones(100), async_op=True).get_future()
    assert future.then(lambda f: f.value()[0].sum().item()).wait() == 100 * size
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(size)]
    if size > 2:
        pair = dist.new_group([0, 1])
        if rank < 2:
            t = torch.ones(10)
            dist.all_reduce(t, group=pair)
            assert t.sum() == 20
    dist.barrier()
    dist.destroy_process_group()


def rank_calls():
    """Every call of torch.distributed that communicates is done by whom runtime/torch/CALLS.md says."""
    torch, dist, rank, size = group()
    import nzcl_torch

    told = told_calls(torch.__version__)
    base = dist.distributed_c10d._get_default_group()
    product = dist.ReduceOp.PRODUCT

    def tensors(n=size):
        return [torch.ones(4) for _ in range(n)]

    def at_root(value):
        return value if rank == 0 else None

    def messages():
        sent, received = dist.isend(torch.ones(4), (rank + 1) % size), dist.irecv(torch.ones(4), (rank - 1) % size)
        sent.wait(), received.wait()
        dist.send(torch.ones(4), 1) if rank == 0 else dist.recv(torch.ones(4), 0) if rank == 1 else None

    def any_source():
        # With a tag: a rank that is not in this takes part in the next call already.
        dist.recv(torch.ones(4), tag=1) if rank == 0 else dist.send(torch.ones(4), 0, tag=1) if rank == 1 else None

    def batch():
        ops = [dist.P2POp(dist.isend, torch.ones(4), (rank + 1) % size), dist.P2POp(dist.irecv, torch.ones(4), (rank - 1) % size)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    calls = {
        "all_reduce": lambda: dist.all_reduce(torch.ones(4)),
        "all_reduce of bool, int8 or int16": lambda: dist.all_reduce(torch.ones(4, dtype=torch.int8)),
        "all_reduce of complex numbers": lambda: dist.all_reduce(torch.ones(4, dtype=torch.complex64)),
        "all_reduce with PRODUCT, BAND, BOR or BXOR": lambda: dist.all_reduce(torch.ones(4), op=product),
        "all_reduce of a sparse tensor": lambda: dist.all_reduce(torch.eye(4).to_sparse()),
        "all_reduce of a sparse tensor in CSR form": lambda: backend().allreduce(torch.eye(4).to_sparse_csr()).wait(),
        "all_reduce_coalesced": lambda: dist.all_reduce_coalesced(tensors()),
        "reduce": lambda: dist.reduce(torch.ones(4), 0),
        "reduce with PRODUCT, BAND, BOR or BXOR": lambda: dist.reduce(torch.ones(4), 0, product),
        "broadcast": lambda: dist.broadcast(torch.ones(4), 0),
        "broadcast_object_list": lambda: dist.broadcast_object_list([rank], 0),
        "all_gather": lambda: dist.all_gather(tensors(), torch.ones(4)),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(torch.ones(4 * size), torch.ones(4)),
        "all_gather_object": lambda: dist.all_gather_object([None] * size, rank),
        "all_gather_coalesced": lambda: dist.all_gather_coalesced([tensors() for _ in range(size)], tensors()),
        "reduce_scatter": lambda: dist.reduce_scatter(torch.ones(4), tensors()),
        "reduce_scatter with PRODUCT, BAND, BOR or BXOR": lambda: dist.reduce_scatter(torch.ones(4), tensors(), product),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(torch.ones(4), torch.ones(4 * size)),
        "barrier": lambda: dist.barrier(),
        "monitored_barrier": lambda: dist.monitored_barrier(),
        "send, recv, isend, irecv": messages,
        "recv from any rank": any_source,
        "batch_isend_irecv": batch,
        "gather": lambda: dist.gather(torch.ones(4), at_root(tensors())),
        "gather_object": lambda: dist.gather_object(rank, at_root([None] * size)),
        "scatter": lambda: dist.scatter(torch.ones(4), at_root(tensors())),
        "scatter_object_list": lambda: dist.scatter_object_list([None], list(range(size)) if rank == 0 else [None]),
        "all_to_all": lambda: dist.all_to_all(tensors(), tensors()),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.ones(size), torch.ones(size)),
        "new_group, new_subgroups": lambda: dist.all_reduce(torch.ones(1), group=dist.new_group(list(range(size)))),
    }
    if torch.__version__.startswith("1."):
        calls |= {
            "all_reduce_multigpu": lambda: dist.all_reduce_multigpu(tensors(2)),
            "reduce_multigpu": lambda: dist.reduce_multigpu(tensors(1), 0),
            "broadcast_multigpu": lambda: dist.broadcast_multigpu(tensors(2), 0),
            "all_gather_multigpu": lambda: dist.all_gather_multigpu([tensors()], tensors(1)),
            "reduce_scatter_multigpu": lambda: dist.reduce_scatter_multigpu(tensors(1), [tensors()]),
        }
    else:
        calls |= {
            "allgather_into_tensor_coalesced": lambda: base.allgather_into_tensor_coalesced([torch.ones(size)], [torch.ones(1)]).wait(),
            "reduce_scatter_tensor_coalesced": lambda: base.reduce_scatter_tensor_coalesced([torch.ones(1)], [torch.ones(size)]).wait(),
        }
    assert set(told) == set(calls), set(told) ^ set(calls)
    for name, call in calls.items():
        before = nzcl_torch.statistics()["operations"]
        print(name, flush=True)
        call()
        own = nzcl_torch.statistics()["operations"] > before
        if name.endswith("_object") or name.endswith("_object_list"):
            continue  # these are made of two or three of the others
        assert own == told[name].startswith("nzcl") or name.startswith("new_group"), f"{name}: CALLS.md says {told[name]}"
    t = torch.ones(4)
    base.allreduce(t).wait()
    assert (t == size).all(), "the calls have not disturbed the order"
    dist.destroy_process_group()


def told_calls(version):
    """What the table of CALLS.md says of each call of this version: who does it. Behind a call is which versions have it, if not all do."""
    page = os.path.join(os.path.dirname(__file__), "..", "..", "runtime", "torch", "CALLS.md")
    with open(page) as lines:
        rows = [[cell.strip().replace("`", "") for cell in line.split("|")[1:3]] for line in lines if line.startswith("| `")]
    assert {who for _, who in rows} == {"nzcl", "nzcl, converted", "Gloo"}, rows
    other = " (from 2.0 on)" if version.startswith("1.") else " (1.13)"
    return {call.removesuffix(" (1.13)").removesuffix(" (from 2.0 on)"): who for call, who in rows if not call.endswith(other)}


def rank_sparse():
    torch, dist, rank, size = group()

    def check(make, op=None):
        mine = make(rank)
        expected = sum(make(r).to_dense() for r in range(size))
        t = mine.clone()
        dist.all_reduce(t) if op is None else dist.all_reduce(t, op=op)
        assert t.is_sparse and t.shape == mine.shape
        assert torch.equal(t.to_dense(), expected if op is None else expected / size), (t, expected)
        indices = t.coalesce().indices()
        assert indices.shape[1] <= sum(make(r)._nnz() for r in range(size))

    def rows(r, n=5, width=8):
        generator = torch.Generator().manual_seed(r)
        index = torch.randint(0, 100, (1, n), generator=generator)
        return torch.sparse_coo_tensor(index, torch.randint(1, 9, (n, width), generator=generator).float(), (100, width))

    check(rows)
    check(lambda r: rows(r, 40))  # with indices that are there more than once
    check(lambda r: rows(r, 0) if r == 0 else rows(r))  # empty on one rank
    check(lambda r: rows(r, 0))  # empty on all
    check(lambda r: rows(r, 30 * r))  # of very different sizes
    check(lambda r: rows(r, 7), dist.ReduceOp.AVG if size == 2 else None)
    check(lambda r: rows(r, 3).double())
    check(lambda r: torch.sparse_coo_tensor([[1, r], [0, 2]], [1.0, 2.0], (4, 5)))  # no dense dimensions
    check(lambda r: torch.sparse_coo_tensor([[r], [1]], torch.ones(1, 3, 2), (9, 4, 3, 2)))
    dist.destroy_process_group()


def emptied(torch, sizes):
    """What zero_grad() of torch 1.13 makes of a sparse gradient: without entries, and all its dimensions are sparse. Later versions keep the
    dimensions, but programs may still make such tensors."""
    if torch.__version__.startswith("1."):
        t = torch.sparse_coo_tensor([[0]], torch.ones(1, *sizes[1:]), sizes)
        t.zero_()
    else:
        t = torch.sparse_coo_tensor(torch.empty(len(sizes), 0, dtype=torch.long), torch.empty(0), sizes)
    assert t._nnz() == 0 and t.sparse_dim() == len(sizes)
    return t


def rank_sparse_agreement():
    """Ranks whose sparse tensors look different come to the same plan, in the order of the calls."""
    torch, dist, rank, size = group()

    def row(index, rows, width=4):
        return torch.sparse_coo_tensor([[index]], torch.ones(1, width), (rows, width))

    for empty_rank in range(size):
        t = emptied(torch, (10, 4)) if rank == empty_rank else row(rank, 10)
        dist.all_reduce(t)
        assert t.sparse_dim() == 1 and t.to_dense().sum() == 4 * (size - 1), t
        t = emptied(torch, (10, 4)) if rank == empty_rank else torch.sparse_coo_tensor([[rank], [1]], [1.0], (10, 4))
        dist.all_reduce(t)
        assert t.sparse_dim() == 2 and t.to_dense()[:, 1].sum() == size - 1, t
    t = emptied(torch, (10, 4))
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    assert t._nnz() == 0

    # The result has many more entries than this rank.
    generator = torch.Generator().manual_seed(rank)
    for n in (1, 1000) if rank == 0 else (1000, 1):
        index = torch.randperm(5000, generator=generator)[:n].unsqueeze(0)
        t = torch.sparse_coo_tensor(index, torch.ones(n, 16), (5000, 16))
        dist.all_reduce(t)
        total = torch.tensor([n * 16.0])
        dist.all_reduce(total)
        assert t.to_dense().sum() == total.item()

    # A table of which hardly anything is there.
    rows = 10**8
    t = torch.sparse_coo_tensor([[0, 5 + rank, rows - 1]], torch.ones(3, 128), (rows, 128))
    dist.all_reduce(t)
    assert t.coalesce().indices().tolist() == [[0] + list(range(5, 5 + size)) + [rows - 1]]
    assert t.coalesce().values()[:, 0].tolist() == [size] + [1] * size + [size]

    # Calls that are started while an allreduce of sparse tensors is under way keep their order.
    sparse = [row(i, 50) for i in range(20)]
    dense = [torch.full((100 * i + 1,), float(rank)) for i in range(20)]
    works = []
    for i, (s, d) in enumerate(zip(sparse, dense)):
        works += [dist.all_reduce(s, async_op=True), dist.all_reduce(d, async_op=True)]
        if i % 5 == rank % 5:
            works[-1].wait()
    for work in reversed(works):
        work.wait()
    for i, (s, d) in enumerate(zip(sparse, dense)):
        assert s.to_dense()[i].tolist() == [size] * 4
        assert (d == size * (size - 1) / 2).all(), d

    wait_for_all(dist, rank, size)
    huge = torch.sparse_coo_tensor([[1], [2], [3]], [1.0], (10**6,) * 3)
    expect_error(lambda: dist.all_reduce(huge), "1000000000000000000 elements in blocks of 1 is larger than memory can be")
    expect_error(lambda: dist.all_reduce(row(0, 10 if rank == 0 else 11)), "shape, type or operation of rank 0 and rank 1 differ")
    expect_error(lambda: dist.all_reduce(row(0, 10) if rank == 0 else torch.sparse_coo_tensor([[1], [1]], [1.0], (10, 4))),
                 "numbers of sparse dimensions of rank 0 and rank 1 differ")
    t = row(0, 10)
    dist.all_reduce(t)
    assert t.to_dense().sum() == 4 * size, "a refused call has not disturbed the order"
    dist.destroy_process_group()


def rank_shapes():
    """Sizes that do not fit are refused on every rank, and nothing is written; other shapes of as many elements fit."""
    torch, dist, rank, size = group()
    base = dist.distributed_c10d._get_default_group()
    for elements in (2, 6):
        memory = torch.zeros(20)
        expect_error(lambda: dist.reduce_scatter(memory[:elements], [torch.ones(4)] * size),  # noqa: B023
                     f"reduce_scatter: output of rank {rank} has {elements} elements, but the input for it has 4")
        outs = [torch.zeros(4) for _ in range(size - 1)] + [memory[:elements]]
        expect_error(lambda: dist.all_gather(outs, torch.ones(4)),  # noqa: B023
                     f"allgather: output {size - 1} has {elements} elements, but this rank's input has 4")
        assert not memory.any()
    expect_error(lambda: base.allgather([[torch.zeros(4, dtype=torch.int)] * size], [torch.ones(4)]), "output 0 is of type Int", "of type Float")
    expect_error(lambda: base.reduce_scatter([torch.zeros(4)], [[torch.ones(4, dtype=torch.double)] * size]), "is of type Float", "of type Double")
    csc = torch.eye(3).to_sparse_csc()
    expect_error(lambda: backend().allreduce(csc), "SparseCsc", "to_sparse_coo()")

    first = rank == 0
    t = torch.ones(4, 24) if first else torch.ones(96)
    dist.all_reduce(t)
    assert (t == size).all()
    dist.broadcast(t, 0)
    dist.reduce(t, 0)
    outs = [torch.zeros(96) for _ in range(size)]
    dist.all_gather(outs, torch.ones(96 // (4 if first else 1), 4 if first else 1))
    assert all((out == 1).all() for out in outs)
    shapes = [(4, 24 + 8 * r) for r in range(size)]
    out = torch.zeros(shapes[rank])
    dist.reduce_scatter(out, [torch.ones(shape) for shape in shapes])
    assert (out == size).all()

    # One rank alone is refused: the others do not wait.
    wait_for_all(dist, rank, size)
    out = torch.zeros(3 if rank == 1 else 4)
    expect_error(lambda: dist.reduce_scatter(out, [torch.ones(4)] * size), "output of rank 1 has 3 elements")


def rank_callbacks():
    """Callbacks of futures wait for other collectives, as those of PyTorch's PowerSGD hook do."""
    torch, dist, rank, size = group()

    def again(_):
        return dist.all_reduce(torch.ones(4), async_op=True).get_future().wait()[0]

    def nested(future):
        return dist.all_reduce(torch.ones(8), async_op=True).get_future().then(again).wait()

    for then in (again, nested):
        for _ in range(20):
            t = dist.all_reduce(torch.ones(100000), async_op=True).get_future().then(then).wait()
            assert (t == size).all()
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    model, optimizer, batch = dense_problem(torch)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    losses = train(torch, parallel, optimizer, 10, rank, size, batch)
    assert losses[-1] < losses[0]
    check_same_on_all_ranks(torch, dist, model)
    dist.destroy_process_group()


def rank_waiting():
    """wait() ends after its timeout, however many operations a call has; a barrier waits for all earlier calls."""
    import datetime

    torch, dist, rank, size = group()
    store = dist.distributed_c10d._get_default_store()
    # A wait for each of these operations would outlive this test.
    tensors = [torch.ones(3) for _ in range(60)]
    if rank > 0:
        store.wait(["timed out"])
    work = dist.distributed_c10d._get_default_group().allreduce_coalesced(tensors)
    if rank == 0:
        expect_error(lambda: work.wait(datetime.timedelta(seconds=4)), "timed out")
        expect_error(lambda: work.wait(datetime.timedelta(seconds=-1)), "timed out")
        store.set("timed out", "")
    work.wait()
    assert all((t == size).all() for t in tensors)

    for _ in range(10):
        sparse = torch.sparse_coo_tensor([list(range(3000))], torch.ones(3000, 100), (100000, 100))
        works = [dist.all_reduce(torch.ones(1000000), async_op=True), dist.all_reduce(sparse, async_op=True)]
        dist.barrier()
        assert all(work.is_completed() for work in works)
    dist.destroy_process_group()


def rank_destroyed():
    """A destroyed group leaves no threads and no descriptors, and a store serves one group after the other."""
    import gc

    torch, dist, rank, size = group()

    def held():
        names = [open(f"/proc/self/task/{t}/comm").read().strip() for t in os.listdir("/proc/self/task")]
        return len([n for n in names if n.startswith("nzcl") and n != "nzcl-callback"]), len(os.listdir("/proc/self/fd"))

    before = held()
    groups = [dist.new_group(list(range(size))) for _ in range(5)]
    for g in groups:
        assert dist.all_reduce(torch.ones(1), group=g, async_op=True).get_future().wait()[0] == size
    assert held() > before
    for g in groups:
        dist.destroy_process_group(g)
    del g, groups
    gc.collect()
    assert held() == before, (held(), before)
    pair = dist.new_group([0, 1])  # which another rank is not in
    dist.all_reduce(torch.ones(1), group=pair) if rank < 2 else None

    import datetime
    import nzcl_torch

    store = dist.PrefixStore("again", dist.distributed_c10d._get_default_store())
    for _ in range(3):
        g = nzcl_torch._C.create(store=store, rank=rank, size=size, timeout=datetime.timedelta(seconds=20))
        t = torch.ones(3)
        g.allreduce(t).wait()
        assert (t == size).all()
        del g
    dist.destroy_process_group()
    del pair
    gc.collect()
    assert held()[0] == 0


def rank_leaver():
    """A rank leaves with operations of the others open: they fail at once, long before the group's timeout."""
    torch, dist, rank, size = group()
    dist.all_reduce(torch.ones(3))
    if rank == 1:
        dist.destroy_process_group()
    else:
        expect_error(lambda: dist.all_reduce(torch.ones(3)), "rank 1", "has left")


def rank_sum_order():
    if os.environ.get("TORCH_TEST_ORDER") == "differs":
        if os.environ["RANK"] == "0":  # which has the plugin's default
            expect_error(group, "option sum_order", "any on rank 0", "rank on rank 1")
        else:  # may find out by the end of rank 0, which has c10d's store
            os.environ["NZCL_SUM_ORDER"] = "rank"
            expect_error(group)
        return
    torch, dist, rank, size = group()
    t = torch.ones(3)
    dist.all_reduce(t)
    assert (t == size).all()
    dist.destroy_process_group()


def case_sum_order():
    run("sum_order", sizes=(2,), TORCH_TEST_ORDER="differs")
    run("sum_order", sizes=(2,), NZCL_SUM_ORDER="rank")


def rank_refusals():
    torch, dist, rank, size = group()
    t = torch.ones(4)
    base = dist.distributed_c10d._get_default_group()
    expect_error(lambda: base.allreduce(torch.ones(3, dtype=torch.complex64)), "does not reduce tensors of type ComplexFloat")
    sparse = torch.sparse_coo_tensor([[0]], [1.0], (4,))
    expect_error(lambda: backend().broadcast(sparse, 0), "only allreduce takes sparse ones")
    dist.all_reduce(t)
    assert (t == size).all(), "a refused call has not disturbed the order"
    wait_for_all(dist, rank, size)
    # Ranks that do not agree find out.
    expect_error(lambda: dist.all_reduce(torch.ones(4 if rank == 0 else 5)), "ranks disagree", "count 4", "count 5")
    expect_error(dist.barrier, "ranks disagree")


def rank_storages():
    """Tensors come and go. Every sum is right, wherever their storages lie."""
    torch, dist, rank, size = group()
    for i in range(300):
        t = torch.full((1 + (i * 7919) % 200000,), float(i + rank))
        dist.all_reduce(t)
        expected = size * i + size * (size - 1) / 2
        assert (t == expected).all(), i
        if i % 3 == 0:
            t.resize_(t.numel() + 100000).fill_(1)
            dist.all_reduce(t)
            assert (t == size).all(), i
    import nzcl_torch

    def registered():
        return nzcl_torch.statistics()["registered_storages"]

    # Memory that is freed, in whatever way, is registered no more, also if new memory lies at the same place.
    t = torch.ones(2000000)
    dist.all_reduce(t)
    before = registered()
    for _ in range(5):
        t.storage().resize_(0)
        assert registered() == before - 1
        t.storage().resize_(2000000)
        t.fill_(1)
        dist.all_reduce(t)
        assert (t == size).all() and registered() == before
    del t
    deadline = time.monotonic() + 10  # the thread that has completed the last call may have its tensors for a moment longer
    while registered() != before - 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert registered() == before - 1
    import numpy

    for i in range(5):  # memory of which nobody says when it is freed
        array = numpy.full(1000000, float(rank))
        t = torch.from_numpy(array)
        dist.all_reduce(t)
        assert (array == size * (size - 1) / 2).all() and registered() == before - 1
    bucket = torch.zeros(100000)
    for i in range(50):  # views of one storage, as of a bucket
        view = bucket[i * 100:i * 100 + 1000]
        view.fill_(1)
        dist.all_reduce(view)
        assert (view == size).all()
    dist.destroy_process_group()


def rank_coalesced():
    torch, dist, rank, size = group()
    tensors = [torch.full((10 * i + 1, 3), float(rank)) for i in range(5)]
    dist.all_reduce_coalesced(tensors)
    assert all((t == size * (size - 1) / 2).all() for t in tensors)

    # A later tensor is refused: nothing is under way any more when the caller learns of it.
    base = dist.distributed_c10d._get_default_group()
    x = torch.ones(1000000, 2)[:, 0]
    expect_error(lambda: base.allreduce_coalesced([x, torch.ones(4, dtype=torch.complex64)]), "does not reduce tensors of type ComplexFloat")
    assert (x == 1).all()
    x, y = torch.ones(1000000), torch.ones(10)
    expect_error(lambda: dist.all_reduce_coalesced([x, torch.ones(1).expand(10)]), "refers to a single memory location")
    assert (x == size).all()
    flags = torch.tensor([rank == 0, False])
    for tensors in ([x, y, y], [y[2:], y[:5]], [flags, flags]):  # each is reduced as it was
        before = [t.clone() for t in tensors]
        dist.all_reduce_coalesced(tensors)
        assert all(torch.equal(t, torch.tensor([True, False]) if t is flags else b * size) for t, b in zip(tensors, before)), tensors
    dist.destroy_process_group()


def train(torch, model, optimizer, steps, rank, size, batch):
    """The losses of the whole batch, of which this rank computes its share."""
    import torch.distributed as dist

    losses = []
    for step in range(steps):
        inputs, labels = batch(step)
        own = slice(rank * len(labels) // size, (rank + 1) * len(labels) // size)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs[own]), labels[own])
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        if size > 1:
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        losses.append(mean.item())
    return losses


def dense_problem(torch):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 50), torch.nn.ReLU(),
                                torch.nn.Linear(50, 3))

    def batch(step):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(24, 20, generator=generator)
        return inputs, inputs[:, :3].argmax(1)

    return model, torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5), batch


def embedding_problem(torch):
    torch.manual_seed(2)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(3000, 24, sparse=True)
            self.words = torch.nn.Embedding(50, 24, sparse=True)
            self.out = torch.nn.Linear(48, 4)

        def forward(self, x):
            # Added up, they would share one gradient in the first step, which DistributedDataParallel divides in place.
            return self.out(torch.cat([self.embedding(x).mean(1), self.words(x[:, 0] % 50)], 1))

    def batch(step):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randint(0, 3000, (24, 6), generator=generator)
        return inputs, inputs[:, 0] % 4

    model = Model()
    return model, torch.optim.SGD(model.parameters(), lr=0.5), batch


def check_training(problem, steps=30):
    torch, dist, rank, size = group()
    model, optimizer, batch = problem(torch)
    reference = train(torch, model, optimizer, steps, 0, 1, batch)
    expected = [p.detach().clone() for p in model.parameters()]
    model, optimizer, batch = problem(torch)
    if rank > 0:  # DistributedDataParallel gives rank 0's parameters to all
        for p in model.parameters():
            p.data.fill_(9)
    parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
    losses = train(torch, parallel, optimizer, steps, rank, size, batch)
    assert losses[-1] < losses[0], losses
    for step, (mine, other) in enumerate(zip(losses, reference)):
        assert abs(mine - other) < 1e-4, (step, mine, other)
    for mine, other in zip(model.parameters(), expected):
        assert torch.allclose(mine, other, atol=1e-4), (mine - other).abs().max()
    dist.destroy_process_group()


def rank_dense_model():
    check_training(dense_problem)


def rank_embedding_model():
    check_training(embedding_problem)


def rank_killed_rank():
    torch, dist, rank, size = group()
    model, optimizer, batch = dense_problem(torch)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    if "HOOK" in os.environ:
        import nzcl_torch
        nzcl_torch.register_hook(parallel, os.environ["HOOK"])
    train(torch, parallel, optimizer, 3, rank, size, batch)
    print("trained", flush=True)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        train(torch, parallel, optimizer, 100000, rank, size, batch)
    except RuntimeError as error:
        print(f"after {time.monotonic() - begin:.1f} s: {error}", flush=True)
        sys.exit(7)


def rank_exit():
    """Ends without destroying the group, while a callback is under way that goes on in Python later."""
    torch, dist, rank, size = group()

    def callback(future):
        time.sleep(0.5)
        print("the callback is over", flush=True)
        return future.value()

    dist.all_reduce(torch.ones(1000), async_op=True).get_future().then(callback)


def rank_failed_program():
    torch, dist, rank, size = group()
    dist.all_reduce(torch.ones(10))
    if rank == 1:
        raise ValueError("a mistake of the program")
    expect_error(lambda: dist.all_reduce(torch.ones(10)), "aborted by rank 1", "ValueError: a mistake of the program")


def hooked(problem, compress="", **options):
    """A model with the hook, its optimizer, its batches and the hook."""
    import torch
    import nzcl_torch

    model, optimizer, batch = problem(torch)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    return parallel, optimizer, batch, nzcl_torch.register_hook(parallel, compress, **options)


def weights(torch, model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def check_same_on_all_ranks(torch, dist, model):
    mine = weights(torch, model)
    all_weights = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_weights, mine)
    assert all(torch.equal(mine, other) for other in all_weights)


def check_hook_like_none(problem, ways):
    """Without compression the hook does what DistributedDataParallel does without it."""
    torch, dist, rank, size = group()
    model, optimizer, batch = problem(torch)
    train(torch, torch.nn.parallel.DistributedDataParallel(model), optimizer, 20, rank, size, batch)
    parallel, optimizer, batch, hook = hooked(problem)
    train(torch, parallel, optimizer, 20, rank, size, batch)
    mine, expected = weights(torch, parallel.module), weights(torch, model)
    # A mean of three is the sum divided, or the sum of parts that were divided.
    assert torch.equal(mine, expected) if size == 2 else torch.allclose(mine, expected, atol=1e-6)
    report = hook.report()
    assert report["steps"] == 20
    assert {b["way"] for b in report["buckets"]} == ways, report
    # Where each rank sums for itself, not every bucket goes upwards.
    assert max(b["up_bytes_total"] for b in report["buckets"]) > 0, report
    dist.destroy_process_group()


def rank_hook_dense():
    check_hook_like_none(dense_problem, {"dense"})


def rank_hook_sparse():
    check_hook_like_none(embedding_problem, {"dense", "sparse"})


def convolution_problem(torch):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 32, 5), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(32 * 16, 64),
                                torch.nn.ReLU(), torch.nn.Linear(64, 3))

    def batch(step):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(24, 1, 8, 8, generator=generator)
        return inputs, inputs[:, 0, 0, :3].argmax(1)

    return model, torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5), batch


def rank_hook_compressed():
    torch, dist, rank, size = group()
    parallel, optimizer, batch, hook = hooked(convolution_problem)
    dense_losses = train(torch, parallel, optimizer, 30, rank, size, batch)
    expected, dense = weights(torch, parallel.module), hook.report()

    # All of the gradient, as a selection: the same sums.
    parallel, optimizer, batch, hook = hooked(convolution_problem, "topk:1:exact")
    train(torch, parallel, optimizer, 30, rank, size, batch)
    assert torch.allclose(weights(torch, parallel.module), expected, atol=1e-4)
    assert [b["way"] for b in hook.report()["buckets"] if b["steps"] == 30 - 1] == ["compressed"], hook.report()

    for compress in ("adacomp:500", "adacomp:500:slice", "topk:0.05", "qsgd:8"):
        parallel, optimizer, batch, hook = hooked(convolution_problem, compress)
        losses = train(torch, parallel, optimizer, 60, rank, size, batch)
        assert sum(losses[-10:]) < 0.9 * sum(losses[:10]), (compress, losses)
        check_same_on_all_ranks(torch, dist, parallel.module)
        last = hook.report()["buckets"]
        compressed = [b for b in last if b["way"] == "compressed"]
        assert len(compressed) == 1 and compressed[0]["compression"]["steps"] == 60 - 1, (compress, last)
        if not compress.startswith("qsgd"):
            assert compressed[0]["up_bytes"] < dense["buckets"][0]["up_bytes"] / 3, (compress, compressed, dense)
    assert dense_losses[-1] < dense_losses[0]

    # A convolution has bins of its own: with smaller ones more of it is sent.
    sent = []
    for convolution_bin in (16, 800):
        parallel, optimizer, batch, hook = hooked(convolution_problem, "adacomp:500", convolution_bin=convolution_bin)
        train(torch, parallel, optimizer, 10, rank, size, batch)
        sent.append([b["compression"]["sent_total"] for b in hook.report()["buckets"] if "compression" in b][0])
    assert sent[0] > sent[1] + 9 * 30, sent

    # What is kept counts with the rate of its own step, also in a run that goes on.
    norms = []
    for rates in ((0.2, 0.2), (0.2, 0.2008), (0.2, 0.1)):
        parallel, optimizer, batch, hook = hooked(convolution_problem, "topk:0.05:exact")
        hook.set_rate(rates[0])
        train(torch, parallel, optimizer, 10, rank, size, batch)
        hook.load_state_dict(hook.state_dict())
        hook.set_rate(rates[1])
        train(torch, parallel, optimizer, 1, rank, size, batch)
        norms.append([b["compression"]["residual_norm"] for b in hook.report()["buckets"] if "compression" in b][0])
    assert norms[0] == norms[1], norms  # within a per cent it is the same rate
    assert norms[2] > 1.2 * norms[0], norms
    hook.set_rate(0)  # as the first step of a warm-up has
    try:
        hook.set_rate(-1)
        raise AssertionError("not refused")
    except RuntimeError as error:
        assert "the rate is -1" in str(error), error

    # Nothing is registered anew as training goes on. The models before are parts of reference cycles: they go here, not at some time later.
    import nzcl_torch
    parallel, optimizer, batch, hook = hooked(convolution_problem, "topk:0.05")
    train(torch, parallel, optimizer, 10, rank, size, batch)
    gc.collect()
    registered = nzcl_torch.statistics()["registered_storages"]
    for first in range(10, 110):
        optimizer.zero_grad()
        inputs, labels = batch(first)
        torch.nn.functional.cross_entropy(parallel(inputs), labels).backward()
        optimizer.step()
    gc.collect()
    assert nzcl_torch.statistics()["registered_storages"] == registered
    dist.destroy_process_group()


def rank_hook_automatic():
    """The choice is that of all ranks, and what the residuals held is not lost when it falls on dense."""
    torch, dist, rank, size = group()
    parallel, optimizer, batch, hook = hooked(convolution_problem, "topk:0.05", automatic=True, tries=3)
    for steps in (9, 1):  # one dense, 2 * (1 + 3) of both kinds, and the first that is chosen
        assert hook.report()["chosen"] is None
        losses = train(torch, parallel, optimizer, steps, rank, size, batch)
    chosen = hook.report()["chosen"]
    everyone = [None] * size
    dist.all_gather_object(everyone, chosen)
    assert chosen in ("dense", "compressed") and everyone == [chosen] * size, everyone
    assert {b["way"] for b in hook.report()["buckets"] if b["steps"] > 1} == {chosen}, hook.report()
    check_same_on_all_ranks(torch, dist, parallel.module)
    assert hook.state_dict()["chosen"] == chosen

    # One dense step behind compressed ones: with a gradient of zeros, its result is the mean of what was kept back.
    def step(parallel, scale):
        parallel.zero_grad()
        (parallel(inputs) * scale).sum().backward()
        return torch.cat([p.grad.reshape(-1) for p in parallel.module.parameters()]).double()

    inputs = torch.ones(2, 8) * (1 + rank)
    parallel, _, _, hook = hooked(lambda torch: (torch.nn.Linear(8, 4000, bias=False), None, None), "topk:0.05:exact", automatic=True,
                                  tries=3)
    total = torch.zeros(32000, dtype=torch.double)
    factor = [1.0 + i % 3 for i in range(9)]
    for i in range(9):
        total += step(parallel, factor[i])
    kept_back = hook.state_dict()
    parallel, _, _, hook = hooked(lambda torch: (torch.nn.Linear(8, 4000, bias=False), None, None), "topk:0.05:exact", automatic=True)
    step(parallel, 1)
    hook.load_state_dict(kept_back | {"chosen": "dense"})
    total += step(parallel, 0)
    expected = sum(factor) * 2 * (size + 1) / 2
    assert torch.allclose(total, torch.full_like(total, expected)), (total, expected)
    assert hook.state_dict()["states"] == {}
    dist.destroy_process_group()


def rank_hook_checkpoint():
    """A run that goes on from its checkpoint ends with the same bits as one that was not interrupted."""
    torch, dist, rank, size = group()
    for compress in ("adacomp:500", "topk:0.05", "qsgd:4", "topk:0.05,momentum=0.5"):
        parallel, optimizer, batch, hook = hooked(convolution_problem, compress)
        train(torch, parallel, optimizer, 10, rank, size, batch)
        model = {name: t.clone() for name, t in parallel.module.state_dict().items()}
        kept = {"optimizer": optimizer.state_dict(), "hook": hook.state_dict()}
        kept = torch.load(saved(torch, kept))
        later = lambda step: batch(10 + step)  # noqa: E731
        train(torch, parallel, optimizer, 10, rank, size, later)
        expected = weights(torch, parallel.module)

        parallel, optimizer, batch, hook = hooked(convolution_problem, compress)
        train(torch, parallel, optimizer, 1, rank, size, batch)  # arranges the buckets
        parallel.module.load_state_dict(model)
        optimizer.load_state_dict(kept["optimizer"])
        hook.load_state_dict(kept["hook"])
        train(torch, parallel, optimizer, 10, rank, size, later)
        assert torch.equal(weights(torch, parallel.module), expected), compress
    dist.destroy_process_group()


def saved(torch, content):
    import io

    file = io.BytesIO()
    torch.save(content, file)
    file.seek(0)
    return file


def rank_hook_refusals():
    torch, dist, rank, size = group()
    expect_error(lambda: hooked(dense_problem, "nonsense"), "nonsense")
    expect_error(lambda: hooked(dense_problem, "topk:0.1", start=0), "start")
    expect_error(lambda: hooked(dense_problem, automatic=True), "no compressor")
    for more_steps in (0.99, 1001, float("nan")):
        expect_error(lambda: hooked(dense_problem, "topk:0.1", automatic=True, more_steps=more_steps), "from 1 to 1000")  # noqa: B023
    parallel, optimizer, batch, hook = hooked(convolution_problem, "topk:0.1")
    train(torch, parallel, optimizer, 3, rank, size, batch)
    states = hook.state_dict()
    other, optimizer, batch, hook = hooked(dense_problem, "topk:0.1")
    hook.load_state_dict(states)
    expect_error(lambda: train(torch, other, optimizer, 3, rank, size, batch), "states of buckets that do not exist")
    other, optimizer, batch, hook = hooked(convolution_problem, "topk:0.2")
    train(torch, other, optimizer, 1, rank, size, batch)
    hook.load_state_dict(states)
    expect_error(lambda: train(torch, other, optimizer, 1, rank, size, batch), "state")
    # What the hook refuses on one rank fails the step on all of them, and the next one works.
    parallel, optimizer, batch, hook = hooked(convolution_problem, "topk:0.1,error=1")
    train(torch, parallel, optimizer, 3, rank, size, batch)

    def step(weight):
        parallel.zero_grad()
        (parallel(batch(0)[0]) * weight).sum().backward()

    expect_error(lambda: step(float("nan") if rank == 1 else 1), *(["is nan"] if rank == 1 else ["rank 1 refused its request", "is nan"]))
    step(1)
    check_same_on_all_ranks(torch, dist, parallel.module)
    expect_error(lambda: nzcl_statistics_of(dist.new_group(backend="gloo")), "not of nzcl")


def nzcl_statistics_of(other):
    import nzcl_torch

    nzcl_torch.statistics(other)


def rank_torchrun():
    assert "TORCHELASTIC_RUN_ID" in os.environ
    rank_dense_model()
    print("trained under torchrun", flush=True)


# --- Cases


def case_exit():
    for rank, (status, text) in enumerate(outcomes(start_ranks("exit", 2))):
        assert status == 0 and "the callback is over" in text, f"rank {rank} ended with {status}:\n{text}"


def case_failed_program():
    for rank, (status, text) in enumerate(outcomes(start_ranks("failed_program", 3))):
        assert status == (1 if rank == 1 else 0), f"rank {rank} ended with {status}:\n{text}"


def case_hook_killed_rank():
    case_killed_rank(HOOK="topk:0.01")


def case_killed_rank(**extra):
    for size in (2, 3):
        begin = time.monotonic()
        ends = outcomes(start_ranks("killed_rank", size, NZCL_TIMEOUT_S="20", **extra))
        took = time.monotonic() - begin
        for rank, (status, text) in enumerate(ends):
            assert "trained" in text, text
            if rank == 1:
                assert status == -signal.SIGKILL, text
                continue
            assert status == 7, f"rank {rank} of {size} ended with {status}:\n{text}"
            assert "rank 1" in text.split("after ")[1], text
        assert took < 60, took
        print(f"killed_rank: {size} ranks, {took:.1f} s: {ends[0][1].splitlines()[-1]}")


def case_torchrun():
    # torchrun of torch 1.13 does not find its own default for --redirects and --tee with Python 3.11: an enumeration
    # leaves out its zero there. So both are given. The processes meet in a file, because Debian's torch 2 is built without
    # libuv, and torchrun's own store asks for it.
    with tempfile.TemporaryDirectory() as logs:
        done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--rdzv_backend", "c10d", "--rdzv_conf", "store_type=file",
                               "--rdzv_endpoint", os.path.join(logs, "meeting"), "--nproc_per_node", "2",
                               "--redirects", "1", "--tee", "1", "--log_dir", logs, __file__, "--rank", "torchrun"],
                              env=dict(os.environ, USE_LIBUV="0", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=RANK_TIMEOUT_S)
    assert done.returncode == 0, done.stdout
    assert "trained under torchrun" in done.stdout, done.stdout
    print(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main(globals())
