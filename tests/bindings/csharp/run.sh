#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh FOLDER_OF_GMM_DLL MONO PROGRAM ARGUMENT...
MONO_PATH=$1
export MONO_PATH
shift
exec "$@"
