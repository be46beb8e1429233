# SPDX-License-Identifier: Apache-2.0
"""Makes a NuGet package of the assembly and the native libraries: a zip file, and the same unpacked in nuget/."""
import argparse
import pathlib
import shutil
import zipfile

TYPES = '''<?xml version="1.0" encoding="utf-8"?>
<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">
  <Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml" />
  <Default Extension="nuspec" ContentType="application/octet" />
  <Default Extension="dll" ContentType="application/octet" />
  <Default Extension="xml" ContentType="application/octet" />
  <Default Extension="config" ContentType="application/octet" />
  <Default Extension="so" ContentType="application/octet" />
  <Default Extension="0" ContentType="application/octet" />
</Types>
'''
RELATIONS = '''<?xml version="1.0" encoding="utf-8"?>
<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">
  <Relationship Type="http://schemas.microsoft.com/packaging/2010/07/manifest" Target="/Gmm.nuspec" Id="R1" />
</Relationships>
'''

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument('--version', required=True)
parser.add_argument('--runtime', required=True, help='for example linux-x64')
parser.add_argument('--nuspec', required=True)
parser.add_argument('--file', action='append', default=[], metavar='NAME=FILE')
parser.add_argument('--native', action='append', default=[], metavar='NAME=FILE')
parser.add_argument('--output', required=True)
options = parser.parse_args()

contents = {'Gmm.nuspec': pathlib.Path(options.nuspec).read_text().replace('@VERSION@', options.version).encode(),
            '_rels/.rels': RELATIONS.encode(),
            '[Content_Types].xml': TYPES.encode()}
for item in options.file:
    name, file = item.split('=', 1)
    contents[name] = pathlib.Path(file).read_bytes()
for item in options.native:
    name, file = item.split('=', 1)
    contents[f'runtimes/{options.runtime}/native/{name}'] = pathlib.Path(file).read_bytes()

folder = pathlib.Path(options.output).parent / 'nuget'
shutil.rmtree(folder, ignore_errors=True)
with zipfile.ZipFile(options.output, 'w', zipfile.ZIP_DEFLATED) as package:
    for name, content in contents.items():
        package.writestr(zipfile.ZipInfo(name, (2000, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
