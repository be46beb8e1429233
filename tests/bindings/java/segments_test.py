# SPDX-License-Identifier: Apache-2.0
"""Views as MemorySegment: segments_test.py JAR TESTS_JAR, with a JDK of version 22 or newer, if there is one."""
import glob
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / 'support'))
import tap  # noqa: E402

jar, tests = sys.argv[1:]
source = pathlib.Path(__file__).parent / 'newer' / 'SegmentsTest.java'


def run(home, tool, *arguments):
    done = subprocess.run([f'{home}/bin/{tool}', *arguments], capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


def version(home):
    """Of "javac 25.0.1" or "javac 23-ea"; 0: no JDK."""
    return int(re.search(r'\d+', run(home, 'javac', '-version')[1])[0]) if os.path.exists(f'{home}/bin/javac') else 0


home = max([os.environ.get('JAVA_HOME', ''), *glob.glob('/usr/lib/jvm/*')], key=version)
if version(home) < 22:
    print('1..0 # SKIP no JDK of version 22 or newer in JAVA_HOME or /usr/lib/jvm')
    sys.exit(0)
with tempfile.TemporaryDirectory() as scratch:
    path = f'{jar}:{tests}:{scratch}'
    code, said, errors = run(home, 'javac', '-Xlint:all,-try,-restricted', '-Werror', '-cp', path, '-d', scratch,
                             source)
    tap.check(code == 0, 'a program with MemorySegment compiles', said + errors)
    code, said, errors = run(home, 'java', '--enable-native-access=ALL-UNNAMED', '-cp', path, 'io.gmm.SegmentsTest')
    output = tap.Output(said.splitlines())
    for case in output.cases:
        tap.check(case.passed, case.name, said.splitlines())
    tap.check(code == 0 and output.plan == len(output.cases) and not errors,
              f'the program went through its {len(output.cases)} tests (exit code {code})', said + errors)
tap.finish()
