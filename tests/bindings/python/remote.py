# SPDX-License-Identifier: Apache-2.0
"""Another process of Python, which evaluates what a test asks it."""
import json
import select
import subprocess
import sys

SERVE = """
import json, sys
for line in sys.stdin:
    try:
        answer = [eval(json.loads(line)), None]
    except Exception as error:
        answer = [None, f"{type(error).__name__}: {error}"]
    print(json.dumps(answer), flush=True)
"""


class Failure(Exception):
    """An exception of the other process: its class and message."""


class Remote:
    """Runs some code, and then evaluates expressions. remote("x + 1") is a value that JSON has, or raises Failure."""

    def __init__(self, code, **options):
        self.process = subprocess.Popen([sys.executable, "-c", code + SERVE], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, bufsize=1, **options)
        self.pid = self.process.pid
        self("None")  # the code has run

    def ask(self, expression):
        print(json.dumps(expression), file=self.process.stdin, flush=True)

    def has_answer(self, seconds):
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def answer(self, seconds=60.0):
        assert self.has_answer(seconds), "no answer"
        line = self.process.stdout.readline()
        assert line, f"the process ended with {self.process.wait()}"
        value, error = json.loads(line)
        if error is not None:
            raise Failure(error)
        return value

    def __call__(self, expression):
        self.ask(expression)
        return self.answer()

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0

    def kill(self):
        self.process.kill()
        self.process.wait()
