# SPDX-License-Identifier: Apache-2.0
"""Writes a source that compiles only where lib/backend/gpu/driver_api.h says what cuda.h says.

Usage: check_driver_api.py DRIVER_API_H CUDA_H OUTPUT

It compares numbers, layouts and signatures. A name that an older cuda.h lacks is left out, and so is the place of
reserved bytes, of which a newer one makes fields.
"""

import pathlib
import re
import sys

page, cuda_h = (pathlib.Path(path).read_text(encoding="utf-8") for path in sys.argv[1:3])
known = set(re.findall(r"\b[cC][uU]\w+", cuda_h))

numbers = [(name, number) for name, number in re.findall(r"^  (CU\w+) = (-?\d+),$", page, re.M) if name in known]
structs = re.findall(r"^typedef struct CU\w+_st \{\n(.*?)^\} (CU\w+);", page, re.M | re.S)
fields = [(struct, field) for body, struct in structs if struct in known
          for field in re.findall(r"^  (?! )(?:[\w ]+ \*?|\} )(\w+)(?:\[\d+\])?;$", body, re.M)]
fields += [(other, field) for known_as, other in re.findall(r"^typedef (CU\w+) (CU\w+);", page, re.M)
           for struct, field in fields if struct == known_as]
rows = re.sub(r"[\\\s]+", " ", page[page.index("#define GMM_CUDA_ENTRIES"):])
functions = [(name + suffix, parameters) for name, suffix, parameters in
             re.findall(r"[A-Z]+\((cu\w+), (\w*), \d+, (\([^()]*\))\)", rows) if name + suffix in known]
assert len(numbers) > 100 and len(fields) > 25 and len(functions) > 100, "the page is not read whole"

lines = ["#include <cstddef>", "#include <cstdint>", "namespace own {", '#include "backend/gpu/driver_api.h"']
# Before cuda.h, whose macros have the names of some constants.
for struct, field in fields:
    lines.append(f"constexpr size_t {struct}_{field} = offsetof({struct}, {field}), {struct}_{field}_end = "
                 f"{struct}_{field} + sizeof({struct}::{field}), size_of_{struct}_{field} = sizeof({struct});")
# By its symbols: a declaration of another type is an error.
lines += ["}", "#undef CU_STREAM_LEGACY", "#undef CU_STREAM_PER_THREAD", "#define __CUDA_API_VERSION_INTERNAL",
          "#include <cuda.h>", 'extern "C" {']
lines += [f"CUresult {symbol}{parameters};" for symbol, parameters in functions] + ["}"]
lines += [f'static_assert(static_cast<long long>({name}) == {number}, "{name}");' for name, number in numbers]
for struct, field in fields:
    place = "" if field.startswith("reserved") else (
        f"own::{struct}_{field} == offsetof({struct}, {field}) && "
        f"own::{struct}_{field}_end == offsetof({struct}, {field}) + sizeof({struct}::{field}) && ")
    lines.append(f'static_assert({place}own::size_of_{struct}_{field} == sizeof({struct}), "{struct}.{field}");')
pathlib.Path(sys.argv[3]).write_text("\n".join(lines) + "\n", encoding="utf-8")
