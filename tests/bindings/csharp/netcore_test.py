# SPDX-License-Identifier: Apache-2.0
"""Runs the tests on .NET: netcore_test.py MCS BUILD_FOLDER NATIVE_FOLDER TESTS.EXE calls|lifecycle|lease|span.

The programs are those that ran on Mono, with the package's assembly for netstandard2.0. For the spans mcs compiles all
sources, those of src/netcore too, against the assemblies of a .NET Core 3.1 runtime. PyPI has one:
    pip install --no-deps --target .deps/dotnet dotnetcore2
Without it the test is skipped. The build with the .NET SDK (Gmm.csproj) is another matter.
"""
import glob
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

mcs, build, native, tests, mode = sys.argv[1:]
here = pathlib.Path(__file__).parent
root = here.parents[2]
home = root / '.deps' / 'dotnet' / 'dotnetcore2' / 'bin'
runtimes = glob.glob(f'{home}/shared/Microsoft.NETCore.App/3.1.*')
if not runtimes:
    print('1..0 # SKIP no .NET runtime in .deps/dotnet: pip install --no-deps --target .deps/dotnet dotnetcore2')
    sys.exit(0)

REFERENCES = ['System.Private.CoreLib', 'System.Collections', 'System.Collections.Specialized',
              'System.ComponentModel.Primitives', 'System.Console', 'System.Diagnostics.Process',
              'System.Diagnostics.TraceSource', 'System.IO.FileSystem', 'System.Linq', 'System.Memory',
              'System.Runtime', 'System.Runtime.Extensions', 'System.Runtime.Handles', 'System.Runtime.InteropServices',
              'System.Text.RegularExpressions', 'System.Threading', 'System.Threading.Thread',
              'System.Threading.ThreadPool', 'System.Private.Uri']


def compile(output, target, sources, *extra):
    references = [f'-reference:{runtimes[0]}/{name}.dll' for name in REFERENCES]
    command = [mcs, '-nostdlib', '-noconfig', '-unsafe', f'-target:{target}', f'-out:{output}', *references, *extra,
               *(str(source) for source in sources)]
    subprocess.run(command, check=True, stdout=sys.stderr)


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    program = scratch / 'tests.dll'
    if mode == 'span':
        layer = root / 'bindings' / 'csharp' / 'src'
        generated = pathlib.Path(build) / 'bindings' / 'csharp' / 'generated'
        compile(scratch / 'Gmm.dll', 'library',
                [*layer.glob('*.cs'), *layer.glob('netcore/*.cs'), *generated.rglob('*.cs')])
        compile(program, 'exe', [here / 'netcore' / 'SpanTest.cs', here / 'Tap.cs'], f'-reference:{scratch}/Gmm.dll')
    else:
        program = scratch / 'csharp-tests.dll'
        shutil.copy(tests, program)
        shutil.copy(pathlib.Path(native).parents[2] / 'lib' / 'netstandard2.0' / 'Gmm.dll', scratch)
    for library in glob.glob(native + '/*.so*'):
        shutil.copy(library, scratch)
    framework = {'name': 'Microsoft.NETCore.App', 'version': '3.1.0'}
    program.with_suffix('.runtimeconfig.json').write_text(json.dumps({'runtimeOptions': {'framework': framework}}))
    environment = dict(os.environ, DOTNET_SYSTEM_GLOBALIZATION_INVARIANT='1')
    dotnet = home / 'dotnet'
    os.chmod(dotnet, 0o755)
    sys.exit(subprocess.run([str(dotnet), str(program), *([] if mode == 'span' else [mode])],
                            env=environment).returncode)
