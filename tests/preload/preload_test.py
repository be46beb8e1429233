# SPDX-License-Identifier: Apache-2.0
"""`gmm run`, and what libgmm_preload.so does to programs: nothing where it is off, and nothing that surprises where it
is on.

Usage: preload_test.py GMM PRELOAD_LIBRARY FAKE_CUDA_FOLDER FAKE_CUDART_FOLDER PROGRAMS_FOLDER
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

GMM, LIBRARY, FAKE_CUDA, FAKE_CUDART, PROGRAMS = (str(pathlib.Path(argument).resolve()) for argument in sys.argv[1:6])
PLAIN = {name: value for name,
         value in os.environ.items() if not re.match(r"GMM_|TMS_|LD_PRELOAD|LD_LIBRARY_PATH|FAKE_CUDA", name)}
WITH_CUDA = dict(PLAIN, LD_LIBRARY_PATH=f"{FAKE_CUDA}:{FAKE_CUDART}")

# The functions that the Python side of torch_memory_saver 0.0.10 looks up, and the allocator's.
TMS = """tms_set_current_tag tms_get_current_tag tms_set_interesting_region tms_get_interesting_region
tms_set_enable_cpu_backup tms_get_enable_cpu_backup tms_set_cpu_backup_backend tms_get_cpu_backup_backend
tms_set_enable_disk_backup tms_get_enable_disk_backup
tms_set_disk_backup_dir tms_pause tms_resume set_memory_margin_bytes tms_set_retain_cpu_backup tms_get_retain_cpu_backup
tms_get_cpu_backup_pointer tms_torch_malloc tms_torch_free cudaMalloc cudaFree""".split()
EXPORTED = r"dlsym|dlvsym|cu(Mem(Alloc|Free|HostAlloc)|Stream(Destroy_v2|BeginCapture|EndCapture)|GetProcAddress)\w*|" \
           r"cuda(Malloc|Free|HostAlloc|StreamDestroy|Stream(Begin|End)Capture|GetDriverEntryPoint)\w*|" \
           r"gmm_preload_\w+|tms_\w+|set_memory_margin_bytes"


def run(*command, environment=None, **changes):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=300,
                          env=dict(WITH_CUDA if environment is None else environment, **changes))
    return done.returncode, done.stdout, done.stderr


def expect(name, got, code, out="", err=""):
    passed = got[0] == code and re.search(out, got[1]) is not None and re.search(err, got[2]) is not None
    tap.check(passed, name,
              [f"exit code {got[0]}, expected {code}", *got[1].splitlines()[-20:], *got[2].splitlines()[-20:]])


def program(name):
    return f"{PROGRAMS}/{name}"


def test_command(folder):
    real = pathlib.Path(folder) / "with blank" / "real.so"
    real.parent.mkdir()
    real.write_bytes(b"")
    other = program("liblook_up_second.so")
    all_off = ("--no-async", "--no-host", "--no-device", "--no-managed", "--print")
    for name, words, code, out, err in (
            ("help of run", ["--help"], 0, "gmm run \\[OPTION", ""),
            ("no program", [], 2, "", "gmm run \\[OPTION"),
            ("no program after --", ["--"], 2, "", "gmm run \\[OPTION"),
            ("an unknown option", ["--frobnicate", "true"], 2, "", "'--frobnicate'"),
            ("unknown contents", ["--contents", "tape", "true"], 2, "", "--contents does not take 'tape'"),
            ("an option without its value", ["--tag"], 2, "", "--tag does not take ''"),
            ("a missing program", ["no_such_program"], 127, "", "no_such_program: there is no such program"),
            ("a program that cannot run", ["/etc/passwd"], 126, "", "/etc/passwd: Permission denied"),
            ("a missing library", ["--library", "/no/such.so", "true"], 1, "", "/no/such.so: No such file"),
            ("a library in a folder with a blank", ["--library", real, "true"], 1, "", "blank or colon"),
            ("the exit code is the program's", ["--", "sh", "-c", "exit 42"], 42, "", ""),
            ("a signal is the program's", ["sh", "-c", "kill -TERM $$"], -signal.SIGTERM, "", ""),
            ("arguments pass", ["--", "printf", "%s-", "--tag", "a b", "--"], 0, "^--tag-a b----$", ""),
            ("the variables", ["--print"], 0,
             f"^GMM_PRELOAD=device,async,managed,host\nLD_PRELOAD={re.escape(LIBRARY)}\n$", ""),
            ("calls can be left out", ["--no-async", "--no-host", "--print"], 0, "GMM_PRELOAD=device,managed\n", ""),
            ("all of them", all_off, 0, "GMM_PRELOAD=off\n", ""),
            ("regions", ["--regions", "--print"], 0, "GMM_PRELOAD=regions\n", ""),
            ("off", ["--off", "--print"], 0, "GMM_PRELOAD=off\n", ""),
            ("the other options", ["--tag", "t", "--contents", "file", "--print"], 0,
             "GMM_PRELOAD_TAG=t\nGMM_PRELOAD_CONTENTS=file\n", "")):
        expect(name, run(GMM, "run", *words), code, out, err)
    alone = pathlib.Path(folder) / "gmm"
    alone.write_bytes(pathlib.Path(GMM).read_bytes())
    alone.chmod(0o755)
    expect("a command without the library near",
           run(alone, "run", "true", LD_LIBRARY_PATH=os.path.dirname(os.path.dirname(GMM))), 1,
           err="there is no libgmm_preload.so")
    expect("another preloaded library stays", run(GMM, "run", "printenv", "LD_PRELOAD", LD_PRELOAD=other), 0,
           f"^{re.escape(LIBRARY)}:{re.escape(other)}\n$")


def test_library():
    lines = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True,
                           check=True).stdout.splitlines()
    names = {line.split()[-1].partition("@")[0] for line in lines}
    tap.check(not [name for name in names if not re.fullmatch(EXPORTED, name)], "nothing else is exported",
              sorted(names))
    tap.check(not set(TMS) - names, "the functions of torch_memory_saver are there", sorted(set(TMS) - names))
    tap.check(not [line for line in lines if "@" in line],
              "the functions have no version, and stand for those of every version", lines)
    dynamic = subprocess.run(["readelf", "-dSW", LIBRARY], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    tap.check(all(re.match(r"(libgmm|libc|libpthread|libdl|ld-linux[\w-]*|libasan|libubsan|libtsan|libgcc_s|libm)\.so",
                           name) for name in needed)
              and any(name.startswith("libgmm.so") for name in needed), "it needs gmm and the C library only", needed)
    tap.check("NODELETE" in dynamic, "it stays loaded")
    size = {name: int(bytes_, 16) for name,
            bytes_ in re.findall(r"\s(\.init_array|\.fini_array)\s+\S+\s+[0-9a-f]+\s+[0-9a-f]+\s+([0-9a-f]+)", dynamic)}
    tap.check(all(value <= 8 for value in size.values()), "no constructors and no destructors", [str(size)])


def calls_of(got):
    return re.findall(r"^# calls (.*)$", got[1], re.MULTILINE)


def test_off():
    """The driver sees the same calls, and as many, with the library and without."""
    for mode in ("linked", "dlsym", "dlvsym", "entry"):
        command = program("driver_user"), mode, "forwarded"
        plain = run(*command)
        expect(f"the program alone ({mode})", plain, 0)
        tap.check(len(calls_of(plain)) == 1 and len(calls_of(plain)[0].split()) > 10, f"its calls are counted ({mode})",
                  calls_of(plain))
        for name, got in (("off", run(GMM, "run", "--off", *command)), ("unset", run(*command, LD_PRELOAD=LIBRARY)),
                          ("=0", run(*command, LD_PRELOAD=LIBRARY, GMM_PRELOAD="0")),
                          ("regions, but none entered", run(GMM, "run", "--regions", *command))):
            expect(f"GMM_PRELOAD {name} ({mode})", got, 0, err="^$")
            tap.check(calls_of(got) == calls_of(plain), f"the same calls with GMM_PRELOAD {name} ({mode})",
                      calls_of(got) + calls_of(plain))
    for kind in ("shared", "static"):
        expect(f"the {kind} runtime with the library off",
               run(GMM, "run", "--off", program(f"runtime_user_{kind}"), "calls", "forwarded"), 0)


def test_without_cuda():
    """No driver: the program hears of it what it would hear without gmm."""
    for kind in ("shared", "static"):
        command = program(f"runtime_user_{kind}"), "calls", "forwarded"
        paths = {"LD_LIBRARY_PATH": FAKE_CUDART}
        alone = run(*command, environment=PLAIN, **paths)
        tap.check("answered 35" in alone[1], f"without a driver the {kind} runtime says so", alone[1].splitlines()[:5])
        with_gmm = run(GMM, "run", *command, environment=PLAIN, **paths)
        tap.check(with_gmm == alone, f"and so it does with gmm ({kind})", [*with_gmm[1].splitlines()[:8], with_gmm[2]])
    expect("the driver's functions without a driver",
           run(program("look_up_user"), environment=PLAIN, LD_LIBRARY_PATH=PROGRAMS), 0)
    expect("the look-up of functions with gmm",
           run(GMM, "run", program("look_up_user"), "taken", environment=PLAIN, LD_LIBRARY_PATH=PROGRAMS), 0, err="^$")
    expect("the look-up of functions with gmm off",
           run(GMM, "run", "--off", program("look_up_user"), "taken", environment=PLAIN, LD_LIBRARY_PATH=PROGRAMS), 0)
    expect("a program without CUDA", run(GMM, "run", "sh", "-c", "ls / | sort | wc -l; exit 7", environment=PLAIN), 7,
           r"^\d+\n$", "^$")


def test_choices():
    runtime = program("runtime_user_static")
    driver = program("driver_user")
    expect("a device without VMM", run(GMM, "run", driver, "entry", "forwarded", FAKE_CUDA_LACKS="vmm"), 1,
           "not ok .*whose_memory")
    for name, options, changes, code, out in (
            ("two devices", [], {"FAKE_CUDA_DEVICES": "2"}, 0, ""),
            ("memory in a file", ["--contents", "file"], {}, 0, ""),
            ("host memory left out", ["--no-host", "--no-managed"], {}, 0, ""),
            ("contents dropped are lost", ["--contents", "drop"], {}, 1, "block 5 lost its contents"),
            ("a tag of its own", ["--tag", "mine"], {}, 0, ""),
            ("a region in the whole program, of a static runtime", ["--regions"],
             {"TMS_INIT_ENABLE": "true", "TMS_INIT_ENABLE_CPU_BACKUP": "yes"}, 0, "")):
        expect(name, run(GMM, "run", *options, runtime, "calls", "taken", **changes), code, out)
    expect("a region in the whole program",
           run(program("runtime_user_shared"), "calls", "taken", LD_PRELOAD=LIBRARY, TMS_INIT_ENABLE="1",
               TMS_INIT_ENABLE_CPU_BACKUP="1"), 0)
    expect("regions by LD_PRELOAD alone",
           run(program("runtime_user_shared"), "regions", "taken", LD_PRELOAD=LIBRARY), 0)
    for variable, value, takes in (("GMM_PRELOAD", "banana", "off, on, regions"),
                                   ("GMM_PRELOAD", "device,,host", "off, on, regions"),
                                   ("GMM_PRELOAD_CONTENTS", "tape", "drop, host or file"),
                                   ("TMS_INIT_ENABLE", "maybe", "1 or 0"),
                                   ("TMS_INIT_CPU_BACKUP_BACKEND", "tape", "pinned or mmap")):
        expect(f"{variable}={value} is not taken for something",
               run(program("driver_user"), "entry", "forwarded", LD_PRELOAD=LIBRARY, **{variable: value}), 0,
               err=f"^gmm preload: {variable}={value} is unknown and ignored; set it to {takes}.*\n$")


IN_PYTHON = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.tms_torch_malloc.restype = ctypes.c_void_p
library.tms_torch_malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
library.tms_torch_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
library.gmm_preload_last_error.restype = ctypes.c_char_p
library.gmm_preload_context.restype = ctypes.c_void_p
library.gmm_preload_active.restype = ctypes.c_bool
library.tms_get_current_tag.restype = ctypes.c_char_p
assert not library.gmm_preload_active()
assert library.tms_pause(None) == 0 and library.tms_resume(b"kv") == 0
assert library.tms_get_current_tag() == b"default"
context = library.gmm_preload_context()
if len(sys.argv) > 2:
    assert context is None, context
    assert sys.argv[2].encode() in library.gmm_preload_last_error(), library.gmm_preload_last_error()
    assert library.tms_torch_malloc(4096, 0, None) is None
    sys.exit(0)
assert context and library.gmm_preload_context() == context, library.gmm_preload_last_error()
library.tms_set_current_tag(b"weights")
library.tms_set_interesting_region(True)
library.tms_set_enable_cpu_backup(True)
memory = library.tms_torch_malloc(6912, 0, None)
assert memory, library.gmm_preload_last_error()
ctypes.memset(memory, 77, 6912)
assert library.tms_pause(b"weights") == 0, library.gmm_preload_last_error()
assert library.tms_pause(None) == 0
assert library.tms_resume(b"weights") == 0, library.gmm_preload_last_error()
assert ctypes.string_at(memory, 6912) == b"M" * 6912
library.tms_torch_free(memory, 6912, 0, None)
assert not library.gmm_preload_last_error(), library.gmm_preload_last_error()
"""


def test_functions_alone():
    """The library opened by a program for its functions. tests/bindings/python/test_memory_saver.py does so on CUDA."""
    expect("the functions alone, on the host",
           run(sys.executable, "-c", IN_PYTHON, LIBRARY, environment=PLAIN, GMM_BACKEND="host"), 0, err="^$")
    expect("a context that cannot be",
           run(sys.executable, "-c", IN_PYTHON, LIBRARY, "libcuda.so.1", environment=PLAIN, GMM_BACKEND="cuda"), 0,
           err="^$")


def main():
    with tempfile.TemporaryDirectory() as folder:
        test_command(folder)
    test_library()
    test_off()
    test_without_cuda()
    test_choices()
    test_functions_alone()
    tap.finish()


main()
