"""Hosts for scripts/faults: network namespaces on one bridge, whose links fail when they are told to."""

import os
import subprocess

NETWORK = "10.213.0"
# What a host's network does to the packets that come and go. Deleting the table ends it.
RULES = {"cut": "drop", "lose": "numgen random mod 100 < 10 drop", "reset": "meta l4proto tcp reject with tcp reset"}


def run(*command, text=None, wrong_is_fine=False):
    result = subprocess.run(command, input=text, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if result.returncode != 0 and not wrong_is_fine:
        raise RuntimeError(f"{' '.join(command)}: {result.stdout.strip()}")


class Hosts:
    """Makes so many hosts, and removes them at its end. It needs root, iproute2 and nftables."""

    def __init__(self, count):
        self.names = [f"nzcl-faults-{os.getpid()}-{i}" for i in range(count)]
        self.switch = f"nzcl-faults-{os.getpid()}-switch"
        try:
            run("ip", "netns", "add", self.switch)
            run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
            run("ip", "-n", self.switch, "link", "set", "bridge", "up")
            for i, name in enumerate(self.names):
                run("ip", "netns", "add", name)
                run("ip", "-n", self.switch, "link", "add", f"port{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
                run("ip", "-n", self.switch, "link", "set", f"port{i}", "master", "bridge", "up")
                run("ip", "-n", name, "address", "add", f"{self.address(i)}/24", "dev", "eth0")
                run("ip", "-n", name, "link", "set", "eth0", "up")
                run("ip", "-n", name, "link", "set", "lo", "up")
        except BaseException:
            self.remove()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()

    def remove(self):
        for name in [*self.names, self.switch]:
            run("ip", "netns", "delete", name, wrong_is_fine=True)

    @staticmethod
    def address(host):
        return f"{NETWORK}.{host + 1}"

    def command(self, host):
        """What a command line begins with, so that it runs on a host."""
        name = self.names[host]
        return ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name]

    def fail(self, host, how):
        """how: cut (packets vanish), lose (10 % of them do), reset (connections are reset), down (the link is)."""
        if how == "down":
            return run("ip", "-n", self.names[host], "link", "set", "eth0", "down")
        # A reset goes out itself, and only has to keep what comes in from arriving.
        hooks = {"input": "iifname"} if how == "reset" else {"input": "iifname", "output": "oifname"}
        chains = "".join(f'chain {hook} {{ type filter hook {hook} priority 0; {name} != "lo" {RULES[how]}; }}\n'
                         for hook, name in hooks.items())
        run("ip", "netns", "exec", self.names[host], "nft", "-f", "-", text=f"table inet fault {{\n{chains}}}\n")

    def mend(self, host):
        run("ip", "netns", "exec", self.names[host], "nft", "delete", "table", "inet", "fault", wrong_is_fine=True)
        run("ip", "-n", self.names[host], "link", "set", "eth0", "up")
