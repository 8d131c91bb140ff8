#!/usr/bin/env python3
"""Tests of ranks that go on without those that have died. Each case starts this script once more for every rank."""

import copy
import os
import signal

from ranks import group, main, outcomes, start_ranks

STEPS, DIES_AT = 12, 5


def data_of(torch, rank, step):
    """What a rank learns from in this step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(16, 20, generator=generator)
    return inputs, inputs[:, :1] * 2 - inputs[:, 1:2]


def make_model(torch):
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))


def learn(torch, model, rank, step):
    inputs, wanted = data_of(torch, rank, step)
    loss = torch.nn.functional.mse_loss(model(inputs), wanted)
    loss.backward()
    return loss.item()


def train_alone(torch, weights, first, size):
    """The same training on one process: the average of what `size` ranks learn in each step."""
    model = make_model(torch)
    model.load_state_dict(weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(first, STEPS):
        optimizer.zero_grad()
        loss = sum(learn(torch, model, rank, step) for rank in range(size)) / size
        for parameter in model.parameters():
            parameter.grad /= size
        optimizer.step()
    return model, loss


def train_until_death(torch, dist, rank, dies):
    """Returns the weights before each step, and the step that failed."""
    model = make_model(torch)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    kept = {}
    for step in range(STEPS):
        kept[step] = copy.deepcopy(model.state_dict())
        if rank in dies and step == DIES_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            optimizer.zero_grad()
            learn(torch, parallel, rank, step)
            optimizer.step()
        except RuntimeError as error:
            assert "rank" in str(error), error
            return kept, step
    raise AssertionError("nobody has died")


def train_on(torch, dist, kept, step):
    """From the earliest step that a rank has not ended."""
    first = torch.tensor([step])
    dist.all_reduce(first, op=dist.ReduceOp.MIN)
    first = int(first)
    rank, size = dist.get_rank(), dist.get_world_size()
    model = make_model(torch)
    model.load_state_dict(kept[first])
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(first, STEPS):
        optimizer.zero_grad()
        loss = torch.tensor([learn(torch, parallel, rank, step)])
        optimizer.step()
    dist.all_reduce(loss)
    alone, expected = train_alone(torch, kept[first], first, size)
    assert abs(loss.item() / size - expected) < 1e-5, (loss.item() / size, expected)
    for mine, other in zip(model.parameters(), alone.parameters()):
        assert torch.allclose(mine, other, rtol=1e-5, atol=1e-6)


def rank_training():
    import nzcl_torch

    torch, dist, rank, size = group()
    dies = {int(r) for r in os.environ["DIES"].split(",")}
    kept, step = train_until_death(torch, dist, rank, dies)
    left = [r for r in range(size) if r not in dies]
    assert nzcl_torch.shrink() == (left.index(rank), len(left))
    assert (dist.get_rank(), dist.get_world_size()) == (left.index(rank), len(left))
    train_on(torch, dist, kept, step)
    dist.barrier()
    dist.monitored_barrier()  # Gloo's part of the group has been made anew too
    dist.destroy_process_group()


def expect_survivors(size, dies):
    ranks = start_ranks("training", size, DIES=",".join(map(str, dies)))
    for rank, (status, text) in enumerate(outcomes(ranks)):
        assert status == (-signal.SIGKILL if rank in dies else 0), f"without {dies}: rank {rank} ended with {status}:\n{text}"
    print(f"{size} ranks without {dies}")


def case_training():
    expect_survivors(4, [1])
    expect_survivors(4, [0, 2])  # the first one's store dies with it


def case_last_rank():
    expect_survivors(2, [0])


main(globals())
