# SPDX-License-Identifier: Apache-2.0
"""Runs SWIG for a language that gets one file a class: run_swig.py FOLDER SWIG ARGUMENT...

FOLDER is emptied first, so that no class of an older interface is left in it.
"""
import pathlib
import shutil
import subprocess
import sys

folder = pathlib.Path(sys.argv[1])
shutil.rmtree(folder, ignore_errors=True)
folder.mkdir(parents=True)
sys.exit(subprocess.run(sys.argv[2:4] + ['-outdir', str(folder)] + sys.argv[4:]).returncode)
