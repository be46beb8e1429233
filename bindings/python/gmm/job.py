# SPDX-License-Identifier: Apache-2.0
"""Whole processes leave the GPU by the driver's checkpoint.

A pause leaves contexts, communicators, graphs and workspaces of libraries on the GPU. suspend_process() takes a whole
process off it, by the driver's checkpoint, and resume_process() brings it back:

    gmm.pause()                                     # gmm copies its tags faster than the driver does
    suspended = gmm.job.suspend_process()           # this process, or those with the given numbers
    ...                                             # no call of CUDA or gmm here: it would wait
    gmm.job.resume_process(suspended)
    gmm.resume()
"""
from gmm._suspend import (
    CheckpointError, ProcessState, ProcessStuckError, Suspended, process_state, resume_process, suspend_process)

__all__ = ["CheckpointError", "ProcessState", "ProcessStuckError", "Suspended", "process_state", "resume_process",
           "suspend_process"]

for _public in (CheckpointError, ProcessState, ProcessStuckError, Suspended, process_state, resume_process,
                suspend_process):
    _public.__module__ = __name__
del _public
