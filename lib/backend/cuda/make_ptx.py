#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles find_zeros.cu by the CUDA Toolkit's nvcc into PTX, as a header.

Usage: make_ptx.py [OUTPUT [NVCC]]      OUTPUT: find_zeros_ptx.h beside this file, which a build without nvcc takes

The driver compiles PTX for its device, and refuses PTX that is newer than itself. nvcc states its own version, and the
oldest device that it still knows. The kernel needs neither: it has instructions that each device and driver of gmm
knows. So the header states PTX 6.0 for sm_50, and ptxas, which knows what these may hold, compiles it as a proof.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

here = pathlib.Path(__file__).resolve().parent
output = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "find_zeros_ptx.h"
nvcc = sys.argv[2] if len(sys.argv) > 2 else "nvcc"

with tempfile.TemporaryDirectory() as folder:
    made = pathlib.Path(folder) / "find_zeros.ptx"
    options = ["--ptx", "-std=c++20", "-allow-unsupported-compiler", "-I", here.parents[1],
               "-I", here.parents[2] / "include"]
    subprocess.run([nvcc, *options, "-o", made, here / "find_zeros.cu"], check=True)
    ptx = made.read_text(encoding="utf-8")
    ptx = re.sub(r"(?m)^\.version .*$", ".version 6.0", ptx)
    ptx, target = re.sub(r"(?m)^\.target sm_\d+$", ".target sm_50", ptx), re.search(r"\.target (sm_\d+)", ptx)[1]
    made.write_text(ptx, encoding="utf-8")
    subprocess.run([pathlib.Path(nvcc).with_name("ptxas") if "/" in nvcc else "ptxas", "--gpu-name", target,
                    "-o", pathlib.Path(folder) / "find_zeros.cubin", made], check=True)

# Without nvcc's remarks, which name its build.
code = "\n".join("  " * line.startswith("\t") + " ".join(line.split()) for line in ptx.splitlines()
                 if line.strip() and not line.lstrip().startswith("//"))
output.write_text(f"""// SPDX-License-Identifier: Apache-2.0
// find_zeros.cu as PTX, made by make_ptx.py. Do not edit.
#ifndef GMM_BACKEND_CUDA_FIND_ZEROS_PTX_H
#define GMM_BACKEND_CUDA_FIND_ZEROS_PTX_H

namespace gmm::cuda {{

inline constexpr char kFindZeros[] = R"(
{code}
)";

}}  // namespace gmm::cuda
#endif
""", encoding="utf-8")
