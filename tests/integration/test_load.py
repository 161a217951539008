"""Many clients at once."""

import concurrent.futures
import contextlib
import http.client
import json
import threading
import time

import pytest

from hotset_server import DEFAULT_MODEL, FIXTURES, Server

STREAMS = 200
TOKENS = 24


@pytest.fixture(scope="module")
def server(logs):
    with Server(logs / "load.log", model=FIXTURES / "tiny-llama") as server:
        yield server


def fields_of(number, **fields):
    prompt = [2 + (number * 31 + position * 7) % 500 for position in range(5 + number % 40)]
    return dict(prompt=prompt, max_tokens=TOKENS, temperature=0, ignore_eos=True, return_token_ids=True, **fields)


def streamed_tokens(server, number):
    tokens, finish = [], []
    for chunk in server.stream("/v1/completions", fields_of(number)):
        for choice in chunk["choices"]:
            tokens += choice.get("token_ids") or []
            finish += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert finish == ["length"]
    return tokens


class HealthWatch(threading.Thread):
    """Asks /health and /metrics every 50 ms until stopped; keeps the slowest answer."""

    def __init__(self, server):
        super().__init__()
        self.server, self.stopped, self.slowest, self.asked = server, threading.Event(), 0.0, 0

    def run(self):
        while not self.stopped.wait(0.05):
            for path in ("/health", "/metrics"):
                began = time.monotonic()
                assert self.server.get(path).status == 200
                self.slowest = max(self.slowest, time.monotonic() - began)
            self.asked += 1


def test_two_hundred_streams_and_health(server):
    alone = {number: streamed_tokens(server, number) for number in (0, 77, 199)}
    watch = HealthWatch(server)
    watch.start()
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        answers = list(pool.map(lambda number: streamed_tokens(server, number), range(STREAMS)))
    took = time.monotonic() - began
    watch.stopped.set()
    watch.join()
    assert all(len(tokens) == TOKENS for tokens in answers)
    assert {number: answers[number] for number in alone} == alone
    print(f"{STREAMS} streams in {took:.1f} s; /health asked {watch.asked} times, slowest {1000 * watch.slowest:.0f} ms")
    assert watch.asked > 0 and watch.slowest < 0.5


def test_health_beside_a_long_prompt_and_a_large_body(server):
    watch = HealthWatch(server)
    watch.start()
    long = server.post("/v1/completions", {"prompt": [2 + i % 500 for i in range(2000)], "max_tokens": 1})
    assert long.status == 200, long.text
    large = server.post("/v1/completions", {"prompt": [2] * 3_000_000, "max_tokens": 1})  # 9 MB of JSON, beyond the context
    assert large.status == 400 and large.json()["error"]["code"] == "context_length_exceeded", large.text[:300]
    watch.stopped.set()
    watch.join()
    assert watch.asked > 0 and watch.slowest < 0.5


def test_a_request_that_waits_gets_comments(logs):
    """Proxies close a connection that is silent: also one whose request has not been admitted yet."""
    with Server(logs / "comments.log", "--max-batch", 1, "--keepalive-comment-ms", 50, model=DEFAULT_MODEL) as server:
        body = {"prompt": "Once upon a time", "max_tokens": 100, "ignore_eos": True}
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            first = pool.submit(server.post, "/v1/completions", body)
            while server.metric("hotset_sequences{state=\"running\"}") == 0:
                time.sleep(0.01)
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            with contextlib.closing(connection):
                fields = {**body, "model": server.model_name, "max_tokens": 1, "stream": True}
                connection.request("POST", "/v1/completions", json.dumps(fields), {"Content-Type": "application/json"})
                lines = connection.getresponse().read().decode().splitlines()
            assert first.result().status == 200
        before = lines[: next(i for i, line in enumerate(lines) if line.startswith("data:"))]
        assert sum(line.startswith(":") for line in before) >= 2, lines


def test_same_tokens_alone_and_among_sixteen_others(server):
    def ask(number, **fields):
        return server.completion(**fields_of(number, logprobs=1, **fields))["choices"][0]

    def comparable(choice):
        return choice["token_ids"], choice["logprobs"]["token_logprobs"]

    for sampling in ({}, {"temperature": 0.8, "seed": 42}):
        fields = {**fields_of(1000, logprobs=1), **sampling}
        alone = comparable(server.completion(**fields)["choices"][0])
        with concurrent.futures.ThreadPoolExecutor(17) as pool:
            others = [pool.submit(ask, number) for number in range(16)]
            among = pool.submit(lambda: comparable(server.completion(**fields)["choices"][0]))
            assert among.result() == alone
            assert all(len(other.result()["token_ids"]) == TOKENS for other in others)


def test_a_full_queue_is_told_at_once(logs):
    with Server(logs / "queue.log", "--max-queue", 2, "--max-batch", 1, model=FIXTURES / "tiny-llama") as server:
        body = {"prompt": [2, 3, 4], "max_tokens": 1500, "ignore_eos": True}
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda _: server.post("/v1/completions", body), range(16)))
        refused = [answer for answer in answers if answer.status == 503]
        assert refused and {answer.status for answer in answers} == {200, 503}
        for answer in refused:
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error"]["message"]
