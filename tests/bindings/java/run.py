# SPDX-License-Identifier: Apache-2.0
"""Runs a test program with the virtual machine's checks of JNI calls, whose warnings count as one more test: run.py JAVA CLASSPATH MAIN."""
import subprocess
import sys

java, classpath, main = sys.argv[1:]
process = subprocess.Popen([java, '-Xcheck:jni', '-cp', classpath, main], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
plan = None
count = 0
warnings = []
for line in process.stdout:
    if line.startswith('1..'):
        plan = int(line[3:])
        continue
    if line.startswith(('ok ', 'not ok ')):
        count += 1
    if 'in native method' in line:
        warnings.append(line.strip())
    print(line, end='', flush=True)
code = process.wait()
for warning in warnings:
    print(f'# {warning}')
print(f"{'not ok' if warnings else 'ok'} {count + 1} - no warning of -Xcheck:jni")
print(f"{'ok' if plan == count and code in (0, 1) else 'not ok'} {count + 2} - the program went through its {count} tests (exit code {code})")
print(f'1..{count + 2}')
sys.exit(code)
