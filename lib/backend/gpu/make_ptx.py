#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles find_zeros.cu by the CUDA Toolkit's nvcc into PTX, as a header.

Usage: make_ptx.py [OUTPUT [NVCC]]      OUTPUT: find_zeros_ptx.h beside this file, which a build without nvcc takes

The driver compiles PTX for its device, and refuses PTX that is newer than itself. nvcc states its own version, and the
oldest device that it still knows. The kernel needs neither: it has instructions that each device and driver of gmm
knows. So the header states PTX 6.0 for sm_50, and ptxas, which knows what these may hold, compiles it as a proof.
If nvcc does not work with this system's compiler, a build takes the header of the sources, with a warning.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

here = pathlib.Path(__file__).resolve().parent
ours = here / "find_zeros_ptx.h"


def compile_kernel(nvcc):
    options = ["--ptx", "-std=c++20", "-allow-unsupported-compiler", "-I", here.parents[1],
               "-I", here.parents[2] / "include"]
    ptxas = pathlib.Path(nvcc).with_name("ptxas") if "/" in nvcc else "ptxas"
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder) / "find_zeros.ptx"
        subprocess.run([nvcc, *options, "-o", made, here / "find_zeros.cu"], check=True)
        ptx = re.sub(r"(?m)^\.version .*$", ".version 6.0", made.read_text(encoding="utf-8"))
        target = re.search(r"(?m)^\.target (sm_\d+)", ptx)[1]
        ptx = ptx.replace(f".target {target}", ".target sm_50")
        made.write_text(ptx, encoding="utf-8")
        subprocess.run([ptxas, "--gpu-name", target, "-o", pathlib.Path(folder) / "find_zeros.cubin", made], check=True)
    return ptx


def header_of(ptx):
    # Without nvcc's comments, which name its build.
    code = "\n".join("  " * line.startswith("\t") + " ".join(line.split()) for line in ptx.splitlines()
                     if line.strip() and not line.lstrip().startswith("//"))
    return f"""// SPDX-License-Identifier: Apache-2.0
// find_zeros.cu as PTX, made by make_ptx.py. Do not edit.
#ifndef GMM_BACKEND_GPU_FIND_ZEROS_PTX_H
#define GMM_BACKEND_GPU_FIND_ZEROS_PTX_H

namespace gmm::gpu {{

inline constexpr char kFindZeros[] = R"(
{code}
)";

}}  // namespace gmm::gpu
#endif
"""


def main():
    output = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ours
    try:
        header = header_of(compile_kernel(sys.argv[2] if len(sys.argv) > 2 else "nvcc"))
    except (OSError, subprocess.CalledProcessError) as error:
        if output.resolve() == ours:
            raise
        print(f"warning: nvcc does not work here ({error}); the build takes {ours.name} of the sources",
              file=sys.stderr)
        shutil.copyfile(ours, output)
        return
    output.write_text(header, encoding="utf-8")


main()
