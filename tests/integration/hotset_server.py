"""Starts `hotset serve` on a free loopback port and talks to it with the standard library's HTTP client."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = REPOSITORY / "tests" / "fixtures"
BINARY = pathlib.Path(os.environ.get("HOTSET_BINARY", REPOSITORY / "build" / "release" / "hotset"))
# Fixtures with larger weights, laid out in the build folder (tests/CMakeLists.txt).
UNPACKED_FIXTURES = pathlib.Path(
    os.environ.get("HOTSET_UNPACKED_FIXTURES", REPOSITORY / "build" / "release" / "tests" / "fixtures-unpacked")
)
CACHE = BINARY.parent / "tests" / "cache"
DEFAULT_MODEL = pathlib.Path(
    os.environ.get("HOTSET_DEFAULT_MODEL", REPOSITORY / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf")
)


def load_json(path):
    return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))


def clean_environment(**extra):
    """This process's environment without settings of Hotset, so that a test means what it says, and with a cache folder
    of its own: nothing is kept in the user's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOTSET_")}
    return {**kept, "XDG_CACHE_HOME": str(CACHE), **extra}


def sse_events(lines):
    """The JSON payloads of an SSE answer given as lines of bytes; `[DONE]` comes as the string."""
    for line in lines:
        line = line.rstrip(b"\r\n")
        if not line or line.startswith(b":"):
            continue
        assert line.startswith(b"data: "), line
        payload = line[len(b"data: ") :]
        yield "[DONE]" if payload == b"[DONE]" else json.loads(payload)


class Response:
    def __init__(self, status, headers, body):
        self.status, self.body = status, body
        self.headers = {name.lower(): value for name, value in headers}

    @property
    def text(self):
        return self.body.decode("utf-8")

    def json(self):
        def refuse(constant):
            raise AssertionError(f"{constant} is not JSON")

        return json.loads(self.text, parse_constant=refuse)


class Server:
    """One server process. Use it in a `with` block; leaving it stops the server and checks that it ended well. With port 0
    the system chooses one, which `port` is once the server is healthy."""

    def __init__(self, log_path, *options, model=None, env=None, port=0, api_key=None):
        self.api_key = api_key
        self.port = port
        self.log_path = pathlib.Path(log_path)
        command = [str(BINARY), "serve", "--port", str(self.port)]
        if model is not None:
            command += ["--model", str(model)]
        self.command = command + [str(option) for option in options]
        self.env = clean_environment(**(env or {}), **({"HOTSET_API_KEY": api_key} if api_key else {}))
        self.process = None
        self.model_name = None

    def __enter__(self):
        self.start()
        self.wait_healthy()
        self.model_name = self.get("/v1/models").json()["data"][0]["id"]
        return self

    def __exit__(self, kind, *_):
        code = self.stop()
        if kind is None:
            assert code == 0, f"the server ended with {code}:\n{self.log()[-4000:]}"

    def start(self):
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT, env=self.env)

    def log(self):
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def wait_healthy(self, timeout=180):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log()[-4000:]}")
            if self.port == 0:
                listens = re.search(r" listens on http://127\.0\.0\.1:(\d+) ", self.log())
                self.port = int(listens.group(1)) if listens else 0
            if self.port != 0:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    if self.get("/health", timeout=2).status == 200:
                        return
            time.sleep(0.02)
        raise AssertionError(f"not healthy after {timeout} s:\n{self.log()[-4000:]}")

    def stop(self, timeout=40):
        """Ends the server as docker would; returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"still there {timeout} s after SIGTERM:\n{self.log()[-4000:]}") from None

    def headers(self, headers=None):
        return {**({"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}), **(headers or {})}

    def request(self, method, path, body=None, headers=None, timeout=120):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        with contextlib.closing(connection):
            connection.request(method, path, body, self.headers(headers))
            answer = connection.getresponse()
            return Response(answer.status, answer.getheaders(), answer.read())

    def get(self, path, **options):
        return self.request("GET", path, **options)

    def post(self, path, body, headers=None, **options):
        """`body`: a dict, sent as JSON with the model's name added, or bytes, sent as they are."""
        if isinstance(body, dict):
            body = json.dumps({"model": self.model_name, **body}).encode()
        return self.request("POST", path, body, {"Content-Type": "application/json", **(headers or {})}, **options)

    def completion(self, **fields):
        response = self.post("/v1/completions", fields)
        assert response.status == 200, response.text
        return response.json()

    def answers(self, prompts, tokens, **fields):
        """Greedy answers of `tokens` tokens, as choices in the order of the prompts. One request, so that all are there when
        the first is admitted: which of them share steps is not the clients' luck."""
        choices = self.completion(
            prompt=prompts, max_tokens=tokens, temperature=0, logprobs=2, return_token_ids=True, ignore_eos=True, **fields
        )["choices"]
        choices.sort(key=lambda choice: choice["index"])
        assert [len(choice["token_ids"]) for choice in choices] == [tokens] * len(prompts)
        return choices

    def chat(self, messages, **fields):
        response = self.post("/v1/chat/completions", {"messages": messages, **fields})
        assert response.status == 200, response.text
        return response.json()

    def stream(self, path, fields, timeout=120):
        """Yields the chunks of a streamed answer; fails unless it ends with [DONE]."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        with contextlib.closing(connection):
            body = json.dumps({"model": self.model_name, "stream": True, **fields})
            connection.request("POST", path, body, self.headers({"Content-Type": "application/json"}))
            answer = connection.getresponse()
            if answer.status != 200:
                raise AssertionError(f"{answer.status}: {answer.read()[:1000]}")
            assert answer.getheader("Content-Type").startswith("text/event-stream")
            done = False
            for event in sse_events(iter(answer.readline, b"")):
                assert not done, f"after [DONE]: {event}"
                done = event == "[DONE]"
                if not done:
                    yield event
            assert done, "the stream ended without [DONE]"

    def metrics(self):
        """{name or name{labels}: value}"""
        values = {}
        for line in self.get("/metrics").text.splitlines():
            match = re.fullmatch(r"(\w+(?:\{.*\})?) (\S+)", line)
            if match and not line.startswith("#"):
                values[match.group(1)] = float(match.group(2))
        return values

    def metric(self, name):
        """Value of one metric, or the sum over its labels when none are given; fails when there is none of that name."""
        found = [value for key, value in self.metrics().items() if name in (key, key.split("{")[0])]
        assert found, f"no metric {name}"
        return sum(found)

    def resident_bytes(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE).group(1)) * 1024


def refused_at_start(log_path, *options, model=None, env=None, timeout=30):
    """Runs a server that has to end by itself; returns its exit status and what it printed."""
    server = Server(log_path, *options, model=model, env=env)
    server.start()
    try:
        return server.process.wait(timeout), server.log()
    except subprocess.TimeoutExpired:
        server.process.kill()
        server.process.wait()
        raise AssertionError(f"the server should have refused to start:\n{server.log()[-4000:]}") from None
