# SPDX-License-Identifier: Apache-2.0
"""gmm.torch on a GPU: the allocator with its hooks, pools with a tag, RFC-0023's managed tensors, and training in a
quota.

Needs PyTorch, and gmm on PYTHONPATH. Prints a line `ok` or `not ok` for each check, in the Test Anything Protocol. Each
group runs in a process of its own, as PyTorch takes one allocator in a process; what a process that ended did not reach
is `not ok`. Usage: torch_check.py [--group use|pool|uvm|quota]; the group quota, which runs
examples/python/torch_larger_than_quota.py, only when it is named
"""
import argparse
import gc
import os
import pathlib
import subprocess
import sys
import threading
import time
import traceback
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402
from torch_check_cuda import POOL, USE
from torch_check_uvm import QUOTA, UVM

GROUPS = {"use": USE, "pool": POOL, "uvm": UVM, "quota": QUOTA}
SECONDS = {"use": 40, "pool": 40, "uvm": 70, "quota": 60}


def child(group):
    warnings.simplefilter("ignore")
    for check in GROUPS[group]:
        begin = time.monotonic()
        try:
            words, good = check() or "", True
        except Exception as error:  # pylint: disable=broad-exception-caught # a line for each, whatever comes
            for line in traceback.format_exc().splitlines()[-8:]:
                print(f"# {line}")
            words, good = f"{type(error).__name__}: {error}", False
        words = " ".join(str(words).split()).replace("#", "")[:300]
        print(f"RESULT {'ok' if good else 'not ok'} {check.__name__} ({time.monotonic() - begin:.1f} s) {words}",
              flush=True)
        gc.collect()
        if not good and "CUDA error" in words:
            break  # nothing works in this process any more


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", choices=GROUPS)
    parser.add_argument("--child", choices=GROUPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child)
        return 0
    for group in [arguments.group] if arguments.group else ("use", "pool", "uvm"):
        missing = [check.__name__ for check in GROUPS[group]]
        with subprocess.Popen([sys.executable, os.path.abspath(__file__), "--child", group], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True) as process:
            watch = threading.Timer(SECONDS[group], process.kill)
            watch.start()
            for line in process.stdout:
                if not line.startswith("RESULT "):
                    print(line if line.startswith("# ") else f"# {line}", end="", flush=True)
                    continue
                result, name = line[7:].split(" ", 2)[:2] if line.startswith("RESULT ok") else ("not ok",
                                                                                                line.split(" ", 4)[3])
                missing.remove(name)
                rest = line.rstrip("\n").split(f" {name} ", 1)[1]
                tap.check(result == "ok", f"torch {group}: {name} {rest}")
        watch.cancel()
        for name in missing:
            tap.check(False, f"torch {group}: {name} not reached: the process ended with {process.returncode}")
        if not missing and process.returncode != 0:
            tap.check(False, f"torch {group}: the end of the process: {process.returncode}")
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())
