# SPDX-License-Identifier: Apache-2.0
"""lib/backend/cuda/driver_api.h says what cuda.h says: numbers, layouts and signatures.

Usage: driver_api_test.py ROOT FOLDER_OF_CUDA_H COMPILER...
The headers that the packages in .deps bring are looked at too. A name that an older cuda.h lacks is left out there.
"""

import pathlib
import re
import subprocess
import sys

root, folder, compiler = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
page = (root / "lib/backend/cuda/driver_api.h").read_text(encoding="utf-8")

numbers = re.findall(r"^  (CU\w+) = (-?\d+),$", page, re.M)
structs = dict(re.findall(r"^struct (CU\w+) \{\n(.*?)^\};", page, re.M | re.S))
fields = [
    (struct, field)
    for struct, body in structs.items()
    for field in re.findall(r"^  (?! )(?:[\w ]+ \*?|\} )(\w+)(?:\[\d+\])?;$", body, re.M)
]
flat = page.replace("\\\n", " ")
entries = re.findall(r"X\((cu\w+), (\d+), +\(([^()]*)\)\)", re.sub(r"\s+", " ", flat))


def differences(cuda_h):
    """What the compiler says of the page beside this cuda.h; and how many statements it judged."""
    known = set(re.findall(r"\b[cC][uU]\w+", cuda_h.read_text(encoding="utf-8")))
    lines = ['#include "backend/cuda/driver_api.h"', "namespace own = gmm::cuda;"]
    # Before cuda.h, whose macros have the names of some constants.
    sizes = [struct for struct in structs if struct in known]
    offsets = [(struct, field) for struct, field in fields if struct in known]
    lines += [f"constexpr size_t size_{struct} = sizeof(own::{struct});" for struct in sizes]
    lines += [f"constexpr size_t {struct}_{field} = offsetof(own::{struct}, {field});" for struct, field in offsets]
    lines += ["#include <cuda.h>", "#include <type_traits>"]
    lines += [f"static_assert(size_{struct} == sizeof({struct}));" for struct in sizes]
    lines += [f"static_assert({struct}_{field} == offsetof({struct}, {field}));" for struct, field in offsets]
    told = [(name, number) for name, number in numbers if name in known]
    lines += [f'static_assert(static_cast<long long>({name}) == {number}, "{name}");' for name, number in told]
    lines += [
        f'static_assert(std::is_same_v<decltype(&{entry}), CUresult(CUDAAPI *)({parameters})>, "{entry}");'
        for entry, _, parameters in entries
    ]
    command = [*compiler, "-std=c++20", "-fsyntax-only", f"-I{root}/lib", f"-I{cuda_h.parent}", "-x", "c++", "-"]
    run = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=False)
    wrong = [line for line in run.stderr.splitlines() if "error" in line] or ["?"] * bool(run.returncode)
    return wrong, len(sizes) + len(offsets) + len(told) + len(entries)


def main():
    headers = {folder / "cuda.h", *root.glob(".deps/cuda*/nvidia/*/include/cuda.h")}
    count, failed = 0, False

    def report(ok, words):
        nonlocal count, failed
        count += 1
        failed |= not ok
        print(f"{'ok' if ok else 'not ok'} {count} - {words}")

    counts = [len(numbers), len(structs), len(fields), len(entries)]
    report(counts == [page.count(" = ", page.index("enum CUresult"), page.index("struct CUuuid")), 12, 32,
                      page.count("X(cu")], "the page is read whole")
    print(f"# {len(numbers)} numbers, {len(structs)} structs of {len(fields)} fields, {len(entries)} entries")
    for cuda_h in sorted(headers):
        version = int(re.search(r"#define CUDA_VERSION (\d+)", cuda_h.read_text(encoding="utf-8"))[1])
        wrong, statements = differences(cuda_h)
        for line in wrong[:20]:
            print("#", line)
        report(not wrong, f"{statements} statements agree with cuda.h of {version // 1000}.{version % 1000 // 10}")
    print(f"1..{count}")
    return failed


sys.exit(main())
