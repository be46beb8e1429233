# SPDX-License-Identifier: Apache-2.0
"""gmm ps, top, and the commands with --pid, on real processes of the backends host and cuda (the fake driver).

Usage: control_test.py GMM CONTROLLED FAKE_CUDA FAKE_NVML      the folders of the two libraries
"""

import csv
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

GMM, HOLDER, *LIBRARIES = sys.argv[1:]
MIB = 1 << 20
NOBODY = 65534


# A process that uses CUDA without gmm.
OTHER = """
import ctypes, sys
cuda, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(pointer), 0) == cuda.cuCtxSetCurrent(pointer) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(8 << 20)) == 0
print("ready", flush=True)
sys.stdin.read()
"""


class Process:
    def __init__(self, command, env, **more):
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, stdout=subprocess.PIPE,
                                         env={**env, **more})
        self.pid = self._process.pid
        assert self.answer() in ("ready", "sevens")

    def begin(self, word):
        print(word, file=self._process.stdin, flush=True)

    def answer(self):
        return self._process.stdout.readline().strip()

    def do(self, word):
        self.begin(word)
        return self.answer()

    def end(self):
        self._process.communicate(timeout=60)
        return self._process.returncode


def ask_raw(folder, process, user):
    """The result of a request for the state that a process of the user sends."""
    name, = (name for name in os.listdir(folder) if name.startswith(f"{process.pid}-"))
    _, start, serial = name.removesuffix(".sock").split("-")
    child = os.fork()
    if child == 0:
        os.setresuid(user, user, user)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(20)
            connection.connect(f"{folder}/{name}")
            connection.send(struct.pack("IHHQ16xQIIIIQ64x", 0x516d6d67, 4, 4, 0, int(start), int(serial), 0, 1, 0, 0))
            os._exit(-struct.unpack("i", connection.recv(1024)[8:12])[0])
    return -os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Test:
    def __init__(self, backend, folder, libraries):
        (folder / "files").mkdir()
        self.backend, self.folder = backend, folder
        self.env = dict(os.environ, GMM_BACKEND=backend, LD_LIBRARY_PATH=libraries, GMM_IPC_DIR=str(folder / "ipc"),
                        GMM_BACKUP_DIR=str(folder / "files"), FAKE_CUDA_CPU_ACCESS="1",
                        FAKE_CUDA_LEDGER=str(folder / "ledger"))
        self.process = Process([HOLDER], self.env, GMM_CONTROL="1")
        self.target = ("--pid", str(self.process.pid))

    def start(self, *words):
        return subprocess.Popen([GMM, *words], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def gmm(self, *words):
        command = self.start(*words)
        out, err = command.communicate(timeout=60)
        return command.returncode, out, err

    def expect(self, name, code, words, *arguments):
        got = self.gmm(*arguments)
        tap.check(got[0] == code and words in got[1 + (code != 0)], f"{self.backend}: {name}", [str(got)])
        return got[1]

    def rows(self, command="ps", *words):
        table = json.loads(self.expect(f"{command} prints JSON", 0, "memory", command, "--json", *words))
        return {(row["process"], row["device"], row.get("tag")): row for row in table["memory"]}, table["cards"]

    def row(self):
        return next(row for (process, *_), row in self.rows()[0].items() if process == self.process.pid)

    def stop_churning(self):
        self.process.begin("stop")
        tap.check((self.process.answer(), self.process.answer()) == ("sevens", "sevens"), "the process goes on")

    def wait_for_trace(self):
        """Until the process has the file of a trace open."""
        files = pathlib.Path(f"/proc/{self.process.pid}/fd")
        while not any("gmm-trace" in os.path.realpath(file) for file in files.iterdir()):
            time.sleep(0.02)

    def test_look(self):
        silent = Process([HOLDER], self.env)
        other = Process([sys.executable, "-c", OTHER], self.env) if self.backend == "cuda" else None
        rows, cards = self.rows()
        heaps = json.loads(self.expect("a snapshot of a process", 0, "gmm-snapshot", "snapshot", *self.target))["heaps"]
        mine = self.row()
        tap.check(all(mine[key] == sum(heap[key] for heap in heaps)
                      for key in ("live_bytes", "reserved_bytes", "paused_bytes"))
                  and mine["live_bytes"] == 32 * MIB and mine["command"] != "", "its sums are those of ps", [str(mine)])
        rows_of_csv = csv.DictReader(self.expect("the same for a viewer", 0, "live", "snapshot", *self.target, "--view",
                                                 "csv").splitlines())
        live = [int(row["bytes"]) for row in rows_of_csv if row["event"] == "live"]
        tap.check(sum(live) == 32 * MIB, "it has the live blocks", [str(live)])
        note = [row["note"] for (process, *_), row in rows.items() if process == silent.pid]
        tap.check(len(note) == 1 and "GMM_CONTROL=1" in note[0], "a process without control is listed", note)
        self.expect("it is not asked", 1, "GMM_CONTROL=1", "snapshot", "--pid", str(silent.pid))
        silent.do("export")
        self.expect("nor is it by the socket of its exports", 1, "does not allow", "pause", "--pid",
                    str(silent.pid), "model")
        if other is not None:
            found = [row for (process, *_), row in rows.items() if process == other.pid]
            tap.check(len(found) == 1 and found[0]["note"] == "without gmm" and found[0]["reserved_bytes"] > 8 * MIB
                      and len(cards) == 1 and cards[0]["used_bytes"] > 72 * MIB, "a process without gmm is on the card",
                      [str(found), str(cards)])
            other.end()
        self.process.begin("churn")
        rate = next(row for (_, _, tag), row in self.rows("top", "--once")[0].items() if tag == "model")
        tap.check(rate["allocations_per_s"] > 10 and rate["limit_bytes"] is None and rate["pauses"] == 0,
                  "top has rates, limits and pauses", [str(rate)])
        self.stop_churning()
        silent.end()

    def test_pause(self):
        self.expect("a pause of another process", 0, 'pause: "model", 3', "pause", *self.target, "model")
        row = self.row()
        tap.check(row["paused_bytes"] >= row["kept_bytes"] == 32 * MIB and row["reserved_bytes"] == 0,
                  "it takes the memory and keeps the contents", [str(row)])
        self.expect("its resume", 0, 'resume: "model", 3', "resume", *self.target, "model")
        tap.check(self.process.do("read") == "sevens", "the contents are back")
        self.expect("an unknown tag", 1, 'There is no tag named "none"', "pause", *self.target, "none")
        self.expect("a command line without a process", 2, "by --pid", "pause", "model")

    def test_trace(self):
        self.process.begin("churn")
        words = ("trace", *self.target, "--seconds", "0.3", "--view", "csv")
        out = self.expect("a trace of a process", 0, "alloc", *words)
        tap.check(len(out.splitlines()) > 20, "it has events", [out[:1000]])
        self.stop_churning()
        asker = self.start("trace", *self.target, "--seconds", "3")
        self.wait_for_trace()
        asker.kill()
        asker.communicate()
        self.expect("the trace outlives its asker", 1, "GMM_ERROR_BUSY", "trace", *self.target, "--seconds", "0")
        ends = time.monotonic() + 60
        while self.gmm("trace", *self.target, "--seconds", "0")[0] != 0 and time.monotonic() < ends:
            time.sleep(0.2)
        self.expect("and ends at its time", 0, "", "trace", *self.target, "--seconds", "0")
        tap.check(os.listdir(self.folder / "files") == [], "it leaves no file")

    def test_stopped(self):
        second = Process([HOLDER], self.env, GMM_CONTROL="1", GMM_DEBUG="stacks")
        self.expect("a live block has its stack", 0, "main", "snapshot", "--pid", str(second.pid), "--view", "csv")
        os.kill(self.process.pid, signal.SIGSTOP)
        start = time.monotonic()
        self.expect("a stopped process", 1, "no answer in time", "snapshot", *self.target, "--timeout", "0.5")
        rows, _ = self.rows("ps", "--timeout", "3")
        tap.check(time.monotonic() - start < 60, "the asker does not hang")
        tap.check([row["live_bytes"] for (process, *_), row in rows.items() if process == second.pid] == [32 * MIB],
                  "others answer beside it", [str(rows)])
        os.kill(self.process.pid, signal.SIGCONT)
        second.end()

    def test_users(self):
        if os.getuid() != 0:
            tap.skip(f"{self.backend}: other users are refused", "only root becomes another user")
            return
        process = Process([HOLDER, str(self.folder / "shared"), str(NOBODY)], self.env, GMM_CONTROL="1")
        got = [ask_raw(self.folder / "shared", process, user) for user in (0, NOBODY)]
        tap.check(got == [0, -42], "other users are refused, also one that may share memory", [str(got)])
        process.end()

    def test_end(self):
        asker = self.start("trace", *self.target, "--seconds", "60")
        self.wait_for_trace()
        tap.check(self.process.end() == 0, "the end of a context ends a trace of it")
        tap.check(asker.wait(timeout=60) == 0, "its asker gets the trace until then", asker.communicate())


def main():
    for backend in ("host", "cuda"):
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o711)
            test = Test(backend, pathlib.Path(folder), ":".join(LIBRARIES))
            for case in (test.test_look, test.test_pause, test.test_trace, test.test_stopped, test.test_users,
                         test.test_end):
                case()
    tap.finish()


main()
