"""Hosts for scripts/faults: those of shaped-hosts.sh, whose networks fail when they are told to."""

import os
import subprocess

SHAPED_HOSTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shaped-hosts.sh")
# What a host's network does to the packets that come and go. Deleting the table ends it.
RULES = {"cut": "drop", "lose": "numgen random mod 100 < 10 drop", "reset": "meta l4proto tcp reject with tcp reset"}


def run(*command, text=None, wrong_is_fine=False):
    errors = subprocess.DEVNULL if wrong_is_fine else None
    result = subprocess.run(command, input=text, text=True, stdout=subprocess.DEVNULL, stderr=errors)
    if result.returncode != 0 and not wrong_is_fine:
        raise RuntimeError(f"{' '.join(command)} failed")


def shaped_hosts(function, *arguments):
    """Calls a function of shaped-hosts.sh."""
    run("bash", "-euc", '. "$0" && "$@"', SHAPED_HOSTS, function, *arguments)


class Hosts:
    """Makes so many hosts, and removes them at its end. It needs root, iproute2 and nftables."""

    def __init__(self, count):
        self.prefix = f"nzcl-faults-{os.getpid()}"
        try:
            shaped_hosts("make_hosts", self.prefix, str(count), "10gbit")
        except BaseException:
            self.remove()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()

    def remove(self):
        shaped_hosts("remove_hosts", self.prefix)

    @staticmethod
    def address(host):
        return f"10.88.0.{host + 1}"

    def name(self, host):
        return f"{self.prefix}-{host}"

    def command(self, host):
        """What a command line begins with, so that it runs on a host, as the process that is started."""
        name = self.name(host)
        return ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name]

    def fail(self, host, how):
        """how: cut (packets vanish), lose (10 % of them do), reset (connections are reset), down (the link is)."""
        if how == "down":
            return run("ip", "-n", self.name(host), "link", "set", "eth0", "down")
        # A reset goes out itself, and only has to keep what comes in from arriving.
        hooks = {"input": "iifname"} if how == "reset" else {"input": "iifname", "output": "oifname"}
        chains = "".join(f'chain {hook} {{ type filter hook {hook} priority 0; {name} != "lo" {RULES[how]}; }}\n'
                         for hook, name in hooks.items())
        run("ip", "netns", "exec", self.name(host), "nft", "-f", "-", text=f"table inet fault {{\n{chains}}}\n")

    def mend(self, host):
        run("ip", "netns", "exec", self.name(host), "nft", "delete", "table", "inet", "fault", wrong_is_fine=True)
        run("ip", "-n", self.name(host), "link", "set", "eth0", "up")
