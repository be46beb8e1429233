# SPDX-License-Identifier: Apache-2.0
"""Ranks that pause as one. Usage: job.py [RANKS]. It needs no GPU and no other library."""
import multiprocessing
import sys
import tempfile

import gmm
from gmm import job as jobs

SIZE = 32 << 20


def work(folder, rank, ranks):
    with gmm.Context() as context:
        tag = context.tag("weights", gmm.Contents.HOST)
        with context.alloc(SIZE, gmm.Kind.VMM, tag=tag) as weights:
            memoryview(weights).cast("B")[:] = bytes([rank + 1]) * SIZE
            with jobs.Job(jobs.Folder(folder), rank=rank, ranks=ranks, context=context) as job:
                # Every rank gives its memory up, or none does.
                with job.paused(tag) as info:
                    held = context.tag_info(tag).active_bytes
                    if rank == 0:
                        print(f"epoch {info.epoch}: {ranks} ranks released {info.job_bytes >> 20} MiB; held: {held}")
                assert bytes(memoryview(weights)) == bytes([rank + 1]) * SIZE

                # One rank refuses, so all go on as before.
                watcher = context.watch(tag, prepare=lambda info: False, name="cache") if rank == ranks - 1 else None
                try:
                    job.pause(tag)
                except gmm.BusyError as error:
                    if rank == 0:
                        print(f"epoch {job.info().epoch}: refused by rank {job.info().failed_rank}: {error}")
                if watcher is not None:
                    watcher.close()
                assert context.tag_info(tag).paused_bytes == 0
                assert bytes(memoryview(weights)) == bytes([rank + 1]) * SIZE


def main():
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        started = [spawn.Process(target=work, args=(folder, rank, ranks)) for rank in range(ranks)]
        for process in started:
            process.start()
        for process in started:
            process.join()
    if any(process.exitcode != 0 for process in started):
        sys.exit("a rank failed")


if __name__ == "__main__":
    main()
