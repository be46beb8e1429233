# SPDX-License-Identifier: Apache-2.0
"""The NuGet package: package_test.py MONO FOLDER TESTS.EXE. Unpacked elsewhere, it works without the build folder."""
import glob
import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
import zipfile

mono, folder, tests = sys.argv[1:]
count = 0
failed = 0


def case(passed, name, details=''):
    global count, failed
    count += 1
    failed += not passed
    for line in [] if passed else details.splitlines():
        print(f'# {line}')
    print(f"{'ok' if passed else 'not ok'} {count} - {name}", flush=True)


packages = glob.glob(folder + '/*.nupkg')
case(len(packages) == 1, 'one package', str(packages))
package = zipfile.ZipFile(packages[0])
names = package.namelist()
case([name for name in names if name.startswith('runtimes/linux-') and name.endswith('/native/libgmm_csharp.so')] != []
     and [name for name in names if '/native/libgmm.so' in name] != [], 'native libraries under runtimes/', str(names))
case('lib/net472/Gmm.dll' in names, 'the assembly', str(names))
case(xml.etree.ElementTree.fromstring(package.read('Gmm.nuspec')) is not None and b'@VERSION@' not in package.read('Gmm.nuspec'), 'a nuspec with a version')
for name in names:
    if name.endswith(('.xml', '.rels', '.config')):
        xml.etree.ElementTree.fromstring(package.read(name))
case(True, 'every XML file of it can be read')

project = pathlib.Path(__file__).parents[3] / 'bindings' / 'csharp' / 'Gmm.csproj'
frameworks = xml.etree.ElementTree.parse(project).find('.//TargetFrameworks').text
case(frameworks == 'netstandard2.0;net8.0', 'the frameworks of Gmm.csproj', frameworks)

with tempfile.TemporaryDirectory() as scratch:
    package.extractall(scratch)
    environment = {key: value for key, value in os.environ.items() if key != 'LD_LIBRARY_PATH'}
    environment['MONO_PATH'] = scratch + '/lib/net472'
    done = subprocess.run([mono, tests, 'child', 'exit'], env=environment, capture_output=True, text=True, timeout=300)
    case(done.returncode == 0 and 'leaving with' in done.stdout, 'an unpacked package works by itself', done.stdout + done.stderr)

print(f'1..{count}')
sys.exit(failed != 0)
