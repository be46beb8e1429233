# SPDX-License-Identifier: Apache-2.0
"""The random programs: a rule of Hypothesis for each step of model.py, with the values that its operands take."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from interface import MIB
from model import HANDLES, HEAPS, IMPORTS, SIZES, SLOTS, STREAMS, TAGS, Failed
from run import Program, text_of

below = lambda n: st.integers(0, n - 1)  # noqa: E731
slot, tag, stream, part = below(SLOTS), below(TAGS), below(STREAMS), below(8)
device, thread, handle, imported = below(2), st.sampled_from([0, 0, 0, 1]), below(HANDLES), below(IMPORTS)
yes = st.booleans()
seldom = st.sampled_from([False, False, False, True])
background = st.sampled_from([0, 0, 0, 0, 0, 0, 1, 2])
some_tags = st.sampled_from([0, 0, 1, 2, 3, 4, 8])  # bits; 0: all
# VMM first and often: what pauses.
kind = st.sampled_from([2, 2, 2, 2, 2, 1, 3, 4])
small_sizes = len([size for size in SIZES if size <= MIB])
size = st.one_of(below(small_sizes), below(len(SIZES)))

CONFIG = dict(devices=st.sampled_from([1, 2]), memory=st.sampled_from([0, 0, 96]), arena=st.sampled_from([0, 0, 1]),
              pageable=st.sampled_from([0, 0, 1]), backup=st.sampled_from([0, 0, 1, 2, 3]),
              policies=st.tuples(*[below(12)] * TAGS), leave=seldom)
STEPS = dict(
    alloc=dict(slot=slot, kind=kind, size=size, tag=tag, stream=stream, flags=st.sampled_from([0, 0, 0, 1, 2, 3]),
               alignment=st.sampled_from([0, 0, 0, 1, 2, 3, 4]), device=device,
               heap=st.sampled_from([0, 0, 0, *range(1, HEAPS + 1)]), try_first=seldom, thread=thread,
               seed=st.integers(0, 199)),
    write=dict(slot=slot, part=part, seed=st.integers(0, 455), stream=stream),
    late_write=dict(slot=slot, stream=stream, part=part, value=st.integers(0, 255)),
    free=dict(slot=slot, stream=below(STREAMS + 1), thread=thread, try_first=seldom, checked=seldom),
    bad_free=dict(slot=slot, which=below(4)),
    move=dict(slot=slot, location=below(2)),
    stream=dict(number=below(STREAMS - 1), device=device),
    hold=dict(number=stream, milliseconds=st.integers(1, 5)),
    end_thread={},
    heap=dict(number=below(HEAPS), kind=kind, device=device, tag=tag),
    pause=dict(tags=some_tags, flags=below(4), force=seldom, background=background),
    cycle=dict(tags=some_tags, flags=below(4), slot=slot, part=part, again=below(8),
               seed=st.sampled_from([0, 0, *range(200)])),
    resume=dict(tags=some_tags, background=background),
    resume_range=dict(slot=slot, part=part),
    read_kept=dict(slot=slot, part=part, mapped=yes),
    discard=dict(tags=some_tags),
    configure=dict(tag=tag, contents=below(3), flags=below(4)),
    renew_tag=dict(tag=tag),
    export=dict(slot=slot, handle=handle, part=part),
    import_block=dict(handle=handle, slot=imported, by_peer=yes),
    peer_write=dict(slot=imported, value=st.integers(0, 255)),
    close=dict(slot=imported),
    kill_peer={},
    trim=dict(tag=st.sampled_from([TAGS, TAGS, *range(TAGS)])),
    compact=dict(heap=below(HEAPS), reserve=below(4), scope=st.sampled_from([TAGS, TAGS, *range(TAGS)]),
                 budget=below(8)),
    defer=dict(begin=yes),
    limit=dict(scope=below(3), tag=tag, device=device, limit=below(6)),
    decommit=dict(milliseconds=st.sampled_from([0, 1, 5])),
    reset={},
    fork={},
    check={},
    fail=dict(k=st.integers(1, 30), memory=yes),
    refuse=dict(k=st.integers(1, 12)),
    exhaust=dict(files=yes, amount=below(6)),
)
# How often, against once of the others.
WEIGHTS = dict(alloc=9, write=2, free=2, pause=4, cycle=4, resume=4, resume_range=4, read_kept=2, export=3,
               import_block=4, fail=3, refuse=2, check=2)
# What a step works on. The first rule of a step that has a weight runs without it too.
NEEDS = dict(write="blocks", late_write="blocks", free="blocks", bad_free="blocks", move="blocks", pause="active",
             cycle="active", resume="paused", resume_range="paused", read_kept="paused", discard="paused",
             export="blocks", import_block="handles", peer_write="imports", close="imports", check="blocks")


def machine(runner, found):
    """A class of programs. `found` gets each failing program as text; the last one is the shortest."""

    class Machine(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.program, self.lines, self.failed = None, [], False
            self.slots, self.there_is = set(), set()

        @initialize(**CONFIG)
        def context(self, **values):
            self.lines.append(text_of("context", values))
            self.program = Program(runner.library, runner.patterns, runner.folder, values)
            runner.programs += 1

        def expect(self, name, values):
            """What there is for further steps, if all goes well. Only the steps tell: a cancellation is a race."""
            if name == "alloc":
                self.slots.add(values["slot"])
                self.there_is |= {"blocks", "active"}
            elif name == "free":
                self.slots.discard(values["slot"])
            elif name == "reset":
                self.slots.clear()
            elif name in ("pause", "export", "import_block"):
                self.there_is.add({"pause": "paused", "export": "handles", "import_block": "imports"}[name])
            elif name in ("resume", "cycle") and not values["tags"]:
                self.there_is.discard("paused")
            if not self.slots:
                self.there_is -= {"blocks", "active", "paused"}

        def step(self, name, values):
            self.lines.append(text_of(name, values))
            self.expect(name, values)
            runner.steps += 1
            try:
                self.program.step(name, values)
            except Failed as failure:
                self.failed = True
                found.append("\n".join([*self.lines, *(f"# {line}" for line in str(failure).splitlines())]))
                runner.found(found[-1])
                raise

        def teardown(self):
            if self.program is None:
                return
            try:
                if not self.failed:
                    self.step("finish", {})
                    self.lines.pop()
            finally:
                self.program.end()

    def add(name, operands):
        def do(self, **values):
            self.step(name, values)

        return rule(**operands)(do)

    for name, operands in STEPS.items():
        for i in range(WEIGHTS.get(name, 1)):
            made = add(name, operands)
            if name in NEEDS and (i > 0 or name not in WEIGHTS):
                made = precondition(lambda self, need=NEEDS[name]: need in self.there_is)(made)
            setattr(Machine, f"do_{name}_{i}", made)
    return Machine
