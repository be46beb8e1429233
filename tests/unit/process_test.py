# SPDX-License-Identifier: Apache-2.0
"""gmm info --process, with real processes on the fake driver and a fake NVML that sees them.

Usage: process_test.py GMM HOLDER FAKE_CUDA FAKE_NVML      the folders of the two libraries
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

GMM, HOLDER, FAKE_CUDA, FAKE_NVML = sys.argv[1:]
MIB = 1 << 20
CONTEXT = 256.0  # ledger.h


def environment(ledger):
    return dict(os.environ, LD_LIBRARY_PATH=f"{FAKE_CUDA}:{FAKE_NVML}", FAKE_CUDA_LEDGER=str(ledger),
                FAKE_CUDA_DEVICES="2", FAKE_CUDA_GRAPH_MEMORY=str(3 * MIB), GMM_BACKEND="cuda")


def info(ledger, number, **more):
    done = subprocess.run([GMM, "info", "--process", str(number)], capture_output=True, text=True, check=False,
                          timeout=60, env={**environment(ledger), **more})
    return done.returncode, done.stdout, done.stderr


def row(text, title, device=0):
    """The MiB of a row of a device, or None."""
    part = re.split(r"^device \d+: ", text, flags=re.MULTILINE)
    found = re.search(rf"^  {title} +([\d.]+) MiB", part[device + 1] if len(part) > device + 1 else "", re.MULTILINE)
    return float(found[1]) if found else None


class Holder:
    def __init__(self, ledger, snapshot):
        self._process = subprocess.Popen([HOLDER, str(snapshot)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         text=True, env=environment(ledger))
        self.pid, self.state = self._process.pid, self._process.stdout.readline().strip()

    def go_on(self):
        print(file=self._process.stdin, flush=True)
        self.state = self._process.stdout.readline().strip()

    def end(self):
        self._process.communicate(timeout=60)
        return self._process.returncode


def test_process(folder):
    ledger, snapshot = folder / "ledger", folder / "snapshot.json"
    holder, other = Holder(ledger, snapshot), Holder(ledger, folder / "other.json")
    tap.check([holder.state, other.state] == ["active", "active"], "two processes hold memory")
    code, out, err = info(ledger, holder.pid)
    used = row(out, "the process")
    tap.check(code == 0 and used is not None and used >= CONTEXT + 112 and "gmm_snapshot_write" in out,
              "NVML tells the memory of a process", [out, err])
    both = re.search(r"the device +8192\.0 MiB, ([\d.]+) MiB used", out)
    tap.check(both is not None and abs(float(both[1]) - 2 * used) < 0.2, "and that of all processes", [out])
    tap.check(row(out, "the process", 1) == CONTEXT, "on the other device it has a context", [out])

    holder.go_on()
    code, out, err = info(ledger, holder.pid)
    tap.check(code == 0 and CONTEXT + 48 <= row(out, "the process") < CONTEXT + 50,
              "after a pause of all, memory outside of gmm stays", [out, err])
    written = json.loads(snapshot.read_text())
    device = written["devices"][0] if written["devices"] else {}
    tap.check(written["process"] == holder.pid and len(written["devices"]) == 1 and device.get("held_bytes") == 0
              and device.get("outside_bytes") == device.get("used_bytes") == (48 + 112) * MIB  # the other's are 112
              and (device["pool_bytes"], device["graph_bytes"]) == (16 * MIB, 3 * MIB),
              "the snapshot has it too, with the memory of other processes", [str(written["devices"])])
    for name, number, code, words, more in [
            ("no driver", holder.pid, 1, "Init_v2: NVML answered 9: Driver Not Loaded",
             {"FAKE_NVML_FAIL": "Init_v2:9"}),
            ("processes that NVML does not list", holder.pid, 1, "RunningProcesses: NVML answered 3: Not Supported",
             {"FAKE_NVML_FAIL": "DeviceGetComputeRunningProcesses_v3:3"}),
            ("no NVML", holder.pid, 1, "NVML cannot be opened", {"LD_LIBRARY_PATH": FAKE_CUDA}),
            ("a process whose bytes NVML does not tell", holder.pid, 0, "does not tell its bytes",
             {"FAKE_NVML_BLIND": "1"}),
            ("a process without a context", 1, 0, "NVML knows no process of this number", {})]:
        got = info(ledger, number, **more)
        tap.check(got[0] == code and words in got[2 if code else 1], name, list(got[1:]))
    for number in ("0", "x", "99999999999"):
        tap.check(info(ledger, number)[0] == 2, f"a wrong number of a process: {number}")
    tap.check([holder.end(), other.end()] == [0, 0], "the processes end well")


def main():
    with tempfile.TemporaryDirectory() as folder:
        test_process(pathlib.Path(folder))
    tap.finish()


main()
