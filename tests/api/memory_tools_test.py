# SPDX-License-Identifier: Apache-2.0
"""valgrind and the address sanitizer report mistakes with memory of the pool, by a library that was built without
either, and nothing else.

Usage: memory_tools_test.py VALGRIND PROGRAM PROGRAM_WITH_ADDRESS_SANITIZER          pool_mistakes
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

ADDRESS = r"ERROR: AddressSanitizer: use-after-poison"
STACK = r"(?:.*\n)*?.* by 0x\w+: allocate_weights"
# By mistake: what valgrind says, and the address sanitizer. Without a pattern: neither says anything.
MISTAKES = {
    "none": ("", ""),
    "overrun": (r"Invalid write of size 1\n(?:.*\n)*?.*0 bytes after a block of size 1,000 alloc'd" + STACK,
                ADDRESS),
    "reuse": (r"Invalid write of size 1\n(?:.*\n)*?.*500 bytes inside a block of size 1,000 free'd"
              r"(?:.*\n)*?.*HeapChecks::freed" + STACK, ADDRESS),
}


def check(tool, command, mistake, pattern, **environment):
    done = subprocess.run([*command, mistake], capture_output=True, text=True, check=False,
                          env={**os.environ, "GMM_BACKEND": "host", "ASAN_OPTIONS": "detect_leaks=0", **environment})
    passed = (done.returncode != 0 and re.search(pattern, done.stderr)) if pattern else done.returncode == 0
    tap.check(passed, f"{tool}: {mistake} {environment.get('GMM_DEBUG', '')}",
              [f"exit code {done.returncode}", *done.stderr.splitlines()[:60]])


def main():
    valgrind_command, program, with_address = sys.argv[1:]
    for mistake, (valgrind, address) in MISTAKES.items():
        check("address sanitizer", [with_address], mistake, address)
        if shutil.which(valgrind_command) is None:
            tap.skip(f"valgrind: {mistake}", "it is not installed, or gmm was built without its header")
        else:
            check("valgrind", ["valgrind", "--error-exitcode=9", program], mistake, valgrind)
    check("address sanitizer", [with_address], "none", "", GMM_DEBUG="redzone,poison,quarantine")
    check("address sanitizer", [with_address], "overrun", "", GMM_DEBUG="off")
    tap.finish()


main()
