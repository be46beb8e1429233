# SPDX-License-Identifier: Apache-2.0
"""Views as MemorySegment: segments_test.py JDK_HOME JAR TESTS_JAR, with a JDK of version 22 or newer."""
import pathlib
import subprocess
import sys
import tempfile
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / 'support'))
import tap  # noqa: E402

if len(sys.argv) < 4:
    print('1..0 # SKIP no JDK of version 22 or newer in JAVA_HOME or /usr/lib/jvm')
    sys.exit(0)
home, jar, tests = sys.argv[1:]
source = pathlib.Path(__file__).parent / 'newer' / 'SegmentsTest.java'


def run(tool, *arguments):
    done = subprocess.run([f'{home}/bin/{tool}', *arguments], capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


names = zipfile.ZipFile(jar).namelist()
tap.check([name for name in names if name.startswith('META-INF/versions/') and name.endswith('.class')]
          == ['META-INF/versions/22/io/gmm/Segments.class'], 'the class of Java 22 is in the jar')
code, said, errors = run('jar', '--validate', '--file', jar)
tap.check(code == 0, 'jar --validate finds the same interface in both versions', said + errors)

with tempfile.TemporaryDirectory() as scratch:
    code, said, errors = run('javac', '-Xlint:all,-try,-restricted', '-Werror', '-cp', f'{jar}:{tests}', '-d', scratch,
                             str(source))
    tap.check(code == 0, 'a program with MemorySegment compiles', said + errors)
    path = f'{jar}:{tests}:{scratch}'
    options = ['--enable-native-access=ALL-UNNAMED', '-cp', path]
    for more in ([], ['older']):
        flags = ['-Djdk.util.jar.enableMultiRelease=false'] if more else []
        code, said, errors = run('java', *flags, *options, 'io.gmm.SegmentsTest', *more)
        output = tap.Output(said.splitlines())
        for case in output.cases:
            tap.check(case.passed, case.name, said.splitlines())
        tap.check(code == 0 and output.plan == len(output.cases) and not errors,
                  f'the program went through its {len(output.cases)} tests (exit code {code})', said + errors)
tap.finish()
