"""Probes for the guard's tests: each does one thing that a real probe may do."""

import os
import signal
import sys
import threading
import time


def answer(emit, number):
    emit(("answer", number, {"pid": os.getpid()}))


def fail(emit):
    emit(("answer", 1))
    raise ValueError("no such reading")


def crash(emit):
    emit(("answer", 1))
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGSEGV)


def hang(emit):
    emit(("pid", os.getpid()))
    time.sleep(600)


def hang_in_a_thread(emit):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    emit(("answer", 1))


def list_descriptors(emit):
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the one that lists the directory
            continue
    emit(("descriptors", found))


def emit_from_threads(emit, threads, messages, size):
    def work(number):
        for at in range(messages):
            emit((number, at, "x" * size))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def describe_interpreter(emit):
    emit(("interpreter", sys.argv, os.getppid()))


def exhaust_memory(emit):
    raise MemoryError
