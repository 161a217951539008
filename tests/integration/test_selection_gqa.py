"""Low-rank index keys, Quest and StreamingLLM against the reference, through the whole server: what every generated
token attends to, and the tokens that come of it. A difference is allowed only where the reference itself is near a tie
(tests/fixtures/README.md); from the first one on nothing can be compared."""

import itertools

import pytest

from compare import margin
from hotset_server import FIXTURES, Server, load_json
from selections import blocks_of, read_trace

MODELS = ["tiny-llama", "tiny-qwen3"]
MISSES = "hotset_hot_blocks_total{found=\"miss\"}"
NEAR_TIE_SCORE = 1e-5
NEAR_TIE_LOGPROB = 2e-3


def grouped_cases():
    """Cases that one server can answer."""
    for model in MODELS:
        cases = load_json(FIXTURES / model / "expected_sparse.json")["cases"]
        key = lambda case: sorted(case["options"].items())
        for _, group in itertools.groupby(sorted(cases, key=key), key):
            group = list(group)
            name = "-".join(str(group[0]["options"][word]) for word in ("algorithm", "combine") if word in group[0]["options"])
            yield pytest.param(model, group, id=f"{model}-{name}")


def server_options(options):
    algorithm = options["algorithm"]
    arguments = ["--algorithm", algorithm, "--sparse-threshold", 0, "--sparse-window", options["window"]]
    if algorithm == "lowrank":
        arguments += ["--sparse-sink", options["sink"], "--sparse-budget", options["budget"]]
        return arguments, options["budget"]
    arguments += ["--sparse-block", options["block"]]
    if algorithm == "streaming":
        return arguments, None
    budget = options["budget"] * options["block"]
    return arguments + ["--quest-combine", options["combine"], "--sparse-budget", budget], budget


def compare(case, choice, layers):
    """Fails at a difference that no near tie excuses; returns how many generated tokens were compared."""
    length = len(case["input_ids"])
    selections = case.get("selected_tokens") or case["selected_blocks"]
    block = case["options"].get("block", 1)
    gaps = case.get("gaps")
    steps = choice["logprobs"]["top_logprobs"]
    for step, wanted in enumerate(case["greedy"]):
        if choice["token_ids"][step] != wanted:
            best = sorted(steps[step].values(), reverse=True)
            assert margin([[None, best[0]], [None, best[1]]]) <= NEAR_TIE_LOGPROB, f"token {step}"
            return step
        seen = length + step + 1
        for layer, blocks in selections[step].items():
            prefill, selected = layers[int(layer)][seen - 1]
            assert not prefill
            if blocks_of(selected, -(-seen // block)) != blocks:
                gap = gaps[step][layer] if gaps else None
                assert gap is not None and gap <= NEAR_TIE_SCORE, f"step {step}, layer {layer}: {selected}, not {blocks}"
                return step
    return len(case["greedy"])


@pytest.mark.parametrize("mode", ["resident", "hot"])
@pytest.mark.parametrize("model,cases", list(grouped_cases()))
def test_selections_and_tokens(model, cases, mode, tmp_path):
    trace = tmp_path / "trace"
    arguments, budget = server_options(cases[0]["options"])
    arguments += ["--kv-mode", mode, "--trace-selections", trace]
    if mode == "hot":
        arguments += ["--hot-ring", cases[0]["options"]["window"]]
        arguments += ["--hot-buffer", budget] if budget else []
    with Server(tmp_path / "log", *arguments, model=FIXTURES / model) as server:
        choices = [
            server.completion(
                prompt=case["input_ids"], max_tokens=25, temperature=0, logprobs=2, return_token_ids=True, ignore_eos=True
            )["choices"][0]
            for case in cases
        ]
        missed = server.metric(MISSES)
    compared = [compare(case, choice, layers) for case, choice, layers in zip(cases, choices, read_trace(trace))]
    assert sum(compared) >= 0.8 * 24 * len(cases), compared
    # Blocks that left ring and slack have to be loaded, some of them more than once.
    assert (missed > 0) == (mode == "hot")
    if mode == "hot":
        assert max(len(case["input_ids"]) for case in cases) > 128


@pytest.mark.parametrize("model", MODELS)
def test_a_budget_that_holds_everything_is_dense(model, tmp_path):
    """Same tokens and log-probabilities as dense attention, to the last bit of the answer's text."""
    case = max(load_json(FIXTURES / model / "expected.json")["cases"], key=lambda case: len(case["input_ids"]))
    fields = dict(prompt=case["input_ids"], max_tokens=24, temperature=0, logprobs=2, return_token_ids=True, ignore_eos=True)
    roomy = ["--sparse-threshold", 0, "--sparse-budget", 512]
    answers = []
    for options in (
        ["--algorithm", "dense"],
        ["--algorithm", "lowrank", *roomy],
        ["--algorithm", "quest", *roomy],
        ["--algorithm", "streaming", "--sparse-threshold", 0, "--sparse-window", 512],
    ):
        with Server(tmp_path / "log", *options, model=FIXTURES / model) as server:
            choice = server.completion(**fields)["choices"][0]
            answers.append((choice["token_ids"], choice["logprobs"]))
    assert answers[0][0] == case["greedy"]
    assert all(answer == answers[0] for answer in answers[1:])
