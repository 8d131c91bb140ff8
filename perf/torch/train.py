"""One rank of a training run with DistributedDataParallel; scripts/train starts all of them.

The launcher sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Rank 0 writes lines of JSON to --out: the settings, one line for each
evaluation, and at the end what the hook reports. A run that was interrupted goes on from its last checkpoint, which lies beside --out;
all ranks must see the same files.
"""

import argparse
import contextlib
import glob
import json
import math
import os
import time

import torch
import torch.distributed as dist

from tasks import TASKS


def settings():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--backend", choices=["nzcl", "gloo", "none"], default="nzcl", help="none: ranks train without one another")
    parser.add_argument("--compress", default="", help="nzcl's text of a compressor")
    parser.add_argument("--automatic", action="store_true", help="compress only if the model learns sooner so")
    parser.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd")
    parser.add_argument("--schedule", choices=["constant", "cosine"], default="constant", help="cosine: the rate falls to zero over all steps")
    parser.add_argument("--rated", action="store_true", help="the compressor is told the learning rate of each step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--evaluate", type=int, default=100, help="after so many steps, and save a checkpoint; 0: never")
    parser.add_argument("--warm-up", type=int, default=0, help="count neither the time nor the bytes of so many first steps")
    parser.add_argument("--stop", type=int, default=0, help="end after the checkpoint of this step, as an interrupted run would")
    parser.add_argument("--synthetic", action="store_true", help="made-up data, for machines without the data's packages")
    parser.add_argument("--out", required=True)
    return parser.parse_args()


class Checkpoints:
    """Files OUT.checkpoint.STEP.RANK: what a rank needs to go on behind a step. The model is in rank 0's, residuals are each rank's own."""

    def __init__(self, out, rank, size):
        self.out, self.rank, self.size = out, rank, size

    def path(self, step, rank):
        return f"{self.out}.checkpoint.{step}.{rank}"

    def steps(self):
        """Those of which all ranks' files exist."""
        found = {int(path.split(".")[-2]) for path in glob.glob(glob.escape(self.out) + ".checkpoint.*.0")}
        return sorted(step for step in found if all(os.path.exists(self.path(step, r)) for r in range(self.size)))

    def last(self):
        """The step of the last complete checkpoint and its content by rank, or (0, None)."""
        steps = self.steps()
        return (steps[-1], [torch.load(self.path(steps[-1], r)) for r in {0, self.rank}]) if steps else (0, None)

    def save(self, step, content):
        temporary = f"{self.out}.part.{self.rank}"
        torch.save(content, temporary)
        os.replace(temporary, self.path(step, self.rank))

    def remove_before(self, step):
        """Called when all ranks have saved."""
        for path in glob.glob(f"{glob.escape(self.out)}.checkpoint.*.{self.rank}"):
            if int(path.split(".")[-2]) < step:
                os.remove(path)


class Run:
    def __init__(self, args):
        self.args = args
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.task = TASKS[args.task](args.synthetic)
        torch.set_num_threads(1)
        torch.manual_seed(args.seed)
        self.module = self.task.model()
        if "momentum=" in args.compress:  # the compressor's, which corrects it for what is sent late
            self.task.momentum = 0
        self.optimizers = self.task.optimizers(self.module, args.optimizer)
        self.hook = None
        if args.backend == "nzcl":
            import nzcl_torch
            self.nzcl = nzcl_torch
        # Without a backend Gloo is still needed to begin together and to add up what ranks measured.
        dist.init_process_group("nzcl" if args.backend == "nzcl" else "gloo")
        self.model = torch.nn.parallel.DistributedDataParallel(self.module)
        if args.backend == "nzcl":
            self.hook = self.nzcl.register_hook(self.model, args.compress, automatic=args.automatic)
        self.checkpoints = Checkpoints(args.out, self.rank, self.size)
        self.begin, saved = self.checkpoints.last()
        self.totals = {"seconds": 0.0, "cpu_seconds": 0.0, "all_bytes": 0, "nic_bytes": 0, "up_bytes": 0}
        if saved:
            self.resume(saved)

    def resume(self, saved):
        common, own = saved[0], saved[-1]
        # DistributedDataParallel arranges its buckets anew after its first step, so that one is thrown away.
        self.compute(self.begin)
        self.module.load_state_dict(common["model"])
        for optimizer, state in zip(self.optimizers, common["optimizers"]):
            optimizer.load_state_dict(state)
        self.totals = own["totals"]
        if self.hook:
            self.hook.load_state_dict(own["hook"])
        if self.rank == 0:
            os.truncate(self.args.out, common["length"])

    def save(self, step):
        content = {"totals": self.totals, "hook": self.hook.state_dict() if self.hook else None}
        if self.rank == 0:
            content |= {"model": self.module.state_dict(), "optimizers": [o.state_dict() for o in self.optimizers],
                        "length": os.path.getsize(self.args.out)}
        self.checkpoints.save(step, content)
        dist.barrier()
        self.checkpoints.remove_before(step)

    def counters(self):
        """What has been sent so far: through nzcl, and through the network interface of this rank's host if it has one of its own."""
        nic = 0
        if "TRAIN_INTERFACE" in os.environ:
            with open(f"/sys/class/net/{os.environ['TRAIN_INTERFACE']}/statistics/tx_bytes") as file:
                nic = int(file.read())
        sent = self.nzcl.statistics(self.model.process_group)["bytes_sent"] if self.hook else 0
        up = sum(b["up_bytes_total"] for b in self.hook.report()["buckets"]) if self.hook else 0
        return {"seconds": time.monotonic(), "cpu_seconds": time.process_time(), "all_bytes": sent, "nic_bytes": nic, "up_bytes": up}

    def say(self, line):
        if self.rank == 0:
            with open(self.args.out, "a") as file:
                file.write(json.dumps(line) + "\n")

    def compute(self, step):
        """The gradients of a step. Returns the loss of this rank's share."""
        inputs, labels = self.task.share(self.args.seed, step, self.rank, self.size)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        with self.model.no_sync() if self.args.backend == "none" else contextlib.nullcontext():
            loss = self.task.loss(self.model(inputs), labels)
            loss.backward()
        return loss.item()

    def set_rate(self, step):
        """Of the step alone, so that a run that goes on has the same rates as one that was never interrupted."""
        factor = 1.0 if self.args.schedule == "constant" else (1 + math.cos(math.pi * (step - 1) / self.args.steps)) / 2
        if self.args.rated:
            self.hook.set_rate(self.task.rates[self.args.optimizer] * factor)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.task.rates[self.args.optimizer] * factor

    def step(self, step):
        self.set_rate(step)
        loss = self.compute(step)
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def evaluate(self, step, train_loss):
        self.module.eval()
        sums = self.task.measure(self.module, self.rank, self.size)
        sums = torch.cat([sums, torch.tensor([train_loss, 1], dtype=torch.double)])
        self.module.train()
        dist.all_reduce(sums)
        loss, right, count, train, ranks = sums.tolist()
        self.say({"step": step, "loss": loss / count, "accuracy": right / count, "train_loss": train / ranks, **self.totals})

    def train(self):
        if self.begin == 0:
            if self.rank == 0:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(self.args.out)
            self.say({"settings": {k: v for k, v in vars(self.args).items() if k != "out"} | {"ranks": self.size}})
        dist.barrier()
        before, losses = self.counters(), []
        for step in range(self.begin + 1, self.args.steps + 1):
            losses.append(self.step(step))
            if step == self.args.warm_up:
                dist.barrier()
                before = self.counters()
            every = self.args.evaluate
            if step != self.args.steps and (every == 0 or step % every != 0):
                continue
            self.totals = {name: self.totals[name] + now - before[name] for name, now in self.counters().items()}
            if every:
                self.evaluate(step, sum(losses) / len(losses))
                self.save(step)
            losses = []
            if step == self.args.stop:
                return
            dist.barrier()
            before = self.counters()
        self.finish()

    def finish(self):
        # So that runs can be compared bit by bit.
        digest = sum(p.detach().double().mul(torch.arange(1, p.numel() + 1).view(p.shape)).sum().item() for p in self.module.parameters())
        self.say({"done": self.args.steps, "digest": digest.hex(), **self.totals, "hook": self.hook.report() if self.hook else None})
        dist.barrier()
        for path in glob.glob(f"{glob.escape(self.args.out)}.checkpoint.*.{self.rank}"):
            os.remove(path)


def main():
    run = Run(settings())
    run.train()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
