"""Tests of what nzcl_torch leaves to Gloo, and of types that it converts: fallback_test.py CASE."""

import os
import signal
import socket
import subprocess
import sys

from ranks import backend, expect_error, group, main, outcomes, run, start_ranks, wait_for_all


def integers(torch, dtype, seed, n=1000):
    """Numbers over the whole range of the type, so that sums and products overflow."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return (torch.randint(-8, 9, (n,), generator=generator) / 4).to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 4, (n,), generator=generator) > 0
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max, (n,), generator=generator, dtype=torch.long).to(dtype)


def same(torch, one, other):
    return one.dtype == other.dtype and torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def reductions(torch, dist, rank, size):
    """Bit by bit what a Gloo group of the same ranks has, and where that has nothing, what is computed in a wide type."""
    gloo = dist.new_group(backend="gloo")
    op = dist.ReduceOp
    bits = (op.BAND, op.BOR, op.BXOR)

    def everyone(dtype, seed=0):
        return [integers(torch, dtype, 10 * r + seed) for r in range(size)]

    def check(call, dtype, operation, expected):
        t = everyone(dtype)[rank]
        strided = torch.stack([t, t], 1)[:, 0]  # its elements do not follow each other
        for tensor in (t, strided):
            call(tensor, operation)
            assert same(torch, tensor, expected), (dtype, operation, tensor, expected)

    for dtype in (torch.float, torch.double, torch.half, torch.int8, torch.uint8, torch.int, torch.long):
        exact = (op.SUM, op.MIN, op.MAX) if not dtype.is_floating_point else ()
        for operation in exact + (op.PRODUCT,) + (() if dtype.is_floating_point else bits):
            expected = everyone(dtype)[rank]
            dist.all_reduce(expected, operation, group=gloo)
            check(lambda t, o: dist.all_reduce(t, o), dtype, operation, expected)

            def reduced(t, o):
                for root in range(size):
                    mine = t.clone()
                    dist.reduce(mine, root, o)
                    assert rank != root or same(torch, mine, expected), (dtype, o)  # noqa: B023
                t.copy_(expected)  # noqa: B023

            check(reduced, dtype, operation, expected)

    def folded(tensors, function):
        result = tensors[0]
        for t in tensors[1:]:
            result = function(result, t)
        return result

    plain = {op.SUM: torch.add, op.PRODUCT: torch.mul, op.MIN: torch.minimum, op.MAX: torch.maximum, op.BAND: torch.bitwise_and,
             op.BOR: torch.bitwise_or, op.BXOR: torch.bitwise_xor}
    for operation, function in plain.items():
        for dtype in (torch.int16, torch.bool):
            wide = [t.long() for t in everyone(dtype)]
            expected = folded(wide, function)
            if dtype == torch.bool and operation in (op.SUM, op.PRODUCT):
                expected = expected > 0
            expected = expected.to(dtype)
            check(lambda t, o: dist.all_reduce(t, o), dtype, operation, expected)

            chunk = torch.empty(5, dtype=dtype)
            pieces = [list(t[:5 * size].split(5)) for t in everyone(dtype)]
            dist.reduce_scatter(chunk, [p.clone() for p in pieces[rank]], operation)
            assert same(torch, chunk, expected[5 * rank:5 * rank + 5]), (dtype, operation)
            dist.reduce_scatter_tensor(chunk.zero_(), everyone(dtype)[rank][:5 * size], operation)
            assert same(torch, chunk, expected[5 * rank:5 * rank + 5]), (dtype, operation)
            mine = everyone(dtype)[rank]
            dist.reduce(mine, 0, operation)
            assert rank > 0 or same(torch, mine, expected), (dtype, operation)
    for dtype in (torch.int8, torch.int16):  # an average is that of the sum before it is cut off
        t = torch.full((100,), 100, dtype=dtype)
        dist.all_reduce(t, op.AVG)
        assert (t == 100).all(), t
    premul = dist._make_nccl_premul_sum(rank + 0.5)
    expected = sum(r * (r + 0.5) for r in range(size))
    for dtype in (torch.float, torch.bfloat16):
        t = torch.full((100,), rank, dtype=dtype)
        dist.all_reduce(t, premul)
        assert t.dtype == dtype and (t == expected).all(), t
        out = torch.empty(2, dtype=dtype)
        dist.reduce_scatter_tensor(out, torch.full((2 * size,), rank, dtype=dtype), premul)
        assert (out == expected).all(), out
        t = torch.full((100,), rank, dtype=dtype)
        dist.reduce(t, 0, premul)
        assert rank > 0 or (t == expected).all(), t
    expect_error(lambda: dist.all_reduce(torch.ones(3, dtype=torch.int), premul), "PREMUL_SUM takes a factor, and tensors of floating-point")
    out = torch.empty(3)
    dist.reduce_scatter(out, [torch.full((3,), 2.0 + r) for r in range(size)], op.PRODUCT)
    assert (out == (2.0 + rank)**size).all(), out
    expect_error(lambda: dist.all_reduce(torch.ones(3, dtype=torch.bool), op.AVG), "bools", "they have no average")

    base = dist.distributed_c10d._get_default_group()
    for call in (base.broadcast, base.reduce):
        expect_error(lambda: call(torch.ones(2), size), f"invalid root rank: {size}")  # noqa: B023
    # Gloo's and nzcl's parts of one call.
    tensors = [torch.full((7,), 2.0), torch.ones(7, dtype=torch.bool), torch.full((3,), 3, dtype=torch.int16)]
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = op.PRODUCT
    base.allreduce_coalesced(tensors, options).wait()
    assert [t[0].item() for t in tensors] == [2.0**size, True, 3**size], tensors
    tensors = [torch.full((2,), float(rank)), torch.ones(2)]
    base.allreduce(tensors).wait()  # all of them are summed
    assert all(t.tolist() == [size * (size - 1) / 2 + size] * 2 for t in tensors), tensors


def sparse_forms(torch, dist, rank, size):

    def check(make, expected_type, op=dist.ReduceOp.SUM, fold=None):
        dense = [make(r).to_dense() for r in range(size)]
        expected = dense[0]
        for d in dense[1:]:
            expected = fold(expected, d) if fold else expected + d
        t = make(rank)
        options = dist.AllreduceOptions()
        options.reduceOp = op
        backend().allreduce([t], options).wait()
        assert t.layout == make(rank).layout and t.dtype == expected_type
        assert torch.equal(t.to_dense(), expected), (t, expected)

    def rows(r, dtype, layout=torch.sparse_coo):
        index = torch.tensor([[r, r, 5], [0, 0, r]])
        t = torch.sparse_coo_tensor(index, torch.tensor([90, 90, 7]).to(dtype), (6, 4))
        return t if layout == torch.sparse_coo else t.coalesce().to_sparse_csr()

    for dtype in (torch.int8, torch.int16, torch.bool):
        check(lambda r: rows(r, dtype), dtype)  # noqa: B023
        check(lambda r: rows(r, dtype), dtype, dist.ReduceOp.MAX, torch.maximum)  # noqa: B023
    check(lambda r: rows(r, torch.bool), torch.bool, dist.ReduceOp.BXOR, torch.logical_xor)
    for dtype in (torch.float, torch.int8):
        check(lambda r: rows(r, dtype, torch.sparse_csr), dtype)  # noqa: B023
    # Without elements, with and without entries; and entries on one rank only.
    for width in (0, 2):
        for entries in ({0: 0, 1: 2}, {0: 2, 1: 0}, {0: 2, 1: 1}, {0: 0, 1: 0}):
            n = entries.get(rank, 1)
            t = torch.sparse_coo_tensor([list(range(n))], torch.ones(n, width), (10, width))
            dist.all_reduce(t)
            assert t.shape == (10, width) and t.to_dense().sum() == width * sum(entries.get(r, 1) for r in range(size)), t
    t = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.long), torch.empty(0, 3), (0, 3))
    dist.all_reduce(t)
    assert t.shape == (0, 3)
    tensors = [rows(rank, torch.float), rows(rank, torch.float)]  # all of them are added up
    dist.distributed_c10d._get_default_group().allreduce(tensors).wait()
    assert all(torch.equal(t.to_dense(), 2 * sum(rows(r, torch.float).to_dense() for r in range(size))) for t in tensors), tensors
    expect_error(lambda: dist.all_reduce(rows(rank, torch.float), dist.ReduceOp.PRODUCT), "sparse tensors only works with ReduceOp.SUM")


def messages(torch, dist, rank, size):
    """Two of three ranks send and receive before any other call: the third takes no part in it."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        dist.send(torch.arange(10), 1)
    elif rank == 1:
        t = torch.zeros(10, dtype=torch.long)
        assert dist.recv(t, 0) == 0 and t.tolist() == list(range(10))
        store.set("received", "")
    store.wait(["received"])  # the third rank makes no call of the group before this

    # All ranks send to the next one, whatever the type, before they receive.
    right, left = (rank + 1) % size, (rank - 1) % size
    for dtype in (torch.float, torch.bool, torch.int16, torch.bfloat16, torch.complex64, torch.complex128):
        sent = dist.isend(integers(torch, torch.uint8, rank).to(dtype), right, tag=3)
        t = torch.empty(1000, dtype=dtype)
        received = dist.irecv(t, left, tag=3)
        sent.wait()
        received.wait()
        assert torch.equal(t, integers(torch, torch.uint8, left).to(dtype)), dtype
    a, b = torch.full((4,), float(rank)), torch.empty(4)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, a, right), dist.P2POp(dist.irecv, b, left)]):
        work.wait()
    assert (b == left).all()
    if rank == 0:
        t, sources = torch.empty(1), []
        for _ in range(2 * (size - 1)):
            sources.append(dist.recv(t))
            assert t.item() == sources[-1]
        assert sorted(sources) == sorted(2 * list(range(1, size))), sources
    else:
        for _ in range(2):
            dist.send(torch.tensor([float(rank)]), 0)

    # A receive that is open does not hold back collectives of either kind.
    t = torch.empty(3)
    open_receive = dist.irecv(t, left) if rank == 0 else None
    x = torch.ones(3)
    dist.all_reduce(x, dist.ReduceOp.PRODUCT)
    dist.all_reduce(x)
    dist.barrier()
    assert (x == size).all()
    if rank == size - 1:
        dist.send(x, 0)
    if open_receive:
        open_receive.wait()
        assert (t == size).all()
    if size > 2:
        pair = dist.new_group([1, 2])
        if rank == 1:
            dist.send(x, 2, group=pair)
        elif rank == 2:
            assert dist.recv(x.zero_(), group=pair) == 1 and (x == size).all()


def moves(torch, dist, rank, size):
    """Gather, scatter and all-to-all of every type, also of tensors whose elements do not follow each other."""
    types = (torch.float, torch.double, torch.half, torch.bfloat16, torch.uint8, torch.int8, torch.int16, torch.int, torch.long, torch.bool,
             torch.complex64, torch.complex128)

    def piece(dtype, source, to=0):
        return integers(torch, torch.uint8, 10 * source + to, 12).to(dtype).view(3, 4)

    def empty(dtype, strided):
        return torch.zeros(4, 3, dtype=dtype).t() if strided else torch.zeros(3, 4, dtype=dtype)

    def as_given(t, strided):
        return t.t().contiguous().t() if strided else t

    for dtype in types:
        for strided in (False, True):
            for root in range(size):
                outs = [empty(dtype, strided) for _ in range(size)] if rank == root else None
                dist.gather(as_given(piece(dtype, rank), strided), outs, root)
                assert rank != root or all(torch.equal(outs[r], piece(dtype, r)) for r in range(size)), (dtype, outs)
                out = empty(dtype, strided)
                dist.scatter(out, [as_given(piece(dtype, root, r), strided) for r in range(size)] if rank == root else None, root)
                assert torch.equal(out, piece(dtype, root, rank)), (dtype, out)
            outs = [empty(dtype, strided) for _ in range(size)]
            dist.all_to_all(outs, [as_given(piece(dtype, rank, r), strided) for r in range(size)])
            assert all(torch.equal(outs[r], piece(dtype, r, rank)) for r in range(size)), (dtype, outs)
            lists = [[empty(dtype, strided), torch.zeros(2, dtype=dtype)] for _ in range(size)]
            dist.all_gather_coalesced(lists, [as_given(piece(dtype, rank), strided), torch.full((2,), rank).to(dtype)])
            for r in range(size):
                assert torch.equal(lists[r][0], piece(dtype, r)) and torch.equal(lists[r][1], torch.full((2,), r).to(dtype)), (dtype, lists)
        out = torch.zeros(size, 2, dtype=dtype)
        dist.all_to_all_single(out, torch.stack([piece(dtype, rank, r)[0, :2] for r in range(size)]))
        assert torch.equal(out, torch.stack([piece(dtype, r, rank)[0, :2] for r in range(size)])), (dtype, out)

    # Pieces of different lengths, and none.
    lengths = [[(r + to) % 3 for to in range(size)] for r in range(size)]
    out = torch.zeros(sum(lengths[r][rank] for r in range(size)), 2)
    dist.all_to_all_single(out, torch.full((sum(lengths[rank]), 2), float(rank)), [lengths[r][rank] for r in range(size)], lengths[rank])
    assert out[:, 0].tolist() == [float(r) for r in range(size) for _ in range(lengths[r][rank])]
    outs = [torch.zeros(lengths[r][rank]) for r in range(size)]
    dist.all_to_all(outs, [torch.full((n,), float(rank)) for n in lengths[rank]])
    assert all((outs[r] == r).all() for r in range(size))
    expect_error(lambda: dist.all_to_all(outs, [torch.ones(1)] * (size + 1)), f"all_to_all takes {size} inputs, and not {size + 1}")

    objects = [None] * size if rank == 1 else None
    dist.gather_object({"rank": rank}, objects, 1)
    assert rank != 1 or objects == [{"rank": r} for r in range(size)]
    mine = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(size)], 0)
    assert mine == [f"for {rank}"]
    dist.monitored_barrier()

    # A barrier waits for Gloo's operations too, and a callback may wait for another one.
    outs = [torch.zeros(300000) for _ in range(size)]
    works = [dist.all_to_all(outs, [torch.ones(300000)] * size, async_op=True), dist.all_reduce(torch.ones(10), async_op=True),
             dist.all_reduce(torch.ones(100000), dist.ReduceOp.PRODUCT, async_op=True)]
    dist.barrier()
    assert all(work.is_completed() for work in works)

    def again(_):
        t = torch.full((3,), 2.0)
        dist.all_reduce(t, dist.ReduceOp.PRODUCT)
        dist.all_reduce(t)
        return t

    for _ in range(3):
        future = dist.all_reduce(torch.ones(3), dist.ReduceOp.PRODUCT, async_op=True).get_future().then(again)
        assert (future.wait() == size * 2.0**size).all()


def rank_calls():
    torch, dist, rank, size = group()
    for some in (messages, reductions, sparse_forms, moves):  # messages are to be the first calls of the group
        some(torch, dist, rank, size)
    dist.destroy_process_group()


def case_calls():
    """And the log says once for each group that Gloo does something."""
    for size in (2, 3):
        for rank, (status, text) in enumerate(outcomes(start_ranks("calls", size, NZCL_LOG_LEVEL="info"))):
            assert status == 0, f"rank {rank} of {size} ended with {status}:\n{text}"
            lines = [line for line in text.splitlines() if "done by Gloo" in line]
            assert len(lines) == (2 if size == 3 and rank > 0 else 1), text  # ranks 1 and 2 have a second group, of them
            first = ("send", "recv", "send")[rank]
            assert f"info: rank {rank}: {first} is done by Gloo" in lines[0] and "NZCL_TORCH_FALLBACK=0 refuses" in lines[0], text


def forbidden(torch, dist, rank, size):
    t = torch.ones(4)
    base = dist.new_group()
    calls = {
        "send": lambda: dist.send(t, (rank + 1) % size, group=base),
        "recv": lambda: dist.recv(t, (rank + 1) % size, group=base),
        "recvAnysource": lambda: dist.recv(t, group=base),
        "alltoall": lambda: dist.all_to_all([t] * size, [t] * size, group=base),
        "alltoall_base": lambda: dist.all_to_all_single(t, t, group=base),
        "gather": lambda: dist.gather(t, [t] * size if rank == 0 else None, group=base),
        "scatter": lambda: dist.scatter(t, [t] * size if rank == 0 else None, group=base),
        "allgather_coalesced": lambda: dist.all_gather_coalesced([[t]] * size, [t], group=base),
    }
    for name, call in calls.items():
        expect_error(call, "nzcl", f"does not support {name}")
    expect_error(lambda: dist.monitored_barrier(base), "monitored_barrier is only implemented for GLOO backend")
    for op in ("PRODUCT", "BAND", "BOR", "BXOR"):
        expect_error(lambda: dist.all_reduce(torch.ones(4, dtype=torch.int), getattr(dist.ReduceOp, op), group=base),  # noqa: B023
                     "SUM, AVG, MIN and MAX")
    expect_error(lambda: base.allreduce([t, t]), "requires a single-element tensor list; this one has 2")
    flags = torch.tensor([rank == 0, True, False])  # converting needs no Gloo
    dist.all_reduce(flags, dist.ReduceOp.BAND, group=base)
    assert flags.tolist() == [False, True, False]
    dist.all_reduce(t, group=base)
    assert (t == size).all(), "a refused call has not disturbed the order"


def without_gloo(torch, dist, rank, size, *texts):
    """nzcl's own calls work, and those of Gloo say why not."""
    t = torch.ones(4)
    pg = dist.new_group()
    dist.all_reduce(t, group=pg)
    assert (t == size).all()
    if texts:
        expect_error(lambda: pg.send([t], 1 - rank, 0), "nzcl leaves send to Gloo", *texts)


def addresses():
    """Those of this process's own TCP sockets."""
    own = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}
    with open("/proc/net/tcp") as table:
        numbers = [int(line.split()[1].split(":")[0], 16) for line in table if f"socket:[{line.split()[9]}]" in own]
    return {socket.inet_ntoa(number.to_bytes(4, sys.byteorder)) for number in numbers}


def loopback(torch, dist, rank, size):
    """Without GLOO_SOCKET_IFNAME, ranks of one host use the loopback interface, however the host's name resolves."""
    pg = dist.new_group()
    dist.monitored_barrier(pg)
    assert addresses() == {"127.0.0.1"}, addresses()
    dist.barrier(pg)


def rank_hosts():
    """And ranks of several hosts use the address by which they reach each other."""
    torch, dist, rank, size = group()
    t = torch.ones(4)
    dist.all_reduce(t, dist.ReduceOp.PRODUCT)
    dist.monitored_barrier()
    assert addresses() == {f"10.88.7.{1 + rank}"}, addresses()
    dist.barrier()
    dist.destroy_process_group()


def case_hosts():
    if os.geteuid() != 0:
        print("skipped: network namespaces need root")
        sys.exit(77)
    hosts = [f"nzcltorch{os.getpid()}-{i}" for i in range(2)]

    def ip(*words):
        subprocess.run(["ip", *words], check=True)

    try:
        for host in hosts:
            ip("netns", "add", host)
        ip("-n", hosts[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", hosts[1])
        for i, host in enumerate(hosts):
            ip("-n", host, "addr", "add", f"10.88.7.{1 + i}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                ip("-n", host, "link", "set", link, "up")
        ranks = start_ranks("hosts", 2, within=lambda rank: ["ip", "netns", "exec", hosts[rank]], address="10.88.7.1",
                            NZCL_TRANSPORT="tcp", GLOO_SOCKET_IFNAME="")
        for rank, (status, text) in enumerate(outcomes(ranks)):
            assert status == 0, f"rank {rank} ended with {status}:\n{text}"
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host])


def left_open(torch, dist, rank, size):
    """Groups are closed while operations of Gloo are under way that will never end: this takes NZCL_CLOSE_TIMEOUT_S, and fails them."""
    import nzcl_torch

    pg = dist.new_group()
    works = [dist.all_reduce(torch.ones(4), dist.ReduceOp.PRODUCT, group=pg, async_op=True) for _ in range(5)] if rank == 0 else []
    nzcl_torch._C.close_all(failure="")
    expect_error(lambda: pg.send([torch.ones(1)], 1 - rank, 0), "the group is closed")
    for work in works:
        expect_error(work.wait, "Gloo's all_reduce failed")


def rank_settings():
    torch, dist, rank, size = group()
    env = os.environ
    env["NZCL_TORCH_FALLBACK"] = "0"
    forbidden(torch, dist, rank, size)
    env["NZCL_TORCH_FALLBACK"] = "0" if rank == 1 else "1"
    without_gloo(torch, dist, rank, size, *["rank 1 has none: NZCL_TORCH_FALLBACK=0"][rank:])
    env["NZCL_TORCH_FALLBACK"] = "yes"
    expect_error(dist.new_group, "NZCL_TORCH_FALLBACK=yes: it is 0 or 1")
    del env["NZCL_TORCH_FALLBACK"]
    env["GLOO_SOCKET_IFNAME"] = "nothing0"
    without_gloo(torch, dist, rank, size, "rank 0 has none", "nothing0")
    del env["GLOO_SOCKET_IFNAME"]
    loopback(torch, dist, rank, size)
    left_open(torch, dist, rank, size)
    dist.destroy_process_group()


def case_settings():
    run("settings", sizes=(2,), NZCL_CLOSE_TIMEOUT_S="1")


def rank_killed():
    """Rank 1 dies while the others are in calls of Gloo, each in a group of its own: all calls fail, and the groups can be destroyed."""
    torch, dist, rank, size = group()
    t = torch.ones(size)
    groups = [dist.new_group() for _ in range(4)]
    for g in groups:
        dist.all_reduce(torch.ones(1), dist.ReduceOp.PRODUCT, group=g)
    wait_for_all(dist, rank, size)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    works = [
        dist.all_to_all_single(torch.empty(size), t, group=groups[0], async_op=True),
        dist.all_reduce(t.clone(), dist.ReduceOp.PRODUCT, group=groups[1], async_op=True),
        dist.irecv(t.clone(), 1, group=groups[2]),
        # Rank 2 waits for rank 0 here, which sends nothing: it learns by rank 0's connection that rank 0's gather has failed.
        dist.irecv(t.clone(), 0, group=groups[3]) if rank == 2 else
        dist.gather(t, [t.clone() for _ in range(size)], group=groups[3], async_op=True),
    ]
    for i, work in enumerate(works):
        try:
            work.wait()
        except RuntimeError as error:
            print(f"call {i} failed: {error}", flush=True)
    expect_error(lambda: dist.all_reduce(t, dist.ReduceOp.PRODUCT, group=groups[0]), "Gloo's all_reduce failed")  # so do later calls
    dist.destroy_process_group()
    print("destroyed", flush=True)


def case_killed():
    for rank, (status, text) in enumerate(outcomes(start_ranks("killed", 3, NZCL_TIMEOUT_S="20", NZCL_CLOSE_TIMEOUT_S="1"))):
        assert status == (-signal.SIGKILL if rank == 1 else 0), f"rank {rank} ended with {status}:\n{text}"
        assert rank == 1 or all(f"call {i} failed" in text for i in range(4)) and "destroyed" in text, text


if __name__ == "__main__":
    main(globals())
