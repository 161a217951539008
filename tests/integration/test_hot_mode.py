"""Hot mode: a device pool smaller than the conversations changes nothing in the answers.

Misses happen wherever the length exceeds ring + slack + one block: only then has the first block left the ring.
"""

import concurrent.futures
import random

import pytest

from compare import assert_close, assert_same_until_near_tie
from conftest import expected
from hotset_server import DEFAULT_MODEL, FIXTURES, REPOSITORY, Server

MODELS = ["tiny-llama", "tiny-qwen3"]
STREAMING = ["--algorithm", "streaming", "--sparse-block", 16, "--sparse-window", 112, "--sparse-threshold", 0]
RING_AND_SLACK_AND_BLOCK = 128 + 64 + 16
# Prompt and output lengths: together they cross 63/64/65, 511/512/513 and 1,000.
LENGTHS = [(1, 70), (62, 8), (63, 8), (64, 8), (65, 8), (200, 24), (500, 24), (700, 24), (511, 8), (512, 8), (513, 8), (996, 16), (1300, 24)]

MISSES = "hotset_hot_blocks_total{found=\"miss\"}"
SHARED_STEPS = "hotset_steps_with_two_hot_total"


def prompt_of(length):
    return [random.Random(length).randrange(2, 512) for _ in range(length)]


def ask_together(server, prompt_lengths, output):
    choices = server.answers([prompt_of(length) for length in prompt_lengths], output)
    return [
        (choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]) for choice in choices
    ]


def ask(server, prompt_length, output):
    return ask_together(server, [prompt_length], output)[0]


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return request.param


@pytest.fixture(scope="module")
def resident_answers(model, logs):
    """The answers with room for everything."""
    with Server(logs / f"{model}-resident.log", *STREAMING, "--kv-mode", "resident", model=FIXTURES / model) as server:
        return {lengths: ask(server, *lengths) for lengths in LENGTHS}


@pytest.fixture(scope="module")
def hot_server(model, logs):
    options = [*STREAMING, "--kv-mode", "hot", "--device-kv-tokens", 512]
    with Server(logs / f"{model}-hot.log", *options, model=FIXTURES / model) as server:
        yield server


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_hot_equals_resident(hot_server, resident_answers, lengths):
    before = hot_server.metric(MISSES)
    assert ask(hot_server, *lengths) == resident_answers[lengths]
    if sum(lengths) > RING_AND_SLACK_AND_BLOCK:
        assert hot_server.metric(MISSES) > before


def test_four_at_once_two_run_two_wait(model, logs, resident_answers):
    four = [lengths for lengths in LENGTHS if lengths[1] == 24]
    assert len(four) == 4
    options = [*STREAMING, "--kv-mode", "hot", "--device-kv-tokens", 1024]
    with Server(logs / f"{model}-four.log", *options, model=FIXTURES / model) as server:
        before = server.metric(SHARED_STEPS)
        answers = ask_together(server, [length for length, _ in four], 24)
        assert answers == [resident_answers[lengths] for lengths in four]
        assert server.metric(MISSES) > 0
        assert server.metric(SHARED_STEPS) > before


def test_hot_agrees_with_the_reference(model, logs):
    """The streaming cases of the independent reference. Its window is 64, so a ring of 64 is the smallest."""
    cases = [case for case in expected(f"{model}/expected_sparse.json")["cases"] if case["options"]["algorithm"] == "streaming"]
    assert len(cases) == 3
    compared = 0
    for mode in ("resident", "hot"):
        options = ["--algorithm", "streaming", "--sparse-block", 16, "--sparse-window", 64, "--sparse-threshold", 0]
        options += ["--hot-ring", 64, "--kv-mode", mode, "--device-kv-tokens", 512]
        with Server(logs / f"{model}-reference-{mode}.log", *options, model=FIXTURES / model) as server:
            for case in cases:
                assert case["options"] == {"algorithm": "streaming", "block": 16, "window": 64}
                choice = server.completion(
                    prompt=case["input_ids"], max_tokens=24, temperature=0, logprobs=2, return_token_ids=True, ignore_eos=True
                )["choices"][0]
                tops = [sorted(top.values(), reverse=True) for top in choice["logprobs"]["top_logprobs"]]
                margins = [top[0] - top[1] for top in tops]
                same = assert_same_until_near_tie(choice["token_ids"], case["greedy"], margins, near_tie=0.002)
                assert_close(choice["logprobs"]["token_logprobs"][:same], case["greedy_logprobs"][:same], 2e-3)
                compared += same
            if mode == "hot":
                assert server.metric(MISSES) > 0
    print(f"{compared} of {2 * 3 * 24} tokens compared")
    assert compared > 100


def test_default_model_hot_equals_resident(logs):
    """A real model, text in and out, greedy and sampled, four conversations at once in a pool of two."""
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    requests = [
        {"prompt": text[:characters], "max_tokens": 32, "temperature": temperature, "seed": 5, "logprobs": 2, "ignore_eos": True}
        for characters, temperature in ((60, 0), (900, 0.8), (2500, 0), (4000, 0.8))
    ]

    def answers(mode, device_tokens, workers):
        options = [*STREAMING, "--kv-mode", mode, "--device-kv-tokens", device_tokens]
        with Server(logs / f"default-{mode}.log", *options, model=DEFAULT_MODEL) as server:
            with concurrent.futures.ThreadPoolExecutor(workers) as pool:
                choices = list(pool.map(lambda fields: server.completion(**fields)["choices"][0], requests))
            assert (server.metric(MISSES) > 0) == (mode == "hot")
            return [(choice["text"], choice["logprobs"]) for choice in choices]

    assert answers("hot", 1024, 4) == answers("resident", 8192, 1)


@pytest.fixture(scope="module")
def dense_server(logs):
    with Server(logs / "dense.log", "--device-kv-tokens", 512, model=FIXTURES / "tiny-llama") as server:
        yield server


def test_dense_request_that_never_fits_is_refused_by_name(dense_server):
    response = dense_server.post("/v1/completions", {"prompt": prompt_of(600), "max_tokens": 8})
    assert response.status == 400, response.text
    assert "--device-kv-tokens" in response.json()["error"]["message"]


def test_dense_request_that_fits_later_waits(dense_server):
    lengths = (300, 310, 320)
    assert ask_together(dense_server, lengths, 60) == [ask(dense_server, length, 60) for length in lengths]
