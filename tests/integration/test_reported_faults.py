"""Faults that users of comparable servers reported, of sparse attention over a tiered cache: one test each, through the
whole server. Those that live in a kernel (rows with few finite scores, NaN scores, offsets beyond 32 bits, FP8 scales)
are tested there too: tests/kernels, tests/core."""

import concurrent.futures
import random

import pytest

from compare import assert_close, assert_same_until_near_tie, margin
from hotset_server import DEFAULT_MODEL, FIXTURES, REPOSITORY, UNPACKED_FIXTURES, Server, load_json

DSA_MODEL = UNPACKED_FIXTURES / "tiny-deepseek-v32"
DSA_TOP_K = 16
LOWRANK = ["--algorithm", "lowrank", "--sparse-threshold", 0, "--sparse-window", 16, "--sparse-budget", 48]
HOT = ["--kv-mode", "hot", "--hot-ring", 16, "--hot-buffer", 64]


def prompt_of(length, seed=0):
    return [random.Random(1000 * seed + length).randrange(2, 512) for _ in range(length)]


def ask_together(server, prompts, tokens, **fields):
    choices = server.answers(prompts, tokens, **fields)
    return [(choice["token_ids"], choice["logprobs"]["token_logprobs"]) for choice in choices]


def ask(server, prompt, tokens, **fields):
    return ask_together(server, [prompt], tokens, **fields)[0]


def test_no_cliff_behind_the_budget(tmp_path):
    """A trivial question behind filler, with lengths around the budget: the answer stays right and as sure as dense."""
    filler = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
    question = "\n\nQuestion: What is the capital of France?\nAnswer: The capital of France is"
    budget = 256
    options = ["--algorithm", "lowrank", "--sparse-threshold", 0, "--sparse-budget", budget]
    with Server(tmp_path / "log", *options, model=DEFAULT_MODEL) as server:

        def tokens_of(text):
            return server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]

        filler_ids, question_ids = tokens_of(filler), tokens_of(question)
        paris = tokens_of(" Paris")
        lengths = [*range(budget - 64, budget + 65, 16), 2 * budget, 4 * budget]
        compared = 0
        for length in lengths:
            prompt = filler_ids[: length - len(question_ids)] + question_ids
            assert len(prompt) == length
            # The second token is the first that attends to a selection.
            dense = ask(server, prompt + paris[:1], 4, hotset={"algorithm": "dense"})
            first = ask(server, prompt, 2)
            sparse = ask(server, prompt + paris[:1], 4)
            assert first[0][0] == paris[0], f"{length} tokens"
            assert sparse[1][0] == dense[1][0], "the first token comes of the dense prompt"
            same = next((i for i, (a, b) in enumerate(zip(sparse[0], dense[0])) if a != b), 4)
            for position in range(1, same):
                assert abs(sparse[1][position] - dense[1][position]) < 0.35, f"{length} tokens, answer's token {position}"
            compared += same - 1
        print(f"{compared} of {3 * len(lengths)} tokens compared")
        assert compared >= 2 * len(lengths)


def test_prompts_shorter_than_top_k_are_dense(tmp_path):
    with Server(tmp_path / "log", model=DSA_MODEL) as server:
        for length in range(1, DSA_TOP_K + 1):
            fields = dict(prompt=prompt_of(length), max_tokens=0, echo=True, logprobs=1)
            selecting = server.completion(**fields)["choices"][0]["logprobs"]
            dense = server.completion(**fields, hotset={"algorithm": "dense"})["choices"][0]["logprobs"]
            assert selecting == dense
        longer = dict(prompt=prompt_of(100), max_tokens=0, echo=True, logprobs=1)
        assert (
            server.completion(**longer)["choices"][0]["logprobs"]
            != server.completion(**longer, hotset={"algorithm": "dense"})["choices"][0]["logprobs"]
        )


@pytest.mark.parametrize("options", [["--kv-mode", "resident"], ["--kv-mode", "hot", "--hot-ring", 1, "--hot-buffer", 17]],
                         ids=["resident", "hot"])
def test_short_and_long_rows_in_one_batch(options, tmp_path):
    lengths = [1, 2, 15, 16, 17, 300]
    prompts = [prompt_of(length) for length in lengths]
    with Server(tmp_path / "log", *options, model=DSA_MODEL) as server:
        alone = [ask(server, prompt, 12) for prompt in prompts]
        assert ask_together(server, prompts, 12) == alone


@pytest.mark.parametrize("algorithm", ["lowrank", "quest"])
def test_partly_filled_pages_that_were_used_before(algorithm, tmp_path):
    """Lengths around multiples of the page, in pools whose pages others have used, against a fresh server."""
    lengths = [63, 64, 65, 127, 128, 129, 191, 192, 193]
    options = ["--algorithm", algorithm, "--sparse-threshold", 0, "--sparse-window", 16, "--sparse-budget", 64]
    small = [*options, *HOT, "--device-kv-tokens", 512, "--host-kv", "2MiB"]
    with Server(tmp_path / "fresh.log", *options, model=FIXTURES / "tiny-llama") as server:
        wanted = [ask(server, prompt_of(length), 6) for length in lengths]
    with Server(tmp_path / "used.log", *small, model=FIXTURES / "tiny-llama") as server:
        for seed in range(1, 9):  # fills every page of both pools with other rows
            ask(server, prompt_of(400, seed), 6)
        assert [ask(server, prompt_of(length), 6) for length in lengths] == wanted


def test_long_generation_is_mirrored_on_the_host(tmp_path):
    """Tokens of one long answer leave the device many times over; each finished page is on the host exactly once."""
    prompt, tokens = prompt_of(40), 700
    with Server(tmp_path / "resident.log", *LOWRANK, "--kv-mode", "resident", model=FIXTURES / "tiny-llama") as server:
        wanted = ask(server, prompt, tokens)
    options = [*LOWRANK, *HOT, "--verify-rate", 0.05]
    with Server(tmp_path / "hot.log", *options, model=FIXTURES / "tiny-llama") as server:
        assert ask(server, prompt, tokens) == wanted
        # Rows of the prompt and of every token but the last, which nothing follows; one overshoot row at most.
        rows = len(prompt) + tokens - 1
        assert server.metric("hotset_pages_written_through_total") in (rows // 64, (rows + 1) // 64)
        assert server.metric("hotset_hot_blocks_total{found=\"miss\"}") > 1000
        assert server.metric("hotset_verify_checked_total") > 0
        assert server.metric("hotset_verify_failed_total") == 0


@pytest.mark.parametrize("model,options", [(FIXTURES / "tiny-llama", LOWRANK), (DSA_MODEL, [])], ids=["lowrank", "dsa"])
def test_every_batch_size(model, options, tmp_path):
    """Requests of different lengths that start and end at different times, for every size up to one more than fits."""
    largest = 6
    with Server(tmp_path / "log", *options, *HOT, "--max-batch", largest, model=model) as server:
        requests = [(prompt_of(20 + 37 * i), 5 + 9 * i) for i in range(largest + 1)]
        alone = [ask(server, *request) for request in requests]
        for size in range(1, largest + 2):
            with concurrent.futures.ThreadPoolExecutor(size) as pool:
                assert list(pool.map(lambda request: ask(server, *request), requests[:size])) == alone[:size]


@pytest.mark.parametrize(
    "options",
    [
        ["--algorithm", "lowrank", "--sparse-budget", 2048, "--kv-mode", "resident"],
        ["--algorithm", "lowrank", "--sparse-budget", 2048, "--kv-mode", "hot", "--hot-ring", 64, "--hot-buffer", 2048],
        ["--algorithm", "quest", "--sparse-budget", 512, "--kv-mode", "hot", "--device-kv-tokens", 1536],
        ["--algorithm", "dense", "--device-kv-tokens", 512, "--prefill-chunk", 64],
    ],
    ids=["resident", "hot", "small-hot", "small"],
)
def test_real_weights_in_every_tier_against_the_dense_reference(options, tmp_path):
    """A budget that holds everything makes the answers dense, while rows go through host and hot buffers."""
    reference = load_json(FIXTURES / "smollm2" / "expected.json")
    tolerance = reference["tolerance"]["prompt_logprobs_abs"]
    compared = total = 0
    with Server(tmp_path / "log", "--sparse-threshold", 0, *options, model=DEFAULT_MODEL) as server:
        for case in reference["generate"][:6]:
            answer = server.completion(
                prompt=case["ids"], max_tokens=24, temperature=0, echo=True, logprobs=2, return_token_ids=True
            )["choices"][0]
            count = len(case["ids"])
            assert_close(answer["logprobs"]["token_logprobs"][:count], case["prompt_logprobs"], tolerance)
            margins = [margin(step["top"]) for step in case["steps"]]
            wanted = case["greedy"][: len(answer["token_ids"])]
            compared += assert_same_until_near_tie(answer["token_ids"], wanted, margins, near_tie=0.02)
            total += len(wanted)
    assert compared > 0.8 * total


@pytest.mark.parametrize("algorithm", ["lowrank", "dense"])
def test_admission_when_the_pools_hold_three(algorithm, tmp_path):
    """Eight long requests, a host pool for three and a device pool for hardly two: all end, with the answers of an
    idle server, and some were set aside meanwhile."""
    prompt_tokens, tokens = 150, 200
    pages = -(-(prompt_tokens + tokens + 1) // 64)
    prompts = [prompt_of(prompt_tokens, seed) for seed in range(8)]
    options = ["--algorithm", algorithm, "--sparse-threshold", 200, "--sparse-window", 16, "--sparse-budget", 48]
    options += ["--hot-ring", 16, "--hot-buffer", 64]
    with Server(tmp_path / "idle.log", *options, model=FIXTURES / "tiny-llama") as server:
        wanted = [ask(server, prompt, tokens) for prompt in prompts]
        geometry = load_json(FIXTURES / "tiny-llama" / "config.json")
    row_bytes = 2 * 4 * geometry["num_key_value_heads"] * geometry["head_dim"] * geometry["num_hidden_layers"]
    host_bytes = 3 * pages * 64 * row_bytes
    small = [*options, "--host-kv", int(host_bytes * 1.15), "--device-kv-tokens", 64 * (pages + 2)]
    with Server(tmp_path / "small.log", *small, model=FIXTURES / "tiny-llama") as server:
        assert ask_together(server, prompts, tokens) == wanted
        if algorithm == "dense":
            assert server.metric("hotset_mode_transitions_total{to=\"parked\"}") > 0
            assert server.metric("hotset_resumes_total") > 0
        else:
            assert server.metric("hotset_mode_transitions_total{to=\"hot\"}") > 0
        # Everything came back.
        for tier in ("device", "host"):
            free = server.metric(f"hotset_pool_pages_free{{tier=\"{tier}\"}}")
            assert free == server.metric(f"hotset_pool_pages{{tier=\"{tier}\"}}")


def test_fp8_dialogues_before_and_after_parking(tmp_path):
    """Twenty multi-turn dialogues with FP8 rows: the same alone as with parking and reloading, which moves scales too. The
    small pool holds five pages: the first turn's sequences enter with one and end with two: one has to be parked."""
    options = ["--kv-dtype", "fp8", "--algorithm", "lowrank", "--sparse-threshold", 128, "--sparse-window", 16]
    options += ["--sparse-budget", 48, "--hot-ring", 16, "--hot-buffer", 64]
    said = [prompt_of(40, seed) for seed in range(20)]
    turns = []  # [turn] (prompts, answers)
    with Server(tmp_path / "roomy.log", *options, model=FIXTURES / "tiny-llama") as server:
        for turn in range(3):
            answers = [ask(server, prompt, 50) for prompt in said]
            turns.append((said, answers))
            questions = [prompt_of(25, 100 * seed + turn) for seed in range(len(said))]
            said = [prompt + tokens + question for prompt, (tokens, _), question in zip(said, answers, questions)]
    small = [*options, "--device-kv-tokens", 320, "--max-batch", 6]
    with Server(tmp_path / "small.log", *small, model=FIXTURES / "tiny-llama") as server:
        for prompts, answers in turns:
            assert ask_together(server, prompts, 50) == answers
        assert server.metric("hotset_mode_transitions_total{to=\"parked\"}") > 0
        assert server.metric("hotset_resumes_total") > 0


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-qwen3", "tiny-deepseek-v32", "tiny-glm-dsa"])
def test_fp8_gap_to_bf16(model, tmp_path):
    """The gap that FP8 rows cost: 3 bits of mantissa against 7 make it about 16 times that of bf16 rows. DSA is compared
    densely: its selections flip at near ties, which says nothing about the rows."""
    folder = (UNPACKED_FIXTURES if model in ("tiny-deepseek-v32", "tiny-glm-dsa") else FIXTURES) / model
    cases = load_json(folder / "expected.json")["cases"]

    def logprobs(dtype):
        with Server(tmp_path / f"{dtype}.log", "--kv-dtype", dtype, "--algorithm", "dense", model=folder) as server:
            return [
                logprob
                for case in cases
                for logprob in server.completion(prompt=case["input_ids"], max_tokens=0, echo=True, logprobs=0)["choices"][0][
                    "logprobs"
                ]["token_logprobs"][1:]
            ]

    exact, bf16, fp8 = logprobs("f32"), logprobs("bf16"), logprobs("fp8")

    def mean_gap(one, two):
        return sum(abs(a - b) for a, b in zip(one, two)) / len(one)

    print(f"{model}: f32 to bf16 {mean_gap(exact, bf16):.4f}, bf16 to fp8 {mean_gap(bf16, fp8):.4f}, {len(exact)} tokens")
    assert 4 * mean_gap(exact, bf16) < mean_gap(bf16, fp8) < 24 * mean_gap(exact, bf16)
