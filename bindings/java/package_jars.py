# SPDX-License-Identifier: Apache-2.0
"""The jars that a Maven repository wants beside gmm.jar.

Usage: package_jars.py JAVADOC JAR VALUES SOURCES_JAR JAVADOC_JAR SOURCE...

VALUES is the folder of the classes that generate.py wrote. The same input gives the same jars.
"""
import pathlib
import subprocess
import sys
import tempfile
import zipfile


def write(output, root, files, renamed=None):
    names = {**{file: file.relative_to(root).as_posix() for file in files}, **(renamed or {})}
    with zipfile.ZipFile(output, 'w', zipfile.ZIP_DEFLATED) as jar:
        for file, name in sorted(names.items(), key=lambda item: item[1]):
            jar.writestr(zipfile.ZipInfo(name, (2000, 1, 1, 0, 0, 0)), file.read_bytes(), zipfile.ZIP_DEFLATED)


javadoc, classes, values, sources_jar, javadoc_jar, *names = sys.argv[1:]
sources = [pathlib.Path(name).resolve() for name in names]
root = next(parent for parent in sources[0].parents if parent.name == 'src')
values = sorted(pathlib.Path(values).glob('*.java'))
write(sources_jar, root, sources, {file: f'io/gmm/{file.name}' for file in values})
with tempfile.TemporaryDirectory() as scratch:
    # SWIG's classes are package-private: no source of theirs is documented.
    done = subprocess.run([javadoc, '-quiet', '-notimestamp', '-Xdoclint:none', '-encoding', 'UTF-8', '--release', '11',
                           '-classpath', classes, '-d', scratch, *map(str, sources + values)], capture_output=True,
                          text=True)
    made = pathlib.Path(scratch)
    if done.returncode != 0 or not (made / 'io' / 'gmm' / 'Context.html').exists():
        sys.exit(done.stdout + done.stderr)
    write(javadoc_jar, made, [file for file in made.rglob('*') if file.is_file()])
