#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gmm.numba on a GPU: numba_check.py [FOLDER]

Runs Numba's own driver tests with its memory manager and with gmm's, and prints the outcomes that differ; the IPC tests
once more without pooling; the tests of the plugin; and checks that need kernels. FOLDER: one with a sitecustomize.py
that lets Numba's tests load on this machine; without it this script writes one. Prints the Test Anything Protocol. All
parts run at once. The environment must find gmm (PYTHONPATH, LD_LIBRARY_PATH). Logs go to $OUT, if that is set.
"""
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
INTEROP = ROOT / "tests" / "bindings" / "interop"
sys.path.insert(0, str(INTEROP))
sys.path.insert(0, str(ROOT / "tests" / "support"))
import tap  # noqa: E402

SUITES = ["numba.cuda.tests.cudadrv", "numba.cuda.tests.cudapy.test_ipc",
          "numba.cuda.tests.cudapy.test_cuda_array_interface"]
LIMIT_S = int(os.environ.get("NUMBA_CHECK_S", "110"))
PLUGIN = {"NUMBA_CUDA_MEMORY_MANAGER": "gmm.numba"}


def say(passed, name, details=""):
    if passed:
        print("".join(f"# {line}\n" for line in str(details).strip().splitlines()), end="")
    tap.check(passed, name, str(details).strip())


def start(work, name, command, environment, **settings):
    log = open(work / f"{name}.log", "w")
    return subprocess.Popen(command, cwd=work, env={**environment, **settings}, stdout=log, stderr=subprocess.STDOUT,
                            start_new_session=True)


def finish(process, deadline):
    """Waits for it, and ends it and its children when the time is over. The exit code, None when it was ended."""
    try:
        return process.wait(timeout=max(1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return None


def suite(*tests):
    return [sys.executable, "-m", "numba.runtests", "-v", *(tests or SUITES)]


def read_suite(log):
    """Each test's outcome; a test of which one part fails has failed."""
    found = {}
    for name, outcome in re.findall(r"^ *(test_\w+ \([\w.]+\)).* \.\.\. (ok|FAIL|ERROR|skipped)", log, re.MULTILINE):
        if found.get(name) not in ("FAIL", "ERROR"):
            found[name] = outcome
    return found


def why(log, test):
    """What unittest says of a failed test, its end."""
    parts = re.split(r"^={60,}$", log, flags=re.MULTILINE)
    return "\n".join(part.strip()[-1500:] for part in parts if re.match(rf"\s*(ERROR|FAIL): {re.escape(test)}", part))


def compare(work, name, title, own, environment, allowed=frozenset(), only="", whole=True):
    """whole: neither run was ended early; else what one of them did not get to does not count."""
    builtin, log = read_suite((work / "builtin.log").read_text()), (work / f"{name}.log").read_text()
    plugin = read_suite(log)
    builtin = {test: outcome for test, outcome in builtin.items() if only in test}
    # A child of the IPC tests has 4 seconds, which it may lack while all of this runs at once: once more, alone.
    late = [test for test in plugin if plugin[test] in ("FAIL", "ERROR") and builtin.get(test) == "ok"
            and test not in allowed]
    if late and all("test_ipc" in test for test in late):
        again = start(work, f"{name}-again", suite(*(test.split("(")[1][:-1] for test in late)), environment)
        finish(again, time.monotonic() + 30)
        log += (work / f"{name}-again.log").read_text()
        plugin.update(read_suite((work / f"{name}-again.log").read_text()))
        print(f"# {title}: once more, alone: {', '.join(late)}")
    different = {test: (builtin.get(test), plugin.get(test)) for test in sorted(builtin.keys() | plugin.keys())
                 if builtin.get(test) != plugin.get(test) and (whole or (test in builtin and test in plugin))}
    print(f"# == {title}: {sum(o == 'ok' for o in builtin.values())} ok with Numba's manager, "
          f"{sum(o == 'ok' for o in plugin.values())} here. "
          "Outcomes that differ (< built-in, > plugin):")
    for test, (before, after) in different.items():
        print(f"# < {test} ... {before}\n# > {test} ... {after}")
    wrong = {test for test in different if not (test in own and different[test][1] == "skipped")
             and test not in allowed}
    say(bool(builtin) and not wrong,
        f"{title}: nothing differs but what skips "
        f"itself{' and ' + ', '.join(t.split()[0] for t in allowed) if allowed else ''}",
        "\n".join(why(log, test) or f"{test}: {different[test]}" for test in sorted(wrong))
        or ("" if builtin else (work / "builtin.log").read_text()[-2000:]))
    return plugin


def main(runner=None):
    began = time.monotonic()
    deadline = began + LIMIT_S
    work = pathlib.Path(tempfile.mkdtemp(prefix="numba-check-"))
    spec = importlib.util.spec_from_file_location("suite_lists", INTEROP / "test_numba_suite.py")
    lists = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(lists)
    except ImportError:  # no pytest here: the lists alone
        text = (INTEROP / "test_numba_suite.py").read_text()
        lists = type("Lists", (), {})
        exec(text[text.index("OWN ="):text.index("#: Children have")], lists_space := {})
        lists.OWN, lists.WITHOUT_OFFSET, lists.PRELUDE = (lists_space[key]
                                                          for key in ("OWN", "WITHOUT_OFFSET", "PRELUDE"))
    (work / "site").mkdir()
    if runner:
        shutil.copy(pathlib.Path(runner) / "sitecustomize.py", work / "site")
    else:
        (work / "site" / "sitecustomize.py").write_text(lists.PRELUDE)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("NUMBA_CUDA", "GMM_NUMBA"))}
    clean["PYTHONUNBUFFERED"] = "1"
    tests = {**clean, "PYTHONPATH": os.pathsep.join([str(work / "site"), str(INTEROP), clean.get("PYTHONPATH", "")])}
    kernels = [sys.executable, str(ROOT / "tests" / "gpu" / "numba_kernels.py")]
    parts = {
        "builtin": start(work, "builtin", suite(), tests),
        "plugin": start(work, "plugin", suite(), tests, **PLUGIN),
        "kernels": start(work, "kernels", kernels,
                         {**clean, "PYTHONPATH": os.pathsep.join([str(work / "site"), clean.get("PYTHONPATH", "")])},
                         **PLUGIN),
        "dedicated": start(work, "dedicated", suite("numba.cuda.tests.cudapy.test_ipc"), tests, **PLUGIN,
                           GMM_NUMBA_POOL="0"),
    }
    if importlib.util.find_spec("pytest"):
        parts["tests"] = start(work, "tests", [sys.executable, str(INTEROP.parent / "python" / "run.py"),
                                                *(str(INTEROP / f"test_numba_{name}.py")
                                                  for name in ("plugin", "ipc"))], clean)
    codes = {name: finish(process, deadline) for name, process in parts.items()}

    for name in ("kernels", "tests"):
        if name not in parts:
            print("# the plugin's tests are left out: there is no pytest here")
            continue
        log = (work / f"{name}.log").read_text()
        details = []
        for line in log.splitlines():
            if cases := tap.Output([line]).cases:
                if cases[0].skipped is None:
                    tap.check(cases[0].passed, f"{name}: {cases[0].name}", details[-40:])
                else:
                    tap.skip(f"{name}: {cases[0].name}", cases[0].skipped)
                details = []
            elif match := re.match(r"# (cost|versions)", line):
                print(line)
            else:
                details.append(line.lstrip("# "))
        say(codes[name] is not None and bool(re.search(r"^1\.\.\d+", log, re.MULTILINE)), f"{name}: ran to the end",
            "" if codes[name] == 0 else log[-1500:])
    plugin = {**tests, **PLUGIN}
    for name in ("builtin", "plugin", "dedicated"):
        say(codes[name] is not None, f"Numba's tests ended in time: {name}",
            "" if codes[name] is not None else (work / f"{name}.log").read_text()[-1500:])
    compare(work, "plugin", "Numba's driver tests", lists.OWN, plugin, allowed={lists.WITHOUT_OFFSET},
            whole=None not in (codes["builtin"], codes["plugin"]))
    compare(work, "dedicated", "Numba's IPC tests with GMM_NUMBA_POOL=0", lists.OWN, {**plugin, "GMM_NUMBA_POOL": "0"},
            only=".test_ipc.",
            whole=None not in (codes["builtin"], codes["dedicated"]))
    print(f"# {time.monotonic() - began:.0f} s")
    code = tap.end()
    if os.environ.get("OUT"):
        with open(pathlib.Path(os.environ["OUT"]) / "numba-check.log", "w") as out:
            for log in sorted(work.glob("*.log")):
                out.write(f"==== {log.name}\n{log.read_text()[-300_000:]}\n")
    shutil.rmtree(work, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
