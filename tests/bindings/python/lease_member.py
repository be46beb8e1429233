# SPDX-License-Identifier: Apache-2.0
"""A process with a lease of the fake driver's device: it carries out the commands of stdin and answers, a line each."""
import json
import sys

import gmm
from gmm.lease import Lease

MIB = 1 << 20


class Member:
    """One lease and one tag."""

    def __init__(self):
        self.context = gmm.Context("cuda")
        self.tag = self.context.tag("weights", gmm.Contents.HOST)
        self.block = None
        self.lease = Lease("other", [self.tag], residency=0.001, context=self.context)

    def alloc(self, mib):
        self.block = self.context.alloc(mib * MIB, gmm.Kind.VMM, tag=self.tag)
        self.block.fill(3)

    def check(self):
        return bytes(self.block) == b"\3" * self.block.nbytes

    def request(self, mib=0, timeout=60.0):
        try:
            return {"resumed": self.lease.request(mib * MIB, timeout=timeout)}
        except gmm.Error as error:
            return {"error": type(error).__name__, "message": str(error)}

    def release(self):
        return self.lease.release()


member = Member()
for line in sys.stdin:
    command, *arguments = json.loads(line)
    print(json.dumps(getattr(member, command)(*arguments)), flush=True)
member.context.close()
