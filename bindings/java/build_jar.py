# SPDX-License-Identifier: Apache-2.0
"""Compiles classes and packs them, with native libraries if there are any, into one jar."""
import argparse
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument('--javac', required=True)
parser.add_argument('--jar', required=True)
parser.add_argument('--generated', help='folder with the classes that generate.py and SWIG wrote')
parser.add_argument('--classpath', default='')
parser.add_argument('--lint', default='all')
parser.add_argument('--manifest', action='append', default=[], metavar='NAME: VALUE')
parser.add_argument('--native', action='append', default=[], metavar='NAME=FILE',
                    help='in the order in which they are to be loaded')
parser.add_argument('--file', action='append', default=[], metavar='NAME=FILE', help='a further file of the jar')
parser.add_argument('--output', required=True)
parser.add_argument('sources', nargs='+')
options = parser.parse_args()

DATE = '2000-01-01T00:00:00Z' # the same input gives the same jar

with tempfile.TemporaryDirectory() as scratch:
    root = pathlib.Path(scratch) / 'root'
    generated = []
    if options.generated:
        generated = sorted(str(file) for file in pathlib.Path(options.generated).rglob('*.java'))
    if options.generated and not generated:
        sys.exit(f'no classes in {options.generated}: did SWIG run?')
    command = [options.javac, '--release', '11', f'-Xlint:{options.lint}', '-Werror', '-encoding', 'UTF-8',
               '-classpath', options.classpath, '-d', str(root)]
    subprocess.run(command + options.sources + generated, check=True)

    if options.native:
        natives = root / 'META-INF' / 'native' / f'linux-{platform.machine()}'
        natives.mkdir(parents=True)
        names = []
        for native in options.native:
            name, file = native.split('=', 1)
            shutil.copyfile(file, natives / name)
            names.append(name)
        (natives / 'libraries').write_text('\n'.join(names) + '\n')

    for item in options.file:
        name, file = item.split('=', 1)
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, root / name)

    manifest = pathlib.Path(scratch) / 'manifest'
    manifest.write_text(''.join(line + '\n' for line in options.manifest))
    version = subprocess.run([options.jar, '--version'], capture_output=True, text=True, check=True).stdout
    dated = ['--date', DATE] if int(re.search(r'(\d+)', version).group(1)) >= 17 else []
    subprocess.run([options.jar, '--create', '--file', options.output, '--manifest', str(manifest), *dated,
                    '-C', str(root), '.'], check=True)
