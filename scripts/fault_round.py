"""One round of scripts/faults: starts the ranks, does to them what the plan says, and checks what became of them."""

import os
import random
import re
import resource
import signal
import socket
import subprocess
import tempfile
import time

import fault_plans

SHM = "/dev/shm"
TIMEOUT_S, BOOTSTRAP_S = 2, 12  # of the ranks; a rank that is stopped for longer is left out
WELL, REFUSED, WRONG = 0, 3, 4  # how a rank ends: with right sums, with an error of nzcl's, with a wrong sum


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Rank:
    """A process. Its output goes to a file of its name in the folder."""

    def __init__(self, round_, number, arguments, name=None):
        self.path = os.path.join(round_.folder, name or f"rank{number}")
        hosts = round_.args.hosts
        env = {k: v for k, v in os.environ.items() if not k.startswith("NZCL_")}
        env.update(RANK=str(number), WORLD_SIZE=str(round_.size), LOCAL_RANK="0" if hosts else str(number),
                   MASTER_ADDR=hosts.address(0) if hosts else "127.0.0.1", MASTER_PORT=str(round_.port),
                   NZCL_SECRET="secret-of-the-faults", NZCL_TRANSPORT=round_.transport, NZCL_TIMEOUT_S=str(TIMEOUT_S),
                   NZCL_BOOTSTRAP_TIMEOUT_S=str(BOOTSTRAP_S), NZCL_CLOSE_TIMEOUT_S=str(2 * TIMEOUT_S))
        if round_.plan.scribbler >= 0:
            env["NZCL_CHECKSUM"] = "1"  # otherwise a sum may be of what was scribbled
        if round_.plan.aggregators:
            env.update(NZCL_AGGREGATORS=str(round_.plan.aggregators), NZCL_ON_AGGREGATOR_LOSS=round_.on_loss)
        if round_.plan.clocks:
            self.set_clock(0)
            env.update(LD_PRELOAD=fault_plans.FAKETIME[0], FAKETIME_TIMESTAMP_FILE=self.path + ".clock", FAKETIME_NO_CACHE="1",
                       DONT_FAKE_MONOTONIC="1")
        with open(self.path, "w") as out:
            # Whoever may pin any amount of memory is not bound by a limit.
            bound = ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"] if round_.transport == "ibverbs" and os.geteuid() == 0 else []
            self.process = subprocess.Popen([*(hosts.command(number) if hosts else []), *bound, *round_.command(number), *arguments],
                                            env=env, stdout=out, stderr=subprocess.STDOUT)

    def text(self):
        with open(self.path) as f:
            return f.read()

    def signal(self, which):
        if self.process.poll() is None:
            self.process.send_signal(which)

    def set_clock(self, seconds):
        with open(self.path + ".clock.new", "w") as f:
            f.write(f"{seconds:+d}\n")
        os.rename(self.path + ".clock.new", self.path + ".clock")

    def limit(self, which, now):
        """Lets the process have no more than it has now, which is more than it ever gives back."""
        try:
            resource.prlimit(self.process.pid, which, (now(), now()))
        except (OSError, ProcessLookupError):
            pass  # it has ended

    def no_more_descriptors(self):
        self.limit(resource.RLIMIT_NOFILE, lambda: max(int(n) for n in os.listdir(f"/proc/{self.process.pid}/fd")) + 1)

    def no_more_memory(self):
        def bytes_now():
            with open(f"/proc/{self.process.pid}/statm") as f:
                return int(f.read().split()[0]) * resource.getpagesize()
        self.limit(resource.RLIMIT_AS, bytes_now)

    def no_more_pinned_memory(self):
        self.limit(resource.RLIMIT_MEMLOCK, lambda: 0)


class Round:
    def __init__(self, args, seed):
        rng = random.Random(seed)
        self.args = args
        self.size = rng.choice(args.ranks)
        self.transport = "tcp" if args.hosts else rng.choice(args.transports)
        kinds = [fault_plans.network] if args.hosts else [fault_plans.KINDS[kind] for kind in args.kinds]
        self.plan = rng.choice(kinds)(rng, self.size)
        self.busy = rng.random() < 0.5
        self.what = f"seed {seed}: {self.size} ranks over {self.transport}{', busy' if self.busy else ''}, {self.plan.kind}"
        self.on_loss = rng.choice(["reassign", "preserve"])
        self.port = free_port()
        self.arguments = ["--rounds", str(self.plan.rounds), *(["--busy"] if self.busy and not self.plan.aggregators else []),
                          *(["--grow", str(self.size)] if self.plan.grow else [])]
        self.ranks, self.folder = [], None
        self.killed = {}  # when, by number
        self.stopped, self.cut, self.lacking = set(), set(), set()

    def run(self):
        """Returns what is wrong, and the seconds from the last death to the next sum of each rank."""
        before = set(os.listdir(SHM))
        with tempfile.TemporaryDirectory() as self.folder:
            try:
                begin = self.begin()
                for moment, thing, number in sorted(self.plan.events):
                    time.sleep(max(0, begin + moment - time.monotonic()))
                    self.do(thing, number)
                wrong = self.end() or [w for i in range(len(self.ranks)) if (w := self.check(i))]
                took = self.took()
            except TimeoutError as e:
                wrong, took = [str(e)], []
            finally:
                self.clean()
        return wrong or self.check_left(before), took

    def command(self, number):
        """The program of a rank, or of an aggregator, which is numbered behind these. Both are built beside it."""
        if not self.plan.aggregators:
            return [self.args.program, "--shrink"]
        folder = os.path.dirname(os.path.abspath(self.args.program))
        if number < self.size:
            return [os.path.join(folder, "process_in_flight"), "--count", "10000"]
        return [os.path.join(folder, "../../bin/nzcl_aggregator"), "--index", str(number - self.size)]

    def begin(self):
        """Starts the ranks, and returns the moment from which those of the plan count."""
        start = time.monotonic()
        for i in range(self.size):
            self.ranks.append(Rank(self, i, [*self.arguments, *(["--scribble"] if i == self.plan.scribbler else [])]))
        for i in range(self.plan.aggregators):
            self.ranks.append(Rank(self, self.size + i, []))
        if self.plan.from_start:
            return start
        while not all("joined" in rank.text() for rank in self.ranks[:self.size]):
            if time.monotonic() > start + self.args.patience:
                raise TimeoutError("not all joined: " + " | ".join(rank.text() for rank in self.ranks))
            time.sleep(0.02)
        return time.monotonic()

    def do(self, thing, number):
        if thing == "start":  # as the last rank, since the others have numbers below
            self.ranks.append(Rank(self, self.size - 1, ["--rounds", "10", *(["--busy"] if self.busy else [])], "new"))
            return
        rank = self.ranks[number]
        if thing == "kill":
            if rank.process.poll() is None:
                rank.signal(signal.SIGKILL)
                self.killed[number] = time.monotonic()
        elif thing == "stop":
            rank.signal(signal.SIGSTOP)
            self.stopped.add(number)
        elif thing == "go on":
            rank.signal(signal.SIGCONT)
        elif thing == "scribble":
            rank.signal(signal.SIGUSR1)
        elif thing.startswith("clock"):
            rank.set_clock(fault_plans.DAY_S if thing == "clock on" else -fault_plans.DAY_S)
        elif thing == "no more /dev/shm":
            self.fill_shm()
        elif thing.startswith("no more"):
            self.lacking.add(number)
            getattr(rank, thing.replace(" ", "_"))()
        elif thing == "mend":
            self.args.hosts.mend(number)
        else:
            self.args.hosts.fail(number, thing)
            self.cut.add(number)

    def fill_shm(self):
        """Only done to a /dev/shm that no other process has: see scripts/faults."""
        with open(os.path.join(SHM, "full"), "wb") as f:
            try:
                while True:
                    f.write(bytes(1 << 20))
                    f.flush()
            except OSError:
                pass

    def end(self):
        """Waits for all ranks."""
        deadline = time.monotonic() + self.args.patience
        for i in [i for i in range(len(self.ranks)) if i not in self.stopped] + sorted(self.stopped):
            if i in self.stopped:
                self.ranks[i].signal(signal.SIGCONT)
            try:
                self.ranks[i].process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return [f"rank {i} does not end: {self.ranks[i].text()}"]
        return []

    def check(self, number):
        """Returns what is wrong with a rank that has ended, or ""."""
        text, status = self.ranks[number].text(), self.ranks[number].process.returncode
        ended = f"rank {number} ended with {status}: {text}"
        if number == self.plan.scribbler:  # it may have spoiled itself
            return ""
        if number in self.killed:
            return "" if status in (-signal.SIGKILL, WELL, REFUSED) else ended
        if self.plan.aggregators:
            return self.check_with_aggregators(number)
        if number == self.size:  # it has come back, and may have been left alone
            return "" if status in (WELL, REFUSED) else ended
        if number in self.lacking and status == -signal.SIGABRT and "bad_alloc" in text:  # none of its threads could go on
            return ""
        if number in self.stopped | self.cut | self.lacking:  # it may have ended before, or have been left out, or gone on in time
            return "" if status in (WELL, REFUSED) else ended
        # Those who are stopped live, and may be the larger part.
        rest = [i for i in range(self.size) if i not in self.killed and i not in self.stopped | self.cut]
        aside = self.stopped | self.cut
        few = len(rest) < len(aside) or (len(rest) == len(aside) and min(rest) > min(aside))
        if few and status == REFUSED and "Only the larger part goes on" in text:
            return ""
        if self.may_refuse() and status == REFUSED and re.search(self.may_refuse(), text):
            return ""
        sizes = re.findall(r"^rank \d+ of (\d+): ok$", text, re.M)
        if status != WELL or not sizes:
            return ended
        if self.plan.kind == "come back" and int(sizes[-1]) != self.size:
            return "without the new rank, " + ended
        gone = len([i for i in self.killed if i < self.size]) + len((aside | self.lacking) - set(self.killed))
        # Some may have ended well before the last death.
        early = [i for i in range(self.size) if i != number and self.job_of(i) > self.size - gone]
        if int(sizes[0]) < self.size - gone - len(early):
            return f"in a job of {sizes[0]}, " + ended
        return ""

    def check_with_aggregators(self, number):
        """Without an aggregator the ranks end well. Without a rank they fail, unless they have ended before."""
        text, status = self.ranks[number].text(), self.ranks[number].process.returncode
        ranks = "|".join(str(i) for i in self.killed if i < self.size)
        named = ranks and status == REFUSED and re.search(rf"do not go on without: .*\brank ({ranks})\b|^rank ({ranks})\b", text, re.M)
        if number >= self.size or named or (status == WELL and re.search(r"^rank \d+ of \d+: ok$", text, re.M)):
            return ""
        return f"rank {number} ended with {status}: {text}"

    def job_of(self, number):
        """The size of the job in which a rank has ended well, or 0."""
        sizes = re.findall(r"^rank \d+ of (\d+): ok$", self.ranks[number].text(), re.M)
        return int(sizes[0]) if sizes else 0

    def may_refuse(self):
        """What the others may say and end, or "". A job whose ranks have not all come cannot go on without one."""
        if self.plan.from_start:
            names = "|".join(str(i) for i in (*self.killed, *self.stopped, *self.lacking))
            return rf"\brank ({names})\b|\bpeer(\(s\))? (\d+, )*({names})\b|/dev/shm"
        return "/dev/shm" if self.plan.kind.startswith("no more /dev/shm") else ""

    def took(self):
        if not self.killed or self.stopped or self.cut or self.lacking or self.plan.grow or self.plan.from_start or self.plan.scribbler >= 0:
            return []
        last = max(self.killed.values())
        found = [re.findall(r"summed again at ([\d.]+)", rank.text())[-1:] for rank in self.ranks]
        return [t for times in found for t in [float(time) - last for time in times] if t > 0]

    def clean(self):
        for rank in self.ranks:
            rank.signal(signal.SIGKILL)
            rank.process.wait()
        for number in self.cut:
            self.args.hosts.mend(number)
        if os.path.exists(os.path.join(SHM, "full")) and self.plan.kind.startswith("no more /dev/shm"):
            os.remove(os.path.join(SHM, "full"))

    def check_left(self, before):
        """Names of nzcl's in /dev/shm begin with its name, and most say whose they are; other jobs of this host have the
        others while they connect. A rank that is killed while it connects leaves one, which the next job of its user removes."""
        pids = {str(rank.process.pid) for rank in self.ranks}

        def of_these(name):
            owner = re.match(r"nzcl-\d+-(\d+)-", name)
            return name.startswith("nzcl") and (owner is None or owner[1] in pids)

        may_leave = len(self.killed)
        deadline = time.monotonic() + 3
        while len(left := sorted(name for name in set(os.listdir(SHM)) - before if of_these(name))) > may_leave:
            if time.monotonic() > deadline:
                return [f"left in {SHM}: {', '.join(left)}"]
            time.sleep(0.1)
        return []
