"""Servers with random options and small pools, asked at random by many at once: every answer is bit for bit that of an idle
server in which everything stays resident. HOTSET_TEST_SEED repeats a run."""

import concurrent.futures
import os
import random
import time

import pytest

from hotset_server import FIXTURES, UNPACKED_FIXTURES, Server

MODELS = {name: FIXTURES / name for name in ("tiny-llama", "tiny-qwen3")}
MODELS |= {name: UNPACKED_FIXTURES / name for name in ("tiny-deepseek-v32", "tiny-glm-dsa")}
SEED = int(os.environ.get("HOTSET_TEST_SEED", random.SystemRandom().randrange(1 << 31)))
LENGTHS = [1, 2, 15, 17, 63, 64, 65, 100, 127, 129, 193, 256, 300, 400, 520]


def options_of(draw):
    """(model, options of both servers, options of the small one)"""
    model = draw.choice(sorted(MODELS))
    selecting = "dsa" if MODELS[model].parent == UNPACKED_FIXTURES else draw.choice(["lowrank", "quest"])
    algorithm = draw.choice([selecting, selecting, selecting, "streaming", "dense"])
    both = ["--algorithm", algorithm, "--prefill-chunk", draw.choice([1, 3, 17, 64, 100]), "--max-context", 1024]
    both += ["--kv-dtype", draw.choice(["f32", "bf16", "fp8"])]
    small = ["--kv-mode", draw.choice(["hot", "auto", "auto"]), "--device-kv-tokens", draw.choice([256, 320, 512, 768])]
    small += ["--max-batch", draw.choice([1, 2, 3, 4, 8])]
    if draw.random() < 0.5:
        small += ["--host-kv", draw.choice(["2MiB", "4MiB"])]
    if algorithm == "dense":
        return model, both, small
    window, block = draw.choice([1, 5, 16, 33]), draw.choice([1, 8, 16, 64])
    both += ["--sparse-window", window]
    small += ["--hot-ring", max(window, draw.choice([1, 16, 64])), "--verify-rate", draw.choice([0, 0.1])]
    if algorithm != "dsa":
        both += ["--sparse-threshold", draw.choice([0, 1, 64, 100, 200])]
    if algorithm in ("quest", "streaming"):
        both += ["--sparse-block", block]
    if algorithm in ("lowrank", "quest"):
        forced = window + 4 if algorithm == "lowrank" else block * (2 + -(-window // block))
        budget = forced + draw.choice([0, block, 48])
        both += ["--sparse-budget", budget]
        small += ["--hot-buffer", budget + draw.choice([0, block, 64])]
    if algorithm == "dsa":
        small += ["--hot-buffer", draw.choice([16, 17, 32])]
    return model, both, small


def request_of(draw, algorithms):
    def prompt():
        return [draw.randrange(2, 500) for _ in range(draw.choice(LENGTHS))]

    fields = {"prompt": prompt(), "max_tokens": draw.choice([1, 2, 20, 64, 130]), "logprobs": 2, "return_token_ids": True}
    fields["ignore_eos"] = draw.random() < 0.8
    if draw.random() < 0.5:
        fields["temperature"] = 0
    else:
        fields |= {"temperature": 0.9, "seed": draw.randrange(1000), "top_p": 0.95, "presence_penalty": 0.4}
    if draw.random() < 0.2:
        fields["n"] = draw.choice([2, 3])
    if draw.random() < 0.2:
        fields["prompt"] = [prompt(), prompt()]
    if draw.random() < 0.2:
        fields["echo"] = True
    if draw.random() < 0.3:
        fields["hotset"] = {"algorithm": draw.choice(algorithms)}
    return fields


def ask(server, fields):
    """The answer's numbers; None where the pools can never hold it."""
    answer = server.post("/v1/completions", fields)
    if answer.status == 400 and answer.json()["error"]["code"] == "capacity_exceeded":
        return None
    assert answer.status == 200, answer.text
    choices = sorted(answer.json()["choices"], key=lambda choice: choice["index"])
    return [(choice["token_ids"], choice["finish_reason"], choice["logprobs"]["token_logprobs"]) for choice in choices]


@pytest.mark.parametrize("number", range(12))
def test_answers_of_an_idle_resident_server(number, tmp_path):
    draw = random.Random(SEED + number)
    model, both, small = options_of(draw)
    algorithms = ["dense"] if "dense" in both else ["dense", "streaming"]  # of single requests
    requests = [request_of(draw, algorithms) for _ in range(10)]
    print(f"HOTSET_TEST_SEED={SEED}, server {number}: {model}", *both, "|", *small)
    with Server(tmp_path / "idle.log", *both, "--kv-mode", "resident", model=MODELS[model]) as server:
        wanted = [ask(server, fields) for fields in requests]
    assert None not in wanted
    with Server(tmp_path / "small.log", *both, *small, model=MODELS[model]) as server:

        def free_pages():
            return {key: value for key, value in server.metrics().items() if key.startswith("hotset_pool_pages_free")}

        before = free_pages()
        with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
            answers = list(pool.map(lambda fields: ask(server, fields), requests))
        for index, (got, want) in enumerate(zip(answers, wanted)):
            assert got is None or got == want, f"request {index}: {requests[index]}"
        deadline = time.monotonic() + 10
        while free_pages() != before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert free_pages() == before
        assert server.metric("hotset_verify_failed_total") == 0
        print(sum(got is not None for got in answers), "of", len(requests), "compared")
