# SPDX-License-Identifier: Apache-2.0
"""A process with a lease, for test_lease.py: it does what it is told on stdin, and answers on stdout, a line each."""
import json
import sys
import time

import gmm
from gmm.lease import Lease

MIB = 1 << 20


class Member:
    """One lease and one tag."""

    def __init__(self, backend, name, card_mib, options):
        memory = {"host_devices": 1, "host_memory": card_mib * MIB} if backend == "host" else {}
        self.context = gmm.Context(backend, **memory)
        self.tag = self.context.tag("weights", gmm.Contents.HOST)
        self.returns = options.pop("returns", False)
        self.asks = []
        self.block = None
        self.lease = Lease(name, [self.tag], residency=0.001, asked=self.asked, context=self.context, **options)

    def asked(self, ask):
        self.asks.append(ask._asdict())
        if self.returns:
            self.lease.release()

    def alloc(self, mib):
        self.block = self.context.alloc(mib * MIB, gmm.Kind.VMM, tag=self.tag)
        self.pattern = bytes((i * 7 + 3) & 255 for i in range(4096)) * (mib * MIB // 4096)
        self.block.copy_from(self.pattern)
        return True

    def check(self):
        found = bytearray(len(self.pattern))
        self.block.copy_to(found)
        return found == self.pattern

    def request(self, mib=0, timeout=60.0):
        start = time.monotonic()
        try:
            return {"resumed": self.lease.request(mib * MIB, timeout=timeout)}
        except gmm.Error as error:
            return {"error": type(error).__name__, "message": str(error), "seconds": time.monotonic() - start}

    def release(self):
        return self.lease.release()

    def info(self):
        return {**self.lease.info()._asdict(), "asks": self.asks}


def main():
    backend, name, card_mib, options = sys.argv[1:]
    member = Member(backend, name, int(card_mib), json.loads(options))
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        print(json.dumps(getattr(member, command)(*arguments)), flush=True)
    member.lease.close()
    if member.block is not None:
        member.block.free()
    member.context.close()


if __name__ == "__main__":
    main()
