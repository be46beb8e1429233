# SPDX-License-Identifier: Apache-2.0
"""An addition to a header is in every language, with its documentation.

The test copies the headers, appends a field to each kind of struct, a flag, an enumerator and a function, and runs the
generator.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'tests' / 'support'))
import tap  # noqa: E402

ADDED = [
    ('context.h', '} gmm_device_info;', '  uint64_t added_bytes; /**< added to an answer */\n} gmm_device_info;'),
    ('memory.h', '} gmm_alloc_desc;', '  const char *added_text; /**< added to options */\n} gmm_alloc_desc;'),
    ('memory.h', '  GMM_STATE_REVOKED =', '  GMM_STATE_ADDED = 77, /**< added to an enum */\n  GMM_STATE_REVOKED ='),
    ('memory.h', '  GMM_POINTER_COMM =',
     '  GMM_POINTER_ADDED = 1u << 30, /**< added to flags */\n  GMM_POINTER_COMM ='),
    ('stats.h', '/**\n * Returns free memory to the driver.',
     '/** added to functions */\nGMM_API gmm_result gmm_added(gmm_context *context, const gmm_scope_desc *scope, '
     'uint64_t *bytes) GMM_NOEXCEPT;\n\n/**\n * Returns free memory to the driver.'),
]
# By language: the names of the field of the answer, that of the options, the enumerator, the flag and the method.
NAMES = {'java': ['public long addedBytes()', 'public AllocOptions addedText(String value)', 'ADDED(77)',
                  'public boolean added()', 'public long added(Scope scope)'],
         'csharp': ['public long AddedBytes', 'public string AddedText', 'Added = 77', 'public bool Added',
                    'public long Added(GmmScope scope)'],
         'python': ['added_bytes: int', None, 'ADDED = 77', 'ADDED = 1073741824', None]}

with tempfile.TemporaryDirectory() as scratch:
    include = pathlib.Path(scratch) / 'include'
    shutil.copytree(ROOT / 'include', include)
    for header, here, instead in ADDED:
        text = (include / 'gmm' / header).read_text()
        assert text.count(here) == 1, f'{header}: {here}'
        (include / 'gmm' / header).write_text(text.replace(here, instead))
    for language, names in NAMES.items():
        out = pathlib.Path(scratch) / language
        done = subprocess.run([sys.executable, str(ROOT / 'bindings/swig/generate.py'), '--language', language,
                               '--include', str(include), '--out', str(out)], capture_output=True, text=True)
        tap.check(done.returncode == 0, f'{language} is generated', done.stderr)
        text = '\n'.join(file.read_text() for file in out.glob('values/*' if language != 'python' else '*'))
        for name, what in zip(names, ['an answer', 'options', 'an enum', 'flags', 'functions']):
            if name:
                tap.check(name in text, f'{language}: what was added to {what}', text[-2000:])
                tap.check(f'Added to {what}.' in text, f'{language}: the documentation of it')
    # Each field has the place that the C compiler gives it: rule 4 of the interface allows no other.
    sys.path.insert(0, str(ROOT / 'bindings' / 'swig'))
    import generate
    model = generate.Model(ROOT / 'include')
    # Nothing is passed over in silence, should a declaration have a form that the generator does not know.
    text = '\n'.join(header.read_text() for header in (ROOT / 'include' / 'gmm').glob('*.h'))
    declared = set(re.findall(r'GMM_API\s+gmm_result\s+(gmm_\w+)(?=\(gmm_\w+ \*)', text))
    declared |= set(re.findall(r'^ +(GMM_\w+)(?:,| = )', text, re.M))
    found = {function.c_name for function in model.functions}
    found |= {item.c_name for enum in model.enums for item in enum.items if item.value is not None}
    tap.check(declared and declared <= found, 'every function of a handle and every enumerator is read',
              declared - found)
    program = pathlib.Path(scratch) / 'places.c'
    checks = [f'_Static_assert(sizeof({struct.c_name}) == {struct.size}, "");' for struct in model.values]
    checks += [f'_Static_assert(offsetof({struct.c_name}, {field.c_name}) == {field.at}, "");'
               for struct in model.values for field in struct.fields]
    program.write_text('#include <gmm/gmm.h>\n#include <stddef.h>\n' + '\n'.join(checks) + '\n')
    done = subprocess.run(['cc', '-std=c11', '-fsyntax-only', f'-I{ROOT / "include"}', str(program)],
                          capture_output=True, text=True)
    tap.check(done.returncode == 0 and len(checks) > 100, 'the places of all fields are those of C', done.stderr)
sys.exit(tap.end())
