# SPDX-License-Identifier: Apache-2.0
"""Random programs against the model of gmm (model.py), made and shrunk by Hypothesis. See README.md.

Each program runs in a process of its own, with a second process that imports. So a crash, an abort and a step that
hangs are failures like any other, and they are shrunk too.
"""

import argparse
import ast
import contextlib
import ctypes
import multiprocessing
import os
import pathlib
import random
import resource
import shutil
import signal
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]
import interface  # noqa: E402
import model  # noqa: E402
import tap  # noqa: E402

PYTHON = HERE.parents[1] / ".deps" / "venv" / "bin" / "python"  # tests/support/setup.sh installs Hypothesis there
STEP_S = 60  # a step that takes longer is stuck


def text_of(name, values):
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in values.items())})"


def read_program(text):
    """Lines as text_of() writes them."""
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith("#"):
            call = ast.parse(line, mode="eval").body
            yield call.func.id, {word.arg: ast.literal_eval(word.value) for word in call.keywords}


def serve(connection, answer):
    """Answers requests until there are none; a failure ends it."""
    while True:
        try:
            name, values = connection.recv()
        except EOFError:
            return
        try:
            connection.send((answer(name, values), None))
        except model.Failed as failure:
            connection.send((None, str(failure)))


class Remote:
    """A process that answers requests."""

    def __init__(self, main, words):
        self.words = words
        self.errors = tempfile.TemporaryFile()
        ours, theirs = multiprocessing.Pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                ours.close()
                os.dup2(self.errors.fileno(), 1)
                os.dup2(self.errors.fileno(), 2)
                main(theirs)
                code = 0
            except BaseException:
                import traceback
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        theirs.close()
        self.connection = ours

    def ask(self, name, values):
        answered = False
        try:
            self.connection.send((name, values))
            answered = self.connection.poll(STEP_S)
            if answered:
                answer, failure = self.connection.recv()
                if failure is not None:
                    raise model.Failed(failure)
                return answer
        except (EOFError, ConnectionError):
            pass
        stuck = not answered and os.waitpid(self.pid, os.WNOHANG)[0] == 0
        if stuck:
            os.kill(self.pid, signal.SIGABRT)
        status = self.reap()
        raise model.Failed(f"{self.words} {'hangs' if stuck else f'ended (status {status})'} in {name}: {self.said()}")

    def said(self):
        self.errors.seek(0)
        return self.errors.read().decode("utf-8", "replace")[-4000:]

    def reap(self):
        """The exit status of the process, once."""
        if self.pid is None:
            return None
        pid, self.pid = self.pid, None
        self.connection.close()
        with contextlib.suppress(ChildProcessError):
            return os.waitpid(pid, 0)[1]
        return None

    def kill(self):
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.reap()


class Program:
    """A program that runs step by step in processes of its own."""

    def __init__(self, library, patterns, folder, config):
        self.folder = tempfile.mkdtemp(dir=folder)
        os.environ["GMM_IPC_DIR"] = self.folder + "/ipc"

        def peer_main(connection):
            peer = []

            def answer(name, values):
                if not peer:
                    if name == "end":
                        return None
                    peer.append(model.Peer(library, patterns, config["devices"]))
                return getattr(peer[0], "do_" + name)(*values)

            serve(connection, answer)

        def main(connection):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.environ["FAKE_CUDA_DEVICES"] = str(config["devices"])
            peer = Remote(peer_main, "the peer")

            def ask(name, *values):
                return peer.kill() if name is None else peer.ask(name, values)

            subject = []

            def answer(name, values):
                if not subject:
                    subject.append(model.Model(library, patterns, ask, self.folder, config))
                getattr(subject[0], "do_" + name if name != "finish" else name)(**values)
                if name != "finish":
                    subject[0].check_light()

            try:
                serve(connection, answer)
            finally:
                peer.kill()

        self.remote = Remote(main, "the program")

    def step(self, name, values):
        self.remote.ask(name, values)

    def end(self):
        self.remote.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


CONFIG = dict(devices=1, memory=0, arena=0, pageable=0, backup=0, policies=(0, 1, 2, 4), leave=False)


class Runner:
    def __init__(self, words):
        self.with_fake = os.environ.get("GMM_BACKEND") == "cuda"
        self.library = interface.Library(words.library, words.helper, self.with_fake)
        self.patterns = model.Patterns()
        self.folder = tempfile.mkdtemp(prefix="gmm-model-")
        self.steps = self.programs = 0
        self.keep = words.keep

    def found(self, text):
        if self.keep:
            pathlib.Path(self.keep).write_text(text + "\n", encoding="utf-8")

    def replay(self, steps):
        """Returns the words of the failure, or None."""
        steps = list(steps)
        config = dict(CONFIG)
        if steps and steps[0][0] == "context":
            config.update(steps.pop(0)[1])
        program = Program(self.library, self.patterns, self.folder, config)
        try:
            for name, values in [*steps, ("finish", {})]:
                program.step(name, values)
        except model.Failed as failure:
            return f"{text_of(name, values)}: {failure}"
        finally:
            program.end()
        return None

    def shorten(self, text):
        """Leaves out single steps while the program fails. Hypothesis gives up after five minutes."""
        steps = list(read_program(text))
        failure, shorter = self.replay(steps), True
        if failure is None:
            return text
        while shorter:
            shorter = False
            for i in reversed(range(1, len(steps))):
                less = steps[:i] + steps[i + 1:]
                if i < len(steps) and (words := self.replay(less)) is not None:
                    steps, failure, shorter = less, words, True
        return "\n".join([*(text_of(*step) for step in steps), *(f"# {line}" for line in failure.splitlines())])

    def search(self, seed, programs, length):
        """Returns the shortest failing program as text, or None. Seed None: the same programs each time."""
        from hypothesis import HealthCheck, Phase, Verbosity, seed as seeded, settings
        from hypothesis.stateful import run_state_machine_as_test

        import machine
        found = []
        made = machine.machine(self, found)
        if seed is not None:
            made = seeded(seed)(made)
        try:
            run_state_machine_as_test(made, settings=settings(
                max_examples=programs, stateful_step_count=length, deadline=None, database=None, print_blob=False,
                derandomize=seed is None, report_multiple_bugs=False, verbosity=Verbosity.quiet,
                phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck)))
        except Exception as failure:  # of Hypothesis itself: a program that fails once and passes again
            if not found:
                raise
            if not isinstance(failure, model.Failed):
                return f"{found[-1]}\n# {type(failure).__name__}: {failure}"
        return self.shorten(found[-1]) if found else None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True, help="libgmm.so")
    parser.add_argument("--helper", required=True, help="the helper that Meson builds of helper.c")
    parser.add_argument("--programs", type=int, default=200, help="random programs of each seed")
    parser.add_argument("--steps", type=int, default=50, help="steps of a program")
    parser.add_argument("--seed", type=int, action="append", help="this seed; may be repeated")
    parser.add_argument("--seconds", type=float, help="random seeds for that long, without --seed")
    parser.add_argument("--keep", help="a file for the shortest failing program so far")
    parser.add_argument("--replay", action="append", help="a file with a program; - is stdin")
    words = parser.parse_args()
    runner = Runner(words)
    backend = os.environ.get("GMM_BACKEND", "host")
    try:
        for name in words.replay or []:
            text = sys.stdin.read() if name == "-" else pathlib.Path(name).read_text(encoding="utf-8")
            failure = runner.replay(read_program(text))
            tap.check(failure is None, f"{backend}: {name}", failure or "")
        if words.replay:
            tap.finish()
        try:
            import hypothesis
        except ImportError:
            if os.access(PYTHON, os.X_OK) and not os.path.samefile(sys.prefix, PYTHON.parents[1]):
                os.execv(PYTHON, [PYTHON, *sys.argv])
            tap.skip(f"{backend}: random programs", f"Hypothesis is not installed for {sys.executable}")
            tap.finish()
        print(f"# Hypothesis {hypothesis.__version__}")
        end = time.monotonic() + words.seconds if words.seconds else None
        for seed in words.seed or iter(lambda: random.randrange(1 << 32), None):
            runner.programs = runner.steps = 0
            print(f"# seed {seed}", flush=True)
            failure = runner.search(seed, words.programs, words.steps)
            used = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
            print(f"# {runner.programs} programs of {runner.steps} steps, {used:.0f} processor seconds so far")
            tap.check(failure is None, f"{backend}: random programs of seed {seed}",
                      failure and f"The shortest program that fails; run.py --replay runs it:\n{failure}")
            if not words.seed and (failure or end is None or time.monotonic() > end):
                break
        tap.finish()
    finally:
        shutil.rmtree(runner.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
