# SPDX-License-Identifier: Apache-2.0
"""An engine is killed in the middle of a request, and its successor answers with the weights that stayed.

    engine.py           starts an engine, kills it by SIGKILL during its second request, and starts another one
    engine.py --serve   an engine: answers the numbers that come as lines
"""
import array
import os
import signal
import subprocess
import sys
import time

import gmm

NAME = f"keeper-example-{os.getuid()}"
SIZE = 1000


def load():
    """Stands for minutes of reading and converting. Arrays of NumPy, PyTorch or CuPy would do as well."""
    time.sleep(1)
    return {"layer": array.array("f", range(SIZE)), "bias": array.array("f", [1])}


def numbers(stored):
    """A copy for the CPU, as this example runs no kernel."""
    copied = array.array("f", bytes(stored.nbytes))
    stored.copy_to(copied)
    return copied


def serve():
    weights = gmm.keep(NAME, load)
    layer, bias = numbers(weights["layer"]), numbers(weights["bias"])[0]
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        print(sum(layer) * float(line) + bias, flush=True)


class Engine:
    """A process that serves, after its start."""

    def __init__(self):
        began = time.monotonic()
        self.process = subprocess.Popen([sys.executable, __file__, "--serve"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"
        self.seconds = time.monotonic() - began

    def ask(self, request):
        """The answer; empty when the engine died."""
        self.process.stdin.write(f"{request}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


def main():
    try:
        first = Engine()
        print(f"the first engine is ready after {first.seconds:.1f} s; 3 gives {first.ask(3)}")
        assert first.ask("die") == ""
        assert first.process.wait() == -signal.SIGKILL
        second = Engine()  # it does not load
        answer = second.ask(3)
        print(f"the first one was killed; the second one is ready after {second.seconds:.1f} s, and 3 gives {answer}")
        assert float(answer) == sum(range(SIZE)) * 3 + 1
        second.process.communicate()
    finally:
        with gmm.Context() as context:
            context.unpublish(NAME)  # else the weights stay until the machine's next start


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve()
    else:
        main()
