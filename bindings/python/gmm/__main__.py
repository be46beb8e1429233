# SPDX-License-Identifier: Apache-2.0
"""python -m gmm: the version of the library, and the devices and kinds that a backend finds here."""
import argparse

from gmm import _native as native
from gmm._context import Context
from gmm._core import words
from gmm._core.enums import Backend
from gmm._core.errors import Error


def report(backend):
    """The lines about one backend; "auto" is the one that a program gets."""
    with Context(backend) as context:
        info = context.info
        yield f"backend {info.backend_name}, driver {info.driver_version or 'none'}"
        for number in range(info.device_count):
            device = context.device_info(number)
            yield (f"  device {number}: {device.name}, {words.size(device.free_memory)} of "
                   f"{words.size(device.total_memory)} free, granularity {words.size(device.granularity)}")
            yield f"    kinds: {', '.join(kind.name for kind in device.kinds)}"
            able = sorted(one.name for one in type(device.capabilities) if one in device.capabilities)
            yield f"    can: {', '.join(able)}"


def main(arguments=None):
    names = [member.name.lower() for member in Backend]
    parser = argparse.ArgumentParser(prog="python -m gmm", description=__doc__)
    parser.add_argument("--version", action="version", version=f"gmm {native.gmm_version_string()}")
    parser.add_argument("--backend", choices=names, default="auto", help="the backend to ask, instead of a program's")
    chosen = parser.parse_args(arguments)
    print(f"gmm {native.gmm_version_string()}")
    try:
        for line in report(chosen.backend):
            print(line)
    except Error as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
