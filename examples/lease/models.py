# SPDX-License-Identifier: Apache-2.0
"""Three models behind one HTTP endpoint, in the room of one. Usage: models.py [--port PORT] [--mib MIB]

    curl -d 'a prompt' http://127.0.0.1:PORT/chat          # or /code, /embed: the model answers
    curl http://127.0.0.1:PORT/status                      # what the arbiter knows

Each model is a process with a lease. A request wakes its model; idle models lose their memory, and keep their contents
in host memory. Without --port the program is its own client, and ends.
"""
import argparse
import http.server
import json
import multiprocessing
import tempfile
import threading
import time
import urllib.request

import gmm
import gmm.lease
from turns import share_a_small_device

MIB = 1 << 20
PAGE = 4096
MODELS = {"chat": 10, "code": 5, "embed": 0}  # with their priorities: the highest is served first


def work(name, priority, size, pipe):
    """The process of a model: it answers prompts."""
    context = gmm.context()
    context.tag("weights", gmm.Contents.HOST)
    page = bytearray(PAGE)
    seed = len(name)
    with gmm.lease.Lease(name, offer=["weights"], priority=priority) as lease:
        with lease.use(size, timeout=300):
            weights = context.alloc(size, gmm.Kind.VMM, tag="weights")
            weights.fill(seed)
        pipe.send("ready")
        while True:
            prompt = pipe.recv()
            if prompt is None:
                break
            begin = time.monotonic()
            try:
                with lease.use(timeout=30) as resumed:  # woken, if somebody had the memory
                    weights.copy_to(page)
                    is_whole = page == bytes([seed]) * PAGE
                    answer = f"{name} says: {prompt[::-1]}"
            except gmm.NotReadyError as error:  # the message names who holds the memory
                pipe.send({"error": str(error)})
                continue
            pipe.send({"answer": answer, "whole": is_whole, "woken_mib": resumed // MIB,
                       "ms": round((time.monotonic() - begin) * 1000)})
    weights.free()


class Front:
    """The processes of the models, and the HTTP server before them."""

    def __init__(self, port, size):
        spawn = multiprocessing.get_context("spawn")
        self.pipes, self.locks, self.processes = {}, {}, []
        for name, priority in MODELS.items():
            self.pipes[name], theirs = spawn.Pipe()
            self.locks[name] = threading.Lock()
            self.processes.append(spawn.Process(target=work, args=(name, priority, size, theirs)))
            self.processes[-1].start()
        for pipe in self.pipes.values():
            assert pipe.recv() == "ready"
        front = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def reply(self, code, value):
                body = json.dumps(value).encode() + b"\n"
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                if self.path == "/status":
                    self.reply(200, gmm.lease.status())
                else:
                    self.reply(404, {"error": "there are /status and POST " + ", ".join(map("/{}".format, MODELS))})

            def do_POST(self):
                name = self.path.strip("/")
                prompt = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                if name not in MODELS:
                    self.reply(404, {"error": f"there is no model {name!r}"})
                    return
                told = front.ask(name, prompt)
                self.reply(503 if "error" in told else 200, told)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)

    def ask(self, name, prompt):
        with self.locks[name]:  # one prompt at a time for each model
            self.pipes[name].send(prompt)
            return self.pipes[name].recv()

    def close(self):
        self.server.server_close()
        for pipe in self.pipes.values():
            pipe.send(None)
        for process in self.processes:
            process.join()


def client(port):
    """Asks the models, one after the other and all at once. Returns how often one was woken."""
    def post(name, prompt):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", prompt.encode(), timeout=60) as reply:
            told = json.load(reply)
        assert told["whole"], told
        how = f"woken, {told['woken_mib']} MiB" if told["woken_mib"] else "awake"
        print(f"{name:<6} {how:<16} {told['ms']:>5} ms  {told['answer']}", flush=True)
        woken.append(bool(told["woken_mib"]))

    woken = []
    for name in ("chat", "chat", "code", "embed", "chat"):
        post(name, "sdrow")
    together = [threading.Thread(target=post, args=(name, "ecno ta")) for name in MODELS]
    for thread in together:
        thread.start()
    for thread in together:
        thread.join()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=60) as reply:
        for member in json.load(reply)["members"]:
            held = sum(device["held"] for device in member["devices"])
            print(f"{member['name']:<6} {member['state']}, priority {member['priority']}, holds {held // MIB} MiB")
    return sum(woken), len(woken)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, help="serves there until Ctrl-C")
    parser.add_argument("--mib", type=int, default=40, help="of each model; without a GPU the device has 64")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        share_a_small_device(folder, 64 * MIB)
        front = Front(arguments.port or 0, arguments.mib * MIB)
        port = front.server.server_address[1]
        thread = threading.Thread(target=front.server.serve_forever)
        thread.start()
        try:
            if arguments.port is None:
                woken, answers = client(port)
                print(f"models: ok, {answers} answers, {woken} after a wake-up")
            else:
                print(f"http://127.0.0.1:{port}/chat, /code, /embed and /status", flush=True)
                thread.join()
        except KeyboardInterrupt:
            pass
        finally:
            front.server.shutdown()
            thread.join()
            front.close()


if __name__ == "__main__":
    main()
