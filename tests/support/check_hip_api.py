# SPDX-License-Identifier: Apache-2.0
"""Writes a source that compiles only where lib/backend/gpu/hip_api.h says what HIP's headers say.

Usage: check_hip_api.py HIP_API_H HIP_RUNTIME_API_H OUTPUT

It compares numbers and layouts, and how parameters are passed. A name that an older header lacks is left out, and so
are the numbers and layouts that ROCm changed before 6.0.
"""

import pathlib
import re
import sys

page, runtime = (pathlib.Path(path).read_text(encoding="utf-8", errors="replace") for path in sys.argv[1:3])
types = pathlib.Path(sys.argv[2]).with_name("driver_types.h").read_text(encoding="utf-8", errors="replace")
known = set(re.findall(r"\b[hH][iI][pP]\w+", runtime + types))
page = re.sub(r"[\\\s]+", " ", page)

same = [row for row in re.findall(r"\bSAME\((cu\w+), (\w*), (hip\w+)\)", page) if row[2] in known]
own = [name for name in re.findall(r"\b(?:REQUIRED|OPTIONAL)\((hip\w+), \(", page) if name in known]
attributes = [row for row in re.findall(r"\bATTRIBUTE\(\w+, (hip\w+), (\d+)\)", page) if row[0] in known]
numbers = [row for row in re.findall(r"\bNUMBER\((CU\w+), (\w+)\)", page) if row[1] in known]
for name, number in (("hipStreamLegacy", 1), ("hipStreamPerThread", 2)):  # pointers are no constants for the compiler
    defined = re.search(rf"#define {name} +(\S.*)", runtime)
    assert defined is None or defined[1] == f"((hipStream_t){number})", name
assert len(same) > 50 and len(own) > 12 and len(attributes) > 4 and len(numbers) > 55, "the page is not read whole"
structs = {  # CUDA's, HIP's, and their fields in order
    ("CUmemLocation", "hipMemLocation"): "type id",
    ("CUmemAccessDesc", "hipMemAccessDesc"): "location flags",
    ("CUmemAllocationProp", "hipMemAllocationProp"):
        "type requestedHandleTypes:requestedHandleType location win32HandleMetaData allocFlags.gpuDirectRDMACapable",
    ("CUuuid", "hipUUID"): "bytes",
    ("CUipcMemHandle", "hipIpcMemHandle_t"): "reserved",
    ("CUipcEventHandle", "hipIpcEventHandle_t"): "reserved",
    ("CUDA_EXTERNAL_MEMORY_HANDLE_DESC", "hipExternalMemoryHandleDesc"): "type handle size flags",
    ("CUDA_EXTERNAL_MEMORY_BUFFER_DESC", "hipExternalMemoryBufferDesc"): "offset size flags",
    ("CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC", "hipExternalSemaphoreHandleDesc"): "type handle flags",
    ("CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS", "hipExternalSemaphoreSignalParams"): "params.fence.value flags",
    ("CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS", "hipExternalSemaphoreWaitParams"): "params.fence.value flags",
}

lines = ["#define __HIP_PLATFORM_AMD__", "#include <hip/hip_runtime_api.h>", '#include "backend/gpu/hip_api.h"', """
#include <type_traits>
namespace {
// Two types that a call passes alike: numbers and pointers of one size, or structs of one size.
template <class A, class B>
constexpr bool alike = sizeof(A) == sizeof(B) && std::is_class_v<A> == std::is_class_v<B> &&
                       std::is_floating_point_v<A> == std::is_floating_point_v<B>;
template <class A, class B>
struct Alike : std::false_type {};
template <class R, class... A, class S, class... B>
  requires(sizeof...(A) == sizeof...(B))
struct Alike<R(A...), S(B...)> : std::bool_constant<alike<R, S> && (alike<A, B> && ...)> {};
}"""]
pairs = [(name + suffix, hip) for name, suffix, hip in same] + [(name, name) for name in own]
# In C++ these have templates beside the function.
overloaded = {"hipMalloc": "hipError_t(void **, size_t)", "hipMallocManaged": "hipError_t(void **, size_t, unsigned)"}
for ours, hip in pairs:
    theirs = overloaded.get(hip, f"decltype(::{hip})")
    lines += [f'static_assert(Alike<{ours}_fn, {theirs}>::value, "{hip}");',
              f"std::type_identity_t<{theirs}> *const {ours}_is = &::{hip};"]
lines += ["#if HIP_VERSION_MAJOR >= 6", "static_assert(hipMemcpyDefault == 4);"]
lines += [f'static_assert(static_cast<long long>({name}) == {number}, "{name}");' for name, number in attributes]
lines += [f'static_assert((long long)({ours}) == (long long)({hip}), "{hip}");' for ours, hip in numbers]
for (ours, hip), fields in structs.items():
    for field in fields.split():
        our_field, _, hip_field = field.partition(":")
        lines.append(f"static_assert(offsetof({ours}, {our_field}) == offsetof({hip}, {hip_field or our_field}) && "
                     f'sizeof({ours}) == sizeof({hip}), "{hip}.{our_field}");')
lines.append("#endif")
pathlib.Path(sys.argv[3]).write_text("\n".join(lines) + "\n", encoding="utf-8")
