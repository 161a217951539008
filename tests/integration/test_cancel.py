"""Clients that go away at random moments leave nothing behind."""

import contextlib
import http.client
import json
import random
import threading
import time

import pytest

from hotset_server import FIXTURES, Server

REQUESTS = 100
CLIENTS = 10
FREE_PAGES = "hotset_pool_pages_free"
SEED = random.SystemRandom().randrange(1 << 32)


@pytest.fixture(scope="module")
def server(logs):
    # Two at a time, so that others wait; long prompts in small chunks, so that some are cut in prefill.
    options = ["--max-batch", 2, "--prefill-chunk", 64, "--device-kv-tokens", 4096, "--host-kv", "64MiB"]
    with Server(logs / "cancel.log", *options, model=FIXTURES / "tiny-llama") as server:
        yield server


def free_pages(server):
    found = {key: value for key, value in server.metrics().items() if key.split("{")[0] == FREE_PAGES}
    assert any("device" in key for key in found) and any("host" in key for key in found), found
    return found


def cut_request(server, random_source):
    """Sends one long request and closes the connection after a random time."""
    length, stream = random_source.choice((20, 600, 1200)), random_source.random() < 0.5
    body = {"model": server.model_name, "prompt": [random_source.randrange(2, 512) for _ in range(length)]}
    body |= {"max_tokens": 800, "ignore_eos": True, "stream": stream}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        wait = random_source.choice((0.0, 0.01, 0.05, 0.2, 0.5)) * random_source.random()
        if stream and random_source.random() < 0.3:  # certainly in decode
            answer = connection.getresponse()
            answer.read(64)
        time.sleep(wait)


def test_pools_return_to_their_start(server):
    print("seed", SEED)
    start = free_pages(server)
    numbers = iter(range(REQUESTS))
    lock = threading.Lock()

    def client():
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            cut_request(server, random.Random(SEED + number))

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    deadline = time.monotonic() + 20
    while free_pages(server) != start and time.monotonic() < deadline:
        time.sleep(0.1)
    assert free_pages(server) == start

    began = time.monotonic()
    assert len(server.completion(prompt=[5, 6, 7], max_tokens=4, ignore_eos=True, return_token_ids=True)["choices"][0]["token_ids"]) == 4
    assert time.monotonic() - began < 2


def test_half_closed_connection_counts_as_gone(server):
    start, gone = free_pages(server), server.metric("hotset_client_gone_total")
    body = json.dumps({"model": server.model_name, "prompt": [2, 3], "max_tokens": 1500, "ignore_eos": True}).encode()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        connection.sock.shutdown(1)
        deadline = time.monotonic() + 10
        while server.metric("hotset_client_gone_total") == gone and time.monotonic() < deadline:
            time.sleep(0.05)
        assert server.metric("hotset_client_gone_total") == gone + 1
        while free_pages(server) != start and time.monotonic() < deadline:
            time.sleep(0.05)
        assert free_pages(server) == start
