#!/usr/bin/env python3
"""Decode throughput of a whole server (HTTP, actors, sampling, streams) beside that of the engine alone.

usage: serve_load.py [--geometry llama|deepseek|tiny-llama] [--sequences N ...] [--context N] [--beside PROGRAM] ...
       serve_load.py --geometry tiny-llama --device cpu --binary build/release/hotset      without a GPU

Serves what benchmarks/cuda/throughput runs: the same geometry with dummy weights, synthetic prompts and a model of churn, a
device pool of 8 resident sequences, the same budget, hot buffer and host pool. tiny-llama is the fixture of that name with
its own weights: it shows that the program works. Needs a bundle (tools/bundle) or a build, and nothing but Python.

For each number of sequences so many streams are opened at once, with prompts of token ids. Prompt and answer together fill
the context. Measured is only the phase in which all of them generate: from when each has had its first --settle tokens
until the first one ends.

  sequences  run at a time; hot: of them, on average
  tokens/s   sum of the streams' own rates
  between    tokens of a stream, as its client got them; merged: tokens that came in one event with the one before
  first      token of a stream since its request was sent, others' prompts included
  idle       share of the phase in which the device waited for the host (hotset_device_idle_seconds_total)
  server     processors that it used in the phase; client: the busiest one of its processes. Near 100 % it is the client
             that is measured: use more --clients

With --beside the engine's own benchmark runs after the server has ended; its points are powers of two and what its host
pool holds, its rates those of its column "hierarchical". Exit status 1 when a stream failed, was short or never ran beside
all others; the end of the server's log is printed then.
"""

import argparse
import asyncio
import gc
import http.client
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
PAGE_TOKENS = 64
BUDGET, HOT_BUFFER = 2048, 4096  # tokens
RESIDENT_SEQUENCES = 8  # of benchmarks/cuda/throughput, which has no option for it
STEPS_BESIDE = 48  # a point of it
MEASURED_TOKENS = 192
SAMPLE_SECONDS = 0.1
TICKS = os.sysconf("SC_CLK_TCK")  # of /proc

class Geometry:
    """`model`: a folder; of a config.json alone the weights are dummies."""

    def __init__(self, model, options, sequences, context, host_gib):
        self.model, self.options, self.sequences = REPOSITORY / model, options, sequences
        self.context, self.host_gib = context, host_gib
        self.dummy = os.listdir(self.model) == ["config.json"]


LLAMA_OPTIONS = {
    "algorithm": "lowrank", "index-rank": 32, "sparse-budget": BUDGET, "hot-buffer": HOT_BUFFER, "sparse-threshold": 4096,
}  # fmt: skip
DEEPSEEK_OPTIONS = {"algorithm": "dsa", "hot-buffer": HOT_BUFFER}
TINY_OPTIONS = {
    "algorithm": "quest", "sparse-block": 16, "sparse-window": 32, "sparse-budget": 64, "hot-buffer": 128, "sparse-threshold": 64,
}  # fmt: skip
GEOMETRIES = {
    "llama": Geometry("benchmarks/models/llama-3.1-8b", LLAMA_OPTIONS, [1, 8, 16, 32, 43], 32768, 96),
    "deepseek": Geometry("benchmarks/models/deepseek-v3.2-8-experts", DEEPSEEK_OPTIONS, [1, 8, 16, 32, 65], 32768, 96),
    "tiny-llama": Geometry("tests/fixtures/tiny-llama", TINY_OPTIONS, [1, 8, 16], 512, 1),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--geometry", choices=list(GEOMETRIES), default="llama", help="default: %(default)s")
    add("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: tiny-llama alone (default: %(default)s)")
    add("--binary", type=pathlib.Path, default=REPOSITORY / "bundle" / "hotset", help="default: bundle/hotset")
    add("--sequences", type=int, nargs="+", metavar="N", help="default: 1 8 16 32 and what 96 GiB hold: 43 (llama), 65")
    add("--context", type=int, metavar="N", help="tokens of a prompt and its answer (default: 32768; tiny-llama: 512)")
    add("--tokens", type=int, metavar="N", help=f"of an answer (default: {MEASURED_TOKENS} to measure, and one for each step "
        "that fills prompts of others; at most half the context)")
    add("--settle", type=int, default=12, metavar="N", help="tokens before the measured phase (default: %(default)s)")
    add("--churn", type=float, default=0.06, metavar="P", help="share of selections that move (default: %(default)s)")
    add("--device-kv-sequences", type=int, default=RESIDENT_SEQUENCES, metavar="N",
        help="resident sequences that the device pool holds (default: %(default)s)")
    add("--host-gib", type=int, metavar="N", help="host pool, GiB (default: 96; tiny-llama: 1)")
    add("--max-batch", type=int, metavar="N", help="default: the most sequences")
    add("--prefill-chunk", type=int, default=4096, metavar="N", help="default: %(default)s")
    add("--tokenizer", type=pathlib.Path, metavar="FILE", help="a tokenizer.json, so that tokens become text (default: none)")
    add("--clients", type=int, default=max(1, min(4, (os.cpu_count() or 1) // 4)), metavar="N",
        help="client processes (default here: %(default)s)")
    add("--beside", type=pathlib.Path, metavar="PROGRAM", help="benchmarks/cuda/throughput of a build")
    add("--timeout", type=int, default=300, metavar="S", help="for one number of sequences (default: %(default)s)")
    add("--option", action="append", default=[], metavar="NAME=VALUE",
        help="one more option of hotset serve, or another value; may repeat")
    given = parser.parse_args()
    geometry = GEOMETRIES[given.geometry]
    given.sequences = given.sequences or geometry.sequences
    given.context = given.context or geometry.context
    given.host_gib = given.host_gib or geometry.host_gib
    given.max_batch = given.max_batch or max(given.sequences)
    check(given, parser.error)
    return given


def check(given, refuse):
    numbers = [given.clients, given.device_kv_sequences, given.prefill_chunk, given.host_gib, given.context, given.max_batch]
    if min(*given.sequences, *numbers, given.settle + 1) < 1:
        refuse("numbers are positive")
    for count in given.sequences:
        tokens = tokens_of(given, count)
        if not given.settle + 2 <= tokens < given.context:
            refuse(f"{count} sequences: an answer of {tokens} tokens needs {given.settle + 2} (--settle) and a longer --context")
    if not os.access(given.binary, os.X_OK):
        refuse(f"there is no program {given.binary}; tools/bundle makes one, --binary names another")
    if given.device == "cpu" and GEOMETRIES[given.geometry].dummy:
        refuse("--device cpu serves --geometry tiny-llama alone")
    if given.beside is None:
        return
    if not GEOMETRIES[given.geometry].dummy or given.device_kv_sequences != RESIDENT_SEQUENCES:
        refuse(f"--beside has llama and deepseek, with a device pool of {RESIDENT_SEQUENCES} resident sequences")
    if not os.access(given.beside, os.X_OK):
        refuse(f"--beside: there is no program {given.beside}")


def tokens_of(given, sequences):
    """Of an answer. The first sequence generates a token in each step that fills a chunk of the others' prompts."""
    if given.tokens:
        return given.tokens
    filling = -(-given.context // given.prefill_chunk) * (sequences - 1)
    return min(MEASURED_TOKENS + given.settle + filling, given.context // 2)


# --- the server ------------------------------------------------------------------------------------------------------


def make_model(given, folder):
    shutil.copytree(GEOMETRIES[given.geometry].model, folder)
    if given.tokenizer:
        shutil.copy(given.tokenizer, folder / "tokenizer.json")
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]


def server_options(given):
    geometry = GEOMETRIES[given.geometry]
    sequence = PAGE_TOKENS * (-(-(given.context + 1) // PAGE_TOKENS) + 1)  # tokens of its pages, as throughput.cpp counts
    options = {
        "device": given.device,
        "max-context": given.context,
        "max-batch": given.max_batch,
        "max-queue": max(given.sequences),
        "prefill-chunk": given.prefill_chunk,
        "kv-dtype": "fp8",
        "device-kv-tokens": given.device_kv_sequences * sequence,
        "device-metadata-tokens": max(given.max_batch, *given.sequences) * sequence,
        "host-kv": f"{given.host_gib}GiB",
        **geometry.options,
    }
    if geometry.dummy:
        options |= {"load-format": "dummy", "fill-kv": "synthetic", "selection-model": f"churn={given.churn}"}
    options |= {name.lstrip("-"): value for name, _, value in (one.partition("=") for one in given.option)}
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def summary_of(log):
    """The server's own line about model, device and pools."""
    found = [line for line in log.splitlines() if "; device pool " in line]
    return found[0][found[0].find("model ") :] if found else "(the server's log does not tell its pools)"


# --- clients ---------------------------------------------------------------------------------------------------------


class Stream(asyncio.Protocol):
    """One request and what came back. As little as possible is done with an event."""

    IDS = b'"token_ids":['

    def __init__(self, request):
        self.request, self.rest, self.status = request, b"", None
        self.sent, self.times, self.counts = 0.0, [], []  # of events with tokens
        self.done, self.error, self.closed = False, "", asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def send(self):
        self.sent = time.monotonic()
        self.transport.write(self.request)
        self.request = b""

    def data_received(self, data):
        now = time.monotonic()
        lines = (self.rest + data).split(b"\n")
        self.rest = lines.pop()
        for line in lines:
            if self.status is None:
                self.status = line.decode(errors="replace").strip()
            if line.startswith(b"data: "):
                self.event(line, now)

    def event(self, line, now):
        at = line.find(self.IDS)
        if at >= 0:
            ids = line[at + len(self.IDS) : line.index(b"]", at)]
            if ids:
                self.times.append(now)
                self.counts.append(ids.count(b",") + 1)
        elif line.startswith(b"data: [DONE]"):
            self.done = True
        else:
            self.error = line[:500].decode(errors="replace")

    def connection_lost(self, error):
        if not self.closed.done():
            self.closed.set_result(None)
        if error:
            self.error = self.error or repr(error)

    def outcome(self, tokens):
        """What went wrong (nothing: empty), and the events."""
        wrong = ""
        if self.status is None or " 200" not in self.status:
            wrong = f"{self.status or 'no answer'} {self.error} {self.rest[:500].decode(errors='replace')}"
        elif self.error or not self.done or sum(self.counts) != tokens:
            wrong = f"{sum(self.counts)} tokens of {tokens}, [DONE] {self.done} {self.error}"
        return wrong.strip(), self.sent, self.times, self.counts


def request_of(number, prompt_tokens, tokens, model, vocabulary):
    prompt = [2 + (8191 * number + 7 * i) % (vocabulary - 2) for i in range(prompt_tokens)]
    fields = dict(model=model, prompt=prompt, max_tokens=tokens, stream=True, ignore_eos=True, return_token_ids=True)
    body = json.dumps(fields, separators=(",", ":")).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\nConnection: close\r\n\r\n" + body


async def run_streams(port, requests, tokens, pipe):
    """Connects, says so, sends everything at a word and returns the streams' outcomes."""
    loop = asyncio.get_running_loop()
    connect = [loop.create_connection(lambda request=request: Stream(request), "127.0.0.1", port) for request in requests]
    streams = [stream for _, stream in await asyncio.gather(*connect)]
    pipe.send("connected")
    pipe.recv()
    gc.disable()
    for stream in streams:
        stream.send()
    await asyncio.gather(*(stream.closed for stream in streams))
    return [stream.outcome(tokens) for stream in streams]


def client(port, numbers, shape, pipe):
    """A process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    requests = [request_of(number, *shape) for number in numbers]
    pipe.send(asyncio.run(run_streams(port, requests, shape[1], pipe)))


# --- a point ---------------------------------------------------------------------------------------------------------


def processor_seconds(pid):
    """Of all threads; 0: it has ended."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) / TICKS


class Failure(Exception):
    pass


class Point:
    """One number of sequences against a server that is up. `answers`: (wrong, sent, times, counts) of each stream."""

    METRICS = {
        "idle": "hotset_device_idle_seconds_total",
        "steps": "hotset_steps_total",
        "hot": "hotset_hot_sequence_steps_total",
    }

    def __init__(self, given, server, sequences, vocabulary):
        self.given, self.server, self.sequences = given, server, sequences
        self.tokens = tokens_of(given, sequences)
        self.shape = (given.context - self.tokens, self.tokens, server.model_name, vocabulary)
        self.samples, self.answers = [], []  # samples: (time, {what: value so far})

    def sample(self, clients):
        values = {"server": processor_seconds(self.server.process.pid)}
        values |= {process.pid: processor_seconds(process.pid) for process in clients}
        metrics = self.server.metrics()
        self.samples.append((time.monotonic(), values | {name: metrics.get(key, 0) for name, key in self.METRICS.items()}))

    def run(self):
        number = min(self.given.clients, self.sequences)
        pipes, clients = [], []
        try:
            for index in range(number):
                ours, theirs = multiprocessing.Pipe()
                arguments_of = (self.server.port, range(index, self.sequences, number), self.shape, theirs)
                clients.append(multiprocessing.Process(target=client, args=arguments_of, daemon=True))
                clients[-1].start()
                theirs.close()  # no other client inherits it, so its end is seen here
                pipes.append(ours)
            for pipe in pipes:
                assert pipe.recv() == "connected"
            for pipe in pipes:
                pipe.send("go")
            self.wait(pipes, clients)
        except (EOFError, BrokenPipeError):
            raise Failure("a client process ended early") from None
        finally:
            for process in clients:
                process.terminate()
                process.join()
        self.check()

    def wait(self, pipes, clients):
        deadline = time.monotonic() + self.given.timeout
        waiting = list(pipes)
        while waiting:
            try:
                self.sample(clients)
            except (OSError, http.client.HTTPException, AssertionError) as error:
                raise Failure(f"the server does not tell its metrics: {error!r}") from None
            for pipe in multiprocessing.connection.wait(waiting, SAMPLE_SECONDS):
                self.answers += pipe.recv()
                waiting.remove(pipe)
            if waiting and time.monotonic() > deadline:
                raise Failure(f"not all streams have ended after {self.given.timeout} s (--timeout)")

    def check(self):
        wrong = [answer[0] for answer in self.answers if answer[0]]
        if wrong:
            raise Failure(f"{len(wrong)} of {self.sequences} streams failed, the first: {wrong[0]}")
        # Tokens one by one: merged ones came at the same time.
        self.arrivals = [[at for at, count in zip(times, counts) for _ in range(count)] for _, _, times, counts in self.answers]
        self.begin = max(times[self.given.settle] for times in self.arrivals)
        self.end = min(times[-1] for times in self.arrivals)
        if self.end <= self.begin:
            raise Failure(f"the {self.sequences} streams never generated all at once: more --tokens or --host-gib")

    def rate(self):
        """Each stream's own, between its first and last token of the phase: where the phase cuts a step is no matter."""
        rates = []
        for times in self.arrivals:
            inside = [at for at in times if self.begin <= at <= self.end]
            rates.append((len(inside) - 1) / (inside[-1] - inside[0]) if len(inside) > 1 and inside[-1] > inside[0] else 0)
        return sum(rates)

    def gaps(self):
        return sorted(b - a for times in self.arrivals for a, b in zip(times, times[1:]) if self.begin <= b <= self.end)

    def grown(self, name):
        """By how much a value that was sampled grew in the phase."""

        def value_at(moment):
            before = [sample for sample in self.samples if sample[0] <= moment][-1:] or self.samples[:1]
            after = [sample for sample in self.samples if sample[0] > moment][:1] or self.samples[-1:]
            (t0, first), (t1, last) = before[0], after[0]
            share = (moment - t0) / (t1 - t0) if t1 > t0 else 0
            return first[name] + share * (last[name] - first[name])

        return value_at(self.end) - value_at(self.begin)

    def line(self):
        took, gaps = self.end - self.begin, self.gaps()
        first = sorted(times[0] - answer[1] for times, answer in zip(self.arrivals, self.answers))
        events = sum(1 for *_, times, _ in self.answers for at in times if self.begin <= at <= self.end)
        tokens = sum(1 for times in self.arrivals for at in times if self.begin <= at <= self.end)
        busiest = max(self.grown(name) for name in self.samples[0][1] if isinstance(name, int))
        hot = self.grown("hot") / max(1, self.grown("steps"))
        return (f"{self.sequences:9} {hot:5.1f} | {took:7.2f} {self.rate():9.1f} | {1000 * at_share(gaps, 0.5):8.3f} "
                f"{1000 * at_share(gaps, 0.99):8.3f} {1000 * gaps[-1]:8.2f} {tokens - events:6} | {at_share(first, 0.5):7.3f} "
                f"{first[-1]:7.3f} | {100 * self.grown('idle') / took:6.2f} {self.grown('server') / took:7.2f} "
                f"{100 * busiest / took:8.0f}")  # fmt: skip


def at_share(ordered, share):
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def print_header():
    print(f"\n{'':15} | {'measured':>17} | {'between two tokens, ms':>33} | {'first token, s':>15} | "
          f"{'device':>6} {'server':>7} {'client':>8}")  # fmt: skip
    print(f"{'sequences':>9} {'hot':>5} | {'s':>7} {'tokens/s':>9} | {'median':>8} {'99 %':>8} {'largest':>8} {'merged':>6} | "
          f"{'median':>7} {'last':>7} | {'idle %':>6} {'cores':>7} {'% of one':>8}", flush=True)  # fmt: skip


# --- the engine alone ------------------------------------------------------------------------------------------------


def run_beside(given):
    """{sequences: (those that were hot, tokens/s)} of its column "hierarchical"."""
    command = [given.beside.resolve(), "--context", given.context, given.geometry, given.churn, STEPS_BESIDE, given.host_gib]
    command = [str(word) for word in command]
    print(f"\nthe engine alone: {given.beside.name} {' '.join(command[1:])}", flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    points = parse_beside(done.stdout)
    if done.returncode != 0 or not points:
        raise Failure(f"{given.beside.name} ended with {done.returncode}:\n{done.stdout[-4000:]}")
    return points


def parse_beside(text):
    points = {}
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) == 5 and parts[0].strip().isdigit():
            _, hot, _, rate = parts[2].split()[:4]
            points[int(parts[0])] = int(hot), float(rate)
    return points


def print_beside(rates, points):
    print(f"\n{'':9} | {'hot':>4} | {'tokens/s':>19} |")
    print(f"{'sequences':>9} | {'':>4} | {'server':>9} {'alone':>9} | ratio")
    for sequences, rate in rates.items():
        hot, alone = points.get(sequences, ("-", None))
        both = f"{alone:9.1f} | {rate / alone:5.3f}" if alone else f"{'-':>9} |     -"
        print(f"{sequences:9} | {hot:>4} | {rate:9.1f} {both}")


# --- all of it -------------------------------------------------------------------------------------------------------


def serve_and_measure(given, folder):
    """Tokens/s of each number of sequences."""
    from hotset_server import Server

    model = folder / given.geometry
    vocabulary = make_model(given, model)
    server = Server(folder / "log", *server_options(given), model=model, env={"XDG_CACHE_HOME": str(folder / "cache")})
    rates = {}
    try:
        began = time.monotonic()
        server.start()
        server.wait_healthy()
        server.model_name = given.geometry
        print(f"{summary_of(server.log())}; healthy after {time.monotonic() - began:.1f} s")
        print_header()
        for sequences in given.sequences:
            point = Point(given, server, sequences, vocabulary)
            point.run()
            rates[sequences] = point.rate()
            print(point.line(), flush=True)
        code = server.stop(timeout=120)
        if code != 0:
            raise Failure(f"the server ended with {code}")
    except (Failure, AssertionError) as failure:
        words = str(failure)  # those of hotset_server hold the log
        raise Failure(words if "\n" in words else f"{words}\n\nend of the server's log:\n{server.log()[-4000:]}") from None
    finally:
        if server.process is not None and server.process.poll() is None:
            server.process.kill()
            server.process.wait()
    return rates


def main():
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the server ends, too
    os.environ["HOTSET_BINARY"] = str(given.binary.resolve())  # read by hotset_server when it is imported
    sys.path.insert(0, str(REPOSITORY / "tests" / "integration"))
    print(f"{os.cpu_count()} processors, shared by server and clients ({given.clients}); context {given.context}; "
          f"hotset serve {' '.join(server_options(given))}")  # fmt: skip
    try:
        with tempfile.TemporaryDirectory(prefix="serve-load-") as folder:
            rates = serve_and_measure(given, pathlib.Path(folder))
        if given.beside:
            print_beside(rates, run_beside(given))
    except Failure as failure:
        sys.exit(f"serve_load: {failure}")


if __name__ == "__main__":
    main()
