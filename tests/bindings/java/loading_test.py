# SPDX-License-Identifier: Apache-2.0
"""How the native libraries are found, and what else a package has.

Usage: loading_test.py JAVA JAR TESTS_JAR LIBRARY [SOURCES_JAR JAVADOC_JAR]
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / 'support'))
import tap  # noqa: E402

java, jar, tests, library, *package = sys.argv[1:]
library = pathlib.Path(library)


def run(classpath, *options):
    done = subprocess.run([java, *options, '-cp', f'{classpath}:{tests}', 'io.gmm.Child', 'exit'], capture_output=True,
                          text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    names = zipfile.ZipFile(jar).namelist()
    natives = [name for name in names if name.startswith('META-INF/native/linux-') and '.so' in name]
    tap.check(len(natives) == 2, 'the jar holds both libraries', str(natives))
    tap.check(not [name for name in names if name.endswith('Test.class')], 'the jar holds no test')

    pom = xml.etree.ElementTree.fromstring(zipfile.ZipFile(jar).read('META-INF/maven/io.gmm/gmm/pom.xml'))
    coordinates = [pom.findtext(f'{{*}}{part}') for part in ('groupId', 'artifactId', 'version')]
    manifest = zipfile.ZipFile(jar).read('META-INF/MANIFEST.MF').decode()
    tap.check(coordinates[:2] == ['io.gmm', 'gmm'] and f'Implementation-Version: {coordinates[2]}' in manifest,
              'the jar has its pom, of its version', str(coordinates))
    if package:
        held = [set(zipfile.ZipFile(one).namelist()) for one in package]
        classes = {name for name in names if name.startswith('io/gmm/') and name[7:8].isupper() and '$' not in name
                   and not name.startswith('io/gmm/Native')}
        sources = {name.replace('.class', '.java') for name in classes}
        tap.check(sources <= held[0], 'the jar of sources has all classes', str(sources - held[0]))
        tap.check({'index.html', 'io/gmm/GmmBuffer.html', 'io/gmm/Context.html'} <= held[1],
                  'the jar of documentation has the public classes')

    def works(classpath, what, *options):
        code, said = run(classpath, *options)
        tap.check(code == 0 and 'leaving with' in said, what, said)

    def explained(classpath, what, words, *options):
        code, said = run(classpath, *options)
        tap.check(code == 1 and all(word in said for word in words), what, said)

    empty, moved, bare = scratch / 'empty', scratch / 'moved.jar', scratch / 'bare.jar'
    empty.mkdir(mode=0o700)
    shutil.copy(jar, moved)
    with zipfile.ZipFile(jar) as full, zipfile.ZipFile(bare, 'w') as without:
        for name in names:
            if not name.startswith('META-INF/native'):
                without.writestr(name, full.read(name))
    works(moved, 'a jar that was moved works by itself', f'-Djava.io.tmpdir={empty}')
    tap.check(not [name for name in os.listdir(empty) if name.startswith('gmm-')],
              'nothing is left in the temporary directory', str(os.listdir(empty)))
    works(jar, 'gmm.library.path takes the libraries from a folder', f'-Dgmm.library.path={library.parent}',
          f'-Djava.io.tmpdir={scratch}/missing')
    explained(jar, 'a folder without them is named in the error', ['UnsatisfiedLinkError', f'{scratch}/nowhere'],
              f'-Dgmm.library.path={scratch}/nowhere')
    explained(jar, 'a temporary directory that is missing is explained', ['could not be unpacked', 'java.io.tmpdir'],
              f'-Djava.io.tmpdir={scratch}/missing')
    explained(bare, 'a jar without libraries is explained', ['holds no native library'], f'-Djava.library.path={empty}')
    works(bare, 'it takes the libraries that the system has', f'-Djava.library.path={library.parent}')
tap.finish()
