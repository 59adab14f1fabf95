"""A job for `gpudiag run` that writes down what reaches it: `python run_job.py FILE [seconds]`."""

import os
import signal
import sys
import time

COUNTED = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGTERM", "SIGWINCH")


def main() -> None:
    """Say that it is ready, count signals until a `stop` file is there, and leave the counts in FILE."""
    path = sys.argv[1]
    counts = dict.fromkeys(COUNTED, 0)

    def count(number: int, _: object) -> None:
        counts[signal.Signals(number).name] += 1
        # Not by print, which must not be entered again while it writes a tick.
        os.write(1, f"got {signal.Signals(number).name}\n".encode())

    for name in COUNTED:
        signal.signal(getattr(signal, name), count)
    print(f"ready {os.getpid()} tty={os.isatty(0)}{os.isatty(1)}{os.isatty(2)}", flush=True)
    until = time.monotonic() + 240
    number = 0
    while not os.path.exists(f"{path}.stop") and time.monotonic() < until:
        time.sleep(0.02)
        number += 1
        if number % 10 == 0:
            print("tick", number, flush=True)
    with open(path, "w") as file:
        file.write(" ".join(f"{name}={times}" for name, times in counts.items() if times))
    print("over", flush=True)


if __name__ == "__main__":
    main()
