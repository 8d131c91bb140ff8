"""PyTorch's own tests of process groups, with groups of nzcl where they make groups of Gloo: pytorch_suite.py FOLDER [TEST...].

FOLDER has test_c10d_gloo.py and its neighbours, which the script pytorch_suite fetches. A name is MODULE.CLASS.TEST; without any, all tests are run
but those of which PYTORCH_SUITE.md says why they do not apply. A line says of each how it ended. The tests' own processes import this file too:
what is at its top is for them as well.
"""

import os
import re
import sys
import types
import unittest

# PyTorch's test classes derive from expecttest's, which adds a comparison that none of these tests uses.
if "expecttest" not in sys.modules:
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase
    sys.modules["expecttest"].ACCEPT = False

import torch.distributed
import torch.nn.parallel._replicated_tensor_ddp_utils
import nzcl_torch

MODULES = ("test_c10d_gloo", "test_c10d_common", "test_c10d_spawn_gloo", "test_c10d_object_collectives")
Gloo = torch.distributed.ProcessGroupGloo


class Nzcl:
    """Stands where Gloo's class does. Its objects are nzcl's groups."""

    _Options = Gloo._Options
    create_device = Gloo.create_device
    create_default_device = Gloo.create_default_device

    def __new__(cls, store, rank, size, options=None, timeout=None):
        import datetime
        timeout = timeout or getattr(options, "_timeout", None) or options or datetime.timedelta(minutes=1)
        return nzcl_torch._C.create(store=store, rank=rank, size=size, timeout=timeout)


# The tests' processes switch on a form of DistributedDataParallel that PyTorch 1.13 cannot import under Python 3.11.
torch.nn.parallel._replicated_tensor_ddp_utils._set_ddp_with_replicated_tensor = lambda value: None
torch.distributed.ProcessGroupGloo = Nzcl
torch.distributed.distributed_c10d.ProcessGroupGloo = Nzcl


def left_out():
    """The tests in the table of PYTORCH_SUITE.md."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "PYTORCH_SUITE.md")) as page:
        return {line.split("`")[1] for line in page if line.startswith("| `") and ".test_" in line}


def all_tests():
    """But those that need a GPU, which would start their processes to find out that there is none."""
    import importlib
    found = {}
    for module in map(importlib.import_module, MODULES):
        for case in vars(module).values():
            if isinstance(case, type) and issubclass(case, unittest.TestCase) and case.__module__ == module.__name__:
                for function in vars(case).values():  # some are skipped because they are not steady with Gloo
                    vars(function).pop("__unittest_skip__", None) if isinstance(function, types.FunctionType) else None
                found |= {test.id(): test for test in unittest.defaultTestLoader.loadTestsFromTestCase(case)}
    return {name: test for name, test in found.items() if not re.search("gpu|cuda|nccl", name.lower())}


class Endings(unittest.TextTestResult):
    """Says of each test how it ended, as it ends."""

    def note(self, test, how):
        print(f"{how}: {test.id()}", flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test, "passed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, "skipped")

    def addError(self, test, error):
        super().addError(test, error)
        self.note(test, "failed")

    addFailure = addError


def main():
    sys.path.insert(0, os.path.abspath(sys.argv[1]))
    tests, without = all_tests(), left_out()
    if without - set(tests):
        sys.exit(f"error: PYTORCH_SUITE.md names tests that do not exist: {sorted(without - set(tests))}")
    names = sys.argv[2:] or [name for name in tests if name not in without]
    result = unittest.TextTestRunner(resultclass=Endings, verbosity=0).run(unittest.TestSuite(tests[name] for name in names))
    sys.exit(0 if result.wasSuccessful() else 1)


if __name__ == "__main__":
    main()
