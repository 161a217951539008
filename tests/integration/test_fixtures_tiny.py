"""Random checkpoints against the reference library, through the whole server."""

import pytest

from compare import assert_close
from conftest import expected
from hotset_server import FIXTURES, Server

TOLERANCE = 2e-3
MODELS = ["tiny-llama", "tiny-qwen3"]


@pytest.fixture(scope="module", params=MODELS)
def model(request, logs):
    with Server(logs / f"{request.param}.log", model=FIXTURES / request.param) as server:
        yield request.param, server


def ask(server, ids, **fields):
    return server.completion(
        prompt=ids, max_tokens=24, temperature=0, echo=True, logprobs=1, return_token_ids=True, ignore_eos=True, **fields
    )


def check_case(case, answer):
    (choice,) = answer["choices"]
    ids, logprobs = case["input_ids"], choice["logprobs"]
    assert choice["prompt_token_ids"] == ids
    assert choice["token_ids"] == case["greedy"]
    assert_close(logprobs["token_logprobs"][: len(ids)], case["prompt_logprobs"], TOLERANCE)
    assert logprobs["tokens"] == [f"token_id:{token}" for token in ids + case["greedy"]]
    assert len(logprobs["top_logprobs"]) == len(logprobs["tokens"]) == len(logprobs["text_offset"])
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == len(ids)
    assert answer["usage"]["completion_tokens"] == 24


def test_every_length_agrees_with_the_reference(model):
    name, server = model
    cases = expected(f"{name}/expected.json")["cases"]
    assert len(cases) == 9
    for case in cases:
        check_case(case, ask(server, case["input_ids"]))


def test_all_prompts_in_one_request(model):
    name, server = model
    cases = expected(f"{name}/expected.json")["cases"]
    answer = ask(server, [case["input_ids"] for case in cases])
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    assert [choice["index"] for choice in choices] == list(range(len(cases)))
    for case, choice in zip(cases, choices):
        assert choice["token_ids"] == case["greedy"]
        assert_close(choice["logprobs"]["token_logprobs"][: len(case["input_ids"])], case["prompt_logprobs"], TOLERANCE)
    assert answer["usage"]["prompt_tokens"] == sum(len(case["input_ids"]) for case in cases)


def test_stream_equals_answer_in_one_piece(model):
    name, server = model
    case = expected(f"{name}/expected.json")["cases"][-1]
    fields = dict(prompt=case["input_ids"], max_tokens=24, temperature=0, logprobs=1, return_token_ids=True, ignore_eos=True)
    whole = server.completion(**fields)["choices"][0]
    tokens, logprobs, finish = [], [], []
    for chunk in server.stream("/v1/completions", fields):
        for choice in chunk["choices"]:
            tokens += choice.get("token_ids") or []
            logprobs += (choice.get("logprobs") or {}).get("token_logprobs") or []
            finish.append(choice["finish_reason"])
    assert tokens == whole["token_ids"] == case["greedy"]
    assert logprobs == whole["logprobs"]["token_logprobs"]
    assert finish[-1] == "length" and set(finish[:-1]) <= {None}


def test_only_scoring_a_prompt(model):
    name, server = model
    case = expected(f"{name}/expected.json")["cases"][4]
    answer = server.completion(prompt=case["input_ids"], max_tokens=0, echo=True, logprobs=0)
    assert_close(answer["choices"][0]["logprobs"]["token_logprobs"], case["prompt_logprobs"], TOLERANCE)
    assert answer["usage"]["completion_tokens"] == 0
