#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Skips a test that could not be built. Usage: skip.sh REASON
echo "1..0 # SKIP $1"
