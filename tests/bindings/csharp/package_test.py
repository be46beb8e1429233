# SPDX-License-Identifier: Apache-2.0
"""The NuGet package: package_test.py MONO FOLDER TESTS.EXE. Unpacked elsewhere, it works without the build folder."""
import glob
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / 'support'))
import tap  # noqa: E402

mono, folder, tests = sys.argv[1:]
packages = glob.glob(folder + '/*.nupkg')
tap.check(len(packages) == 1, 'one package', str(packages))
package = zipfile.ZipFile(packages[0])
names = package.namelist()
tap.check([name for name in names if name.startswith('runtimes/linux-')
           and name.endswith('/native/libgmm_csharp.so')] != []
     and [name for name in names if '/native/libgmm.so' in name] != [], 'native libraries under runtimes/', str(names))
tap.check({f'lib/{framework}/Gmm.{end}' for framework in ('net472', 'netstandard2.0') for end in ('dll', 'xml')}
          <= set(names), 'the assemblies and their documentation', str(names))
tap.check(b'@VERSION@' not in package.read('Gmm.nuspec'), 'a nuspec with a version')


def works(folder, what):
    environment = {key: value for key, value in os.environ.items() if key != 'LD_LIBRARY_PATH'}
    environment['MONO_PATH'] = folder
    done = subprocess.run([mono, tests, 'exit'], env=environment, capture_output=True, text=True, timeout=300)
    tap.check(done.returncode == 0 and 'leaving with' in done.stdout, what, done.stdout + done.stderr)


with tempfile.TemporaryDirectory() as scratch:
    package.extractall(scratch)
    works(scratch + '/lib/net472', 'an unpacked package works by itself')
with tempfile.TemporaryDirectory() as scratch:
    for name in names:
        if name.startswith(('lib/net472/', 'runtimes/')):
            pathlib.Path(scratch, os.path.basename(name)).write_bytes(package.read(name))
    works(scratch, 'so do all of its files in one folder')
tap.finish()
