"""What scripts/faults does to the ranks of a round. A plan follows from the seed of its round alone."""

import dataclasses
import glob

FAKETIME = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
DAY_S = 86400


@dataclasses.dataclass
class Plan:
    kind: str
    events: list  # (seconds, what is done, to which rank); the seconds count from when all have joined
    from_start: bool = False  # they count from when the processes were started
    rounds: int = 1000000  # of sums, which is: until a rank dies
    grow: bool = False  # the ranks wait for one that comes back
    scribbler: int = -1  # the rank that writes random bytes where its peers read
    clocks: bool = False  # the ranks have clocks that can be set
    aggregators: int = 0  # dedicated ones, which are numbered behind the ranks, and without which these go on


def die(rng, ranks):
    one, two = rng.sample(range(ranks), 2)
    moment, pause = rng.uniform(0, 0.4), rng.uniform(0, 0.1)
    how = rng.choice(["one", "one", "two", "two at once"])
    events = [(moment, "kill", one)]
    if how != "one":
        events.append((moment + (pause if how == "two" else 0), "kill", two))
    return Plan(f"kill {how}", events)


def stop(rng, ranks):
    one, two = rng.sample(range(ranks), 2)
    moment = rng.uniform(0, 0.4)
    how = rng.choice(["stop", "stop briefly", "stop and kill"])
    events = [(moment, "stop", one)]
    if how == "stop briefly":
        events += [(moment + 0.3, "go on", one), (moment + 0.6, "kill", two)]
    elif how == "stop and kill":
        events.append((moment + rng.uniform(0, 0.1), "kill", two))
    return Plan(how, events)


def come_back(rng, ranks):
    one, two = rng.sample(range(ranks), 2)
    moment = rng.uniform(0, 0.4)
    start = moment + rng.uniform(0, 0.3)
    how = rng.choice(["", ", kill an old one", ", kill the new one"])
    events = [(moment, "kill", one), (start, "start", ranks)]
    if how == ", kill an old one":
        events.append((moment + rng.uniform(0, 0.8), "kill", two))
    elif how == ", kill the new one":
        events.append((start + rng.uniform(0, 0.5), "kill", ranks))
    return Plan("come back" + how, events, grow=True)


def join(rng, ranks):
    one, two = rng.sample(range(ranks), 2)
    moment = rng.uniform(0, 0.3)
    if rng.random() < 0.5:
        return Plan("kill while they join", [(moment, "kill", one)], from_start=True)
    return Plan("stop briefly while they join", [(moment, "stop", one), (moment + 0.5, "go on", one), (moment + 2, "kill", two)],
                from_start=True)


def close(rng, ranks):
    return Plan("kill while they end", [(rng.uniform(0, 0.3), "kill", rng.randrange(ranks))], rounds=rng.randrange(1, 30))


def lack(rng, ranks):
    """One rank can open, allocate or pin nothing more, or nobody can put anything into /dev/shm; and one dies. Only ibverbs pins memory."""
    one, two = rng.sample(range(ranks), 2)
    moment = rng.uniform(0, 0.4)
    what = rng.choice(["descriptors", "memory", "pinned memory", "/dev/shm"])
    return Plan(f"no more {what}, and kill", [(moment, f"no more {what}", one), (moment + rng.uniform(0, 0.2), "kill", two)],
                from_start=what == "/dev/shm" and rng.random() < 0.5)


def scribble(rng, ranks):
    one, two = rng.sample(range(ranks), 2)
    moment = rng.uniform(0, 0.4)
    return Plan("scribble", [(moment, "scribble", one), (moment + 1, "kill", one), (moment + 1.5, "kill", two)], scribbler=one)


def aggregator(rng, ranks):
    moment, pause = rng.uniform(0, 0.6), rng.uniform(0, 0.3)
    how = rng.choice(["one", "two", "two at once", "one and a rank"])
    events = [(moment, "kill", ranks)]
    if how == "one and a rank":
        events.append((moment + pause, "kill", rng.randrange(ranks)))
    elif how != "one":
        events.append((moment + (pause if how == "two" else 0), "kill", ranks + 1))
    return Plan(f"kill aggregators: {how}", events, rounds=40, aggregators=2)


def clock(rng, ranks):
    one, two = rng.sample(range(ranks), 2)
    moment = rng.uniform(0, 0.4)
    way = rng.choice(["on", "back"])
    return Plan(f"set a clock {way}", [(moment, f"clock {way}", one), (moment + rng.uniform(0, 0.5), "kill", two)], clocks=True)


def network(rng, ranks):
    """For ranks with hosts of their own: the network of one fails."""
    how = rng.choice(["cut", "cut", "down", "reset", "lose"])
    lasts = "for good" if how in ("cut", "down") and rng.random() < 0.5 else "briefly"
    one, two = rng.sample(range(ranks), 2)
    moment = rng.uniform(0, 0.4)
    events = [(moment, how, one)]
    if lasts == "briefly":
        events.append((moment + rng.uniform(0.05, 3), "mend", one))
    kind = f"{how} {lasts}"
    if rng.random() < 0.3:
        kind += ", and kill"
        events.append((moment + rng.uniform(0, 1), "kill", two))
    elif lasts == "briefly":  # which may have gone by without a trace, and the ranks end after a death only
        events.append((moment + 4, "kill", two))
    return Plan(kind, events)


# Each draws the plan of a round for so many ranks. By the names that --kinds takes; all are as frequent.
KINDS = {"die": die, "stop": stop, "return": come_back, "join": join, "end": close, "lack": lack, "scribble": scribble, "clock": clock,
         "aggregator": aggregator}
