"""Ranks of tests: processes of the calling script, `SCRIPT --rank CASE`, and what they have in common."""

import faulthandler
import os
import socket
import subprocess
import sys
import time

RANK_TIMEOUT_S = int(os.environ.get("TORCH_TEST_TIMEOUT_S", "120"))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start_ranks(case, size, within=lambda rank: [], address="127.0.0.1", **extra):
    """`within`: what each rank's command begins with. `address`: of rank 0."""
    port = free_port()
    ranks = []
    for rank in range(size):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR=address, MASTER_PORT=str(port))
        # Debian's PyTorch 2 is built without libuv, which its own store asks for unless it is told not to.
        env |= {"GLOO_SOCKET_IFNAME": "lo", "USE_LIBUV": "0"} | extra
        ranks.append(subprocess.Popen([*within(rank), sys.executable, os.path.abspath(sys.argv[0]), "--rank", case], env=env, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True))
    return ranks


def outcomes(ranks):
    """The exit status and output of every rank."""
    deadline = time.monotonic() + RANK_TIMEOUT_S
    result = []
    for rank in ranks:
        try:
            text, _ = rank.communicate(timeout=max(1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            text = rank.communicate()[0] + "\n(did not end in time)"
        result.append((rank.returncode, text))
    return result


def run(case, sizes=(2, 3), **extra):
    for size in sizes:
        ended = outcomes(start_ranks(case, size, **extra))
        wrong = [f"{case}: rank {rank} of {size} ended with {status}:\n{text}" for rank, (status, text) in enumerate(ended) if status != 0]
        assert not wrong, "\n".join(wrong)
        print(f"{case}: {size} ranks")


def group():
    """Joins the group of this rank. Returns torch, torch.distributed, the rank and the number of ranks."""
    import torch
    import torch.distributed as dist
    import nzcl_torch  # noqa: F401

    dist.init_process_group("nzcl")
    assert dist.get_backend() == "nzcl"
    return torch, dist, dist.get_rank(), dist.get_world_size()


def backend():
    """nzcl's own object of the default group. From PyTorch 2.0 on it stands behind one of PyTorch, which refuses some arguments itself."""
    import nzcl_torch

    return nzcl_torch._backend_of(None)


def wait_for_all(dist, rank, size):
    """Waits through c10d's store until all ranks have come here. Ranks that disagree next fail the communicator at once, and with it what
    a slower rank still waits for."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"came {rank}", "")
    store.wait([f"came {r}" for r in range(size)])


def expect_error(call, *texts):
    try:
        call()
    except Exception as error:
        for text in texts:
            assert text in str(error), f"{text!r} is not in {error}"
        return
    raise AssertionError(f"no error, although one should name {texts}")


def main(tests):
    """The tests are a module's functions: rank_NAME() is what a rank does, and case_NAME(), if there is one, starts the ranks."""
    if sys.argv[1] == "--rank":
        faulthandler.dump_traceback_later(0.9 * RANK_TIMEOUT_S)  # where it is, before it is killed for its time
        tests["rank_" + sys.argv[2]]()
    else:
        tests.get("case_" + sys.argv[1], lambda: run(sys.argv[1]))()
