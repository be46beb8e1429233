# SPDX-License-Identifier: Apache-2.0
# The reader of test results in shell. The scripts of tests/gpu source it.
# shellcheck shell=bash

# counts FILE: "N passed, N failed, N skipped" of output of GoogleTest or in the Test Anything Protocol; nothing without
# any.
counts() {
  awk '
    # The last count is the whole: programs that the tests start count before.
    /^\[ +PASSED +\] [0-9]+ tests?\./ { passed = $4; failed = skipped = 0; seen = 1 }
    /^\[ +FAILED +\] [0-9]+ tests?, listed/ { failed = $4; seen = 1 }
    /^\[ +SKIPPED +\] [0-9]+ tests?, listed/ { skipped = $4; seen = 1 }
    /^ok .*# SKIP/ { skipped++; seen = 1; next }
    /^ok / { passed++; seen = 1 }
    /^not ok / { failed++; seen = 1 }
    END { if (seen) printf "%d passed, %d failed, %d skipped", passed, failed, skipped }' "$1"
}
