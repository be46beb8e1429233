# SPDX-License-Identifier: Apache-2.0
"""Runs the checks of a file, each group in a process of its own, and prints PASS or FAIL for each with what it found.

A check that ends its process (a fault on the GPU ends everything that the process has there) fails, and the others go
on in a new one.
"""
import argparse
import gc
import os
import subprocess
import sys
import threading
import time
import traceback

MIB = 1 << 20
GIB = 1 << 30


class Failed(Exception):
    """A check did not hold."""


def must(holds, message):
    if not holds:
        raise Failed(message)


def raises(kind, function, *arguments, **options):
    """The exception of that kind which the call raises."""
    try:
        function(*arguments, **options)
    except kind as error:
        return error
    raise Failed(f"no {kind.__name__} was raised")


def free_memory():
    """Bytes that the driver has to give on the current device."""
    import torch

    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def _child(checks, names):
    for name in names:
        print(f"BEGIN {name}", flush=True)
        begin = time.monotonic()
        lost = False
        try:
            result, words = "PASS", checks[name]() or ""
        except Failed as error:
            result, words = "FAIL", str(error)
        except Exception as error:  # pylint: disable=broad-exception-caught # a row for each, whatever comes
            traceback.print_exc()
            result, words = "FAIL", f"{type(error).__name__}: {error}"
            lost = "CUDA error" in words
        print(f"{result} {name}\t{time.monotonic() - begin:.1f} s  {' '.join(str(words).split())[:400]}", flush=True)
        if lost:
            os._exit(3)  # nothing works in this process any more
        gc.collect()


def run(file, group, checks, environment=(), seconds=120):
    """Runs checks (names and functions) of a group. Returns how many failed. The file calls main() in each of its
    processes.
    """
    left, failed = list(checks), 0
    deadline = time.monotonic() + seconds
    while left:
        command = [sys.executable, os.path.abspath(file), "--group", group, "--only", ",".join(left)]
        before, current = len(left), None
        with subprocess.Popen(command, env={**os.environ, **dict(environment)}, stdout=subprocess.PIPE,
                              text=True) as child:
            watch = threading.Timer(max(5, deadline - time.monotonic()), child.kill)
            watch.start()
            for line in child.stdout:
                word, _, rest = line.rstrip("\n").partition(" ")
                if word == "BEGIN":
                    current = rest
                elif word in ("PASS", "FAIL") and "\t" in rest:
                    name, words = rest.split("\t", 1)
                    print(f"{word}  {group}: {name:<28} {words}", flush=True)
                    failed += word == "FAIL"
                    left.remove(name)
                    current = None
                else:
                    print(f"      {line}", end="", flush=True)
        watch.cancel()
        if child.returncode == 0 and not left:
            break
        why = f"the process ended with {child.returncode}" + (", no time was left"
                                                              if time.monotonic() >= deadline else "")
        if current is None and len(left) == before and left:
            current = left[0]  # it did not even begin
        if current is not None:
            print(f"FAIL  {group}: {current:<28} {why}", flush=True)
            failed += 1
            left.remove(current)
        elif not left and child.returncode != 3:
            print(f"FAIL  {group}: {'the end of the process':<28} {why}", flush=True)
            failed += 1
    return failed


def main(file, groups, run_all):
    """groups: functions that give the checks of a group. run_all(only): runs the groups, returns how many checks
    failed.
    """
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--group", choices=sorted(groups), help="only this group")
    parser.add_argument("--only", help="only these checks, by commas; with --group: in this process")
    arguments = parser.parse_args()
    only = arguments.only.split(",") if arguments.only else None
    if arguments.group and only:
        _child(groups[arguments.group](), only)
        return 0
    failed = run_all(arguments.group, only)
    print(f"{os.path.basename(file)}: {'all checks passed' if not failed else f'{failed} failed'}", flush=True)
    return 1 if failed else 0
