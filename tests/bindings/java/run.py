# SPDX-License-Identifier: Apache-2.0
"""Runs a test program with the virtual machine's checks of JNI calls, whose warnings count as one more test.

Usage: run.py JAVA CLASSPATH MAIN
"""
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / 'support'))
import tap  # noqa: E402

java, classpath, main = sys.argv[1:]
process = subprocess.Popen([java, '-Xcheck:jni', '-cp', classpath, main], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
lines = []
for line in process.stdout:
    lines.append(line.rstrip('\n'))
    if not line.startswith('1..'):
        print(line, end='', flush=True)
code = process.wait()
output = tap.Output(lines)
tap.begin_after(len(output.cases))
warnings = [line.strip() for line in lines if 'in native method' in line]
tap.check(not warnings, 'no warning of -Xcheck:jni', warnings)
tap.check(output.plan == len(output.cases) and code in (0, 1),
          f'the program went through its {len(output.cases)} tests (exit code {code})')
sys.exit(max(tap.end(), code))
