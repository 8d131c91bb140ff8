"""Two ranks that use nzcl from Python, through ctypes. Each prints what nzcl has changed in its process, and SIGINT must still be a
KeyboardInterrupt.

usage: process_state.py LIBRARY
"""

import ctypes
import os
import signal
import sys
import time

ELEMENTS = 10000
FLOAT32, SUM = 0, 0


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def handlers():
    return {s: signal.getsignal(s) for s in signal.valid_signals()}


def masks():
    """Which signals the thread blocks, and the process ignores and catches. 32 and 33 are left out: the C library uses them."""
    found = {}
    with open("/proc/self/status", encoding="utf-8") as status:
        for line in status:
            name, value = line.split(":", 1)
            if name in ("SigBlk", "SigIgn", "SigCgt"):
                found[name] = hex(int(value, 16) & ~(3 << 31))
    return found


def environment():
    """The variables as the C library sees them."""
    variables = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    found = []
    while variables[len(found)] is not None:
        found.append(variables[len(found)])
    return found


def state():
    return {"handlers": handlers(), "masks": masks(), "environment": environment(), "folder": os.getcwd()}


def changes(before, when):
    now = state()
    return [f"{when}: other {name}" for name in before if now[name] != before[name]]


def call(nzcl, name, *arguments):
    if getattr(nzcl, name)(*arguments) != 0:
        raise RuntimeError(f"{name}: {nzcl.nzclGetLastError().decode()}")


def is_interrupted():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    except KeyboardInterrupt:
        return True
    return False


def use(nzcl, unique_id, rank, before):
    """Returns what went wrong."""
    comm, buffer, work = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    data = (ctypes.c_float * ELEMENTS)(*([1.0] * ELEMENTS))
    call(nzcl, "nzclCommInitRank", ctypes.byref(comm), 2, unique_id, rank)
    call(nzcl, "nzclCommRegister", comm, data, ctypes.c_size_t(4 * ELEMENTS), ctypes.byref(buffer))
    call(nzcl, "nzclAllReduce", data, data, ctypes.c_uint64(ELEMENTS), FLOAT32, SUM, comm, ctypes.byref(work))
    call(nzcl, "nzclWorkWait", work, ctypes.c_int64(-1))
    wrong = [] if data[ELEMENTS - 1] == 2 else [f"the sum is {data[ELEMENTS - 1]}"]
    wrong += changes(before, "in use")
    wrong += [] if is_interrupted() else ["SIGINT is no KeyboardInterrupt"]
    call(nzcl, "nzclWorkFree", work)
    call(nzcl, "nzclBarrier", comm)
    call(nzcl, "nzclCommDeregister", comm, buffer)
    call(nzcl, "nzclCommDestroy", comm)
    return wrong + changes(before, "after use")


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it starts in the background ignore it
    before = state()
    nzcl = ctypes.CDLL(sys.argv[1])
    nzcl.nzclGetLastError.restype = ctypes.c_char_p
    wrong = changes(before, "loaded")
    unique_id = UniqueId()
    call(nzcl, "nzclGetUniqueId", ctypes.byref(unique_id))
    child = os.fork()
    rank = 1 if child == 0 else 0
    wrong += use(nzcl, unique_id, rank, before)
    for line in wrong:
        print(f"rank {rank}: {line}")
    ended_well = rank == 1 or os.waitpid(child, 0)[1] == 0
    sys.exit(0 if ended_well and not wrong else 1)


main()
