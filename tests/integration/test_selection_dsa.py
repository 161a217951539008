"""DeepSeek sparse attention against the reference library, through the whole server: log-probabilities, greedy tokens
and the selections themselves, with every row on the device and with hot buffers of hardly more than a selection."""

import pytest

from compare import assert_close
from hotset_server import UNPACKED_FIXTURES, Server, load_json
from selections import blocks_of, read_trace

TOLERANCE = 2e-3
TOP_K = 16
MODELS = ["tiny-deepseek-v32", "tiny-glm-dsa"]
MISSES = "hotset_hot_blocks_total{found=\"miss\"}"


@pytest.fixture(params=MODELS)
def model(request):
    return request.param


def cases_of(model):
    cases = load_json(UNPACKED_FIXTURES / model / "expected.json")["cases"]
    assert len(cases) >= 8
    return cases


def ask(server, ids, tokens=24):
    return server.completion(
        prompt=ids, max_tokens=tokens, temperature=0, echo=True, logprobs=1, return_token_ids=True, ignore_eos=True
    )["choices"]


def check(case, choice):
    prompt = case["input_ids"]
    assert_close(choice["logprobs"]["token_logprobs"][: len(prompt)], case["prompt_logprobs"], TOLERANCE)
    assert choice["token_ids"] == case["greedy"]


def check_selections(cases, trace):
    assert len(trace) == len(cases)
    compared = 0
    for case, layers in zip(cases, trace):
        length = len(case["input_ids"])
        assert {str(layer) for layer in layers} >= set(case["selected_last"])
        for layer, wanted in case["selected_last"].items():
            prefill, selected = layers[int(layer)][length - 1]
            assert prefill
            assert (selected == "all") == (length <= TOP_K)
            assert blocks_of(selected, length) == wanted, f"{length} tokens, layer {layer}"
            compared += 1
    return compared


@pytest.mark.parametrize(
    "options",
    [
        ["--kv-mode", "resident"],
        ["--kv-mode", "hot", "--hot-ring", 1, "--hot-buffer", 16],
        ["--kv-mode", "hot", "--hot-ring", 1, "--hot-buffer", 17],
        ["--kv-mode", "hot", "--hot-ring", 1, "--hot-buffer", 32],
    ],
    ids=["resident", "hot16", "hot17", "hot32"],
)
def test_one_by_one(model, options, tmp_path):
    cases = cases_of(model)
    trace = tmp_path / "trace"
    with Server(tmp_path / "log", *options, "--trace-selections", trace, model=UNPACKED_FIXTURES / model) as server:
        for case in cases:
            check(case, ask(server, case["input_ids"])[0])
        hot = options[1] == "hot"
        assert (server.metric(MISSES) > 0) == hot
        assert (server.metric("hotset_mode_transitions_total{to=\"hot\"}") > 0) == hot
    assert check_selections(cases, read_trace(trace)) == sum(len(case["selected_last"]) for case in cases)


@pytest.mark.parametrize("options", [["--kv-mode", "resident"], ["--kv-mode", "hot", "--hot-ring", 1, "--hot-buffer", 17]],
                         ids=["resident", "hot"])
def test_all_in_one_batch(model, options, tmp_path):
    cases = cases_of(model)
    trace = tmp_path / "trace"
    with Server(tmp_path / "log", *options, "--trace-selections", trace, model=UNPACKED_FIXTURES / model) as server:
        choices = ask(server, [case["input_ids"] for case in cases])
        for case, choice in zip(cases, sorted(choices, key=lambda choice: choice["index"])):
            check(case, choice)
        assert options[1] == "resident" or server.metric("hotset_steps_with_two_hot_total") > 0
    check_selections(cases, read_trace(trace))


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_of_the_prompt(model, chunk, tmp_path):
    with Server(tmp_path / "log", "--prefill-chunk", chunk, model=UNPACKED_FIXTURES / model) as server:
        for case in cases_of(model):
            (choice,) = ask(server, case["input_ids"], tokens=0)
            assert_close(choice["logprobs"]["token_logprobs"], case["prompt_logprobs"], TOLERANCE)


def test_a_prompt_longer_than_the_device_pool(model, tmp_path):
    """Its chunks select from and attend to rows that lie on the host."""
    case = max(cases_of(model), key=lambda case: len(case["input_ids"]))
    assert len(case["input_ids"]) > 192
    options = ["--device-kv-tokens", 192, "--hot-ring", 1, "--hot-buffer", 32, "--prefill-chunk", 32]
    with Server(tmp_path / "log", *options, model=UNPACKED_FIXTURES / model) as server:
        check(case, ask(server, case["input_ids"])[0])
        assert server.metric("hotset_streamed_prefills_total") == 1
        assert server.metric(MISSES) > 0
