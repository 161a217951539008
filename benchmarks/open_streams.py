#!/usr/bin/env python3
"""Many streams open at once on one server, and how fast /health answers meanwhile, beside the targets.

usage: open_streams.py [--binary PATH] [--tokens N] [STREAMS ...]     default: build/release/hotset, 64 tokens, 1000 4000

Serves a fixture of 0.2 million parameters on the CPU: what is measured is the server, not the model. All connections are
opened, then all requests sent at once; every stream has to end with [DONE] and all its tokens. Needs two open files for
each stream (ulimit -n).
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import multiprocessing
import os
import pathlib
import resource
import sys
import tempfile
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
HEALTH_MUST = 0.5  # seconds
STREAMS_MUST, STREAMS_AIM = 1000, 4000


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("streams", nargs="*", type=int, default=[STREAMS_MUST, STREAMS_AIM], help="default: 1000 4000")
    parser.add_argument("--binary", type=pathlib.Path, default=REPOSITORY / "build" / "release" / "hotset", help="%(default)s")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer (default: %(default)s)")
    return parser.parse_args()


class Load:
    """One run against a server that is up."""

    def __init__(self, server, streams, tokens):
        self.server, self.streams, self.tokens = server, streams, tokens
        self.connected = self.sent = self.ended = self.peak = 0
        self.took, self.first, self.health = 0.0, [], []  # seconds

    async def stream(self, number, all_connected):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        self.connected += 1
        try:
            fields = dict(prompt=[2 + (31 * number + 7 * i) % 500 for i in range(5 + number % 40)], max_tokens=self.tokens)
            fields |= dict(model=self.server.model_name, stream=True, ignore_eos=True, return_token_ids=True)
            body = json.dumps(fields).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
            await all_connected.wait()
            writer.write(head.encode() + b"\r\nConnection: close\r\n\r\n" + body)
            began = time.monotonic()
            self.sent += 1
            self.peak = max(self.peak, self.sent - self.ended)
            got, done, status = 0, False, await reader.readline()
            assert b" 200 " in status, status
            while line := await reader.readline():
                if line.startswith(b"data: [DONE]"):
                    done = True
                elif line.startswith(b"data: "):
                    ids = sum(len(choice.get("token_ids") or []) for choice in json.loads(line[6:])["choices"])
                    if ids and not got:
                        self.first.append(time.monotonic() - began)
                    got += ids
            assert done and got == self.tokens, f"stream {number}: {got} tokens, [DONE] {done}"
        finally:
            self.ended += 1
            writer.close()

    async def run(self):
        all_connected = asyncio.Event()
        tasks = [asyncio.create_task(self.stream(number, all_connected)) for number in range(self.streams)]
        while self.connected < self.streams:
            await asyncio.sleep(0.01)
        stop, stopped = multiprocessing.Pipe()
        watch = multiprocessing.Process(target=watch_health, args=(self.server.port, stopped))
        watch.start()
        began = time.monotonic()
        all_connected.set()
        await asyncio.gather(*tasks)
        self.took = time.monotonic() - began
        stop.send("stop")
        self.health = stop.recv()
        watch.join()


def watch_health(port, pipe):
    """Asks every 20 ms until told to stop, in a process of its own: the streams' client is busy. Sends the times back."""
    times = []
    while not pipe.poll(0.02):
        began = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", "/health")
            assert connection.getresponse().status == 200
        times.append(time.monotonic() - began)
    pipe.send(times)


def in_milliseconds(seconds, share):
    return 1000 * sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))]


def main():
    given = arguments()
    os.environ["HOTSET_BINARY"] = str(given.binary.resolve())  # read by hotset_server when it is imported
    sys.path.insert(0, str(REPOSITORY / "tests" / "integration"))
    from hotset_server import FIXTURES, Server

    most = max(given.streams)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * most + 256
    if hard != resource.RLIM_INFINITY and hard < wanted:
        sys.exit(f"open_streams: {most} streams need {wanted} open files, and ulimit -Hn allows {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    print(f"{os.cpu_count()} processors, shared by server and client; {given.tokens} tokens a stream")
    print(f"{'':>16} {'open at':>8} {'':>8} {'':>9} {'first token, ms':>17} {'/health, ms':>24} {'':>6} {'server':>8}")
    print(f"{'streams':>16} {'once':>8} {'s':>8} {'tokens/s':>9} {'median':>8} {'last':>8} "
          f"{'median':>8} {'99 %':>7} {'slowest':>7} {'must':>6} {'MiB':>8}")
    failed = False
    for streams in given.streams:
        with tempfile.TemporaryDirectory() as folder:
            options = ["--max-connections", streams + 64, "--max-queue", streams, "--max-batch", 64, "--device", "cpu"]
            with Server(pathlib.Path(folder) / "log", *options, model=FIXTURES / "tiny-llama") as server:
                load = Load(server, streams, given.tokens)
                asyncio.run(load.run())
                mebibytes = server.resident_bytes() / 2**20
        goal = {STREAMS_MUST: "must", STREAMS_AIM: "aim"}.get(streams, "")
        slowest = max(load.health)
        failed |= slowest > HEALTH_MUST
        print(f"{f'{streams} {goal}':>16} {load.peak:8} {load.took:8.1f} {streams * given.tokens / load.took:9.0f} "
              f"{in_milliseconds(load.first, 0.5):8.0f} {1000 * max(load.first):8.0f} "
              f"{in_milliseconds(load.health, 0.5):8.1f} {in_milliseconds(load.health, 0.99):7.0f} {1000 * slowest:7.0f} "
              f"{1000 * HEALTH_MUST:6.0f} {mebibytes:8.0f}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
