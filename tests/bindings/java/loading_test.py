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
        tap.check('META-INF/versions/22/io/gmm/Segments.java' in held[0] and sources <= held[0],
                  'the jar of sources has all classes', str(sources - held[0]))
        tap.check({'index.html', 'io/gmm/GmmBuffer.html', 'io/gmm/Context.html'} <= held[1],
                  'the jar of documentation has the public classes')

    empty = scratch / 'empty'
    empty.mkdir(mode=0o700)
    alone = scratch / 'moved'
    alone.mkdir()
    shutil.copy(jar, alone / 'gmm.jar')
    code, said = run(alone / 'gmm.jar', f'-Djava.io.tmpdir={empty}')
    tap.check(code == 0 and 'leaving with' in said, 'a jar that was moved works by itself', said)
    tap.check(not [name for name in os.listdir(empty) if name.startswith('gmm-')],
              'nothing is left in the temporary directory', str(os.listdir(empty)))

    code, said = run(jar, f'-Dgmm.library.path={library.parent}', f'-Djava.io.tmpdir={scratch}/missing')
    tap.check(code == 0 and 'leaving with' in said, 'gmm.library.path takes the libraries from a folder', said)

    code, said = run(jar, f'-Dgmm.library.path={scratch}/nowhere')
    tap.check(code == 1 and 'UnsatisfiedLinkError' in said and f'{scratch}/nowhere' in said,
              'a folder without them is named in the error', said)

    code, said = run(jar, f'-Djava.io.tmpdir={scratch}/missing')
    tap.check(code == 1 and 'could not be unpacked' in said and 'java.io.tmpdir' in said,
              'a temporary directory that is missing is explained', said)

    bare = scratch / 'bare.jar'
    with zipfile.ZipFile(jar) as full, zipfile.ZipFile(bare, 'w') as without:
        for name in names:
            if not name.startswith('META-INF/native'):
                without.writestr(name, full.read(name))
    code, said = run(bare, f'-Djava.library.path={empty}')
    tap.check(code == 1 and 'holds no native library' in said, 'a jar without libraries is explained', said)
    code, said = run(bare, f'-Djava.library.path={library.parent}')
    tap.check(code == 0 and 'leaving with' in said, 'it takes those that the system has', said)

tap.finish()
