"""What a server says at its start about selection: refusals that name the option, and what it does without being asked."""

import json
import shutil

import pytest

from hotset_server import DEFAULT_MODEL, FIXTURES, UNPACKED_FIXTURES, Server, refused_at_start

TINY = FIXTURES / "tiny-llama"
DSA = UNPACKED_FIXTURES / "tiny-deepseek-v32"


@pytest.mark.parametrize(
    "model,options,named",
    [
        (TINY, ["--algorithm", "dsa"], "--algorithm"),
        (TINY, ["--algorithm", "nearest"], "--algorithm"),
        # The forced parts: sink 4 and window 16; the first block and up to three that overlap a window of 32.
        (TINY, ["--algorithm", "lowrank", "--sparse-window", 16, "--sparse-budget", 19], "--sparse-budget"),
        (TINY, ["--algorithm", "quest", "--sparse-window", 32, "--sparse-budget", 63], "--sparse-budget"),
        (TINY, ["--algorithm", "lowrank", "--hot-ring", 63], "--hot-ring"),
        (TINY, ["--algorithm", "quest", "--sparse-window", 32, "--hot-ring", 31], "--hot-ring"),
        (TINY, ["--algorithm", "lowrank", "--sparse-budget", 512, "--hot-buffer", 511], "--hot-buffer"),
        (DSA, ["--hot-buffer", 15], "--hot-buffer"),
        (TINY, ["--algorithm", "streaming", "--sparse-window", 64, "--hot-buffer", 79], "--hot-buffer"),
        (DSA, ["--algorithm", "lowrank", "--index-rank", 5], "--index-rank"),
        (DSA, ["--algorithm", "lowrank", "--index-rank", 4096], "--index-rank"),
        (TINY, ["--quest-combine", "median"], "--quest-combine"),
        (TINY, ["--sparse-block", 12], "--sparse-block"),
        (TINY, ["--verify-rate", "1.5"], "--verify-rate"),
        (TINY, ["--kv-dtype", "fp4"], "--kv-dtype"),
        (TINY, ["--device-metadata-tokens", 10**12, "--algorithm", "lowrank"], "--device-metadata-tokens"),
        (TINY, ["--trace-selections", "/proc/version"], "--trace-selections"),
    ],
)
def test_refused_by_name(model, options, named, tmp_path):
    status, log = refused_at_start(tmp_path / "log", *options, model=model)
    assert status == 1
    (message,) = [line for line in log.splitlines() if "[error]" in line or line.startswith("hotset:")]
    assert named in message, message


@pytest.mark.parametrize(
    "changes,named",
    [
        ({"rope_parameters": {"rope_type": "spiral", "rope_theta": 10000.0}}, "spiral"),
        ({"scoring_func": "tanh"}, "scoring_func"),
        ({"topk_method": "random"}, "topk_method"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_sinks": 4}, "attention_sinks"),
    ],
)
def test_configs_with_unknown_parts_are_refused_by_name(changes, named, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(DSA, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, **changes}), encoding="utf-8")
    status, log = refused_at_start(tmp_path / "log", model=folder)
    assert status == 1
    assert named in log


def without_basis(folder):
    shutil.copytree(TINY, folder, ignore=shutil.ignore_patterns("index_basis*"))
    return folder


def test_neither_basis_nor_tokenizer(tmp_path):
    model = without_basis(tmp_path / "model")
    status, log = refused_at_start(tmp_path / "log", "--algorithm", "lowrank", model=model)
    assert status == 1 and "--algorithm lowrank" in log
    with Server(tmp_path / "auto.log", "--sparse-threshold", 100, model=model) as server:
        assert "[warning]" in server.log() and "dense attention" in server.log()
        assert server.completion(prompt=[5] * 200, max_tokens=4)["usage"]["completion_tokens"] == 4
        response = server.post("/v1/completions", {"prompt": [5], "max_tokens": 1, "hotset": {"algorithm": "lowrank"}})
        assert response.status == 400 and "hotset.algorithm" in response.text


def test_auto_calibrates_once(tmp_path):
    """At the first start of a model with a tokenizer; the second start finds the result."""
    cache = tmp_path / "cache"
    for start, said in (("first", "calibrated at this start"), ("second", "from the cache folder")):
        with Server(tmp_path / f"{start}.log", "--cache-dir", cache, model=DEFAULT_MODEL) as server:
            assert f"lowrank (rank 16, {said})" in server.log()
    (kept,) = cache.iterdir()
    assert kept.suffix == ".safetensors"


def test_selection_of_one_request(tmp_path):
    options = ["--algorithm", "lowrank", "--sparse-threshold", 0, "--sparse-window", 16, "--sparse-budget", 64]
    with Server(tmp_path / "log", *options, model=TINY) as server:
        prompt = [(7 * i) % 500 + 2 for i in range(300)]

        def answer(**hotset):
            fields = dict(prompt=prompt, max_tokens=24, temperature=0, logprobs=1, return_token_ids=True, ignore_eos=True)
            body = server.completion(**fields, hotset={**hotset, "usage": True})
            return body["choices"][0]["logprobs"]["token_logprobs"], body["usage"]["hotset"]

        own, usage = answer()
        assert usage["device_bytes"]["metadata"] > 0 and usage["host_bytes"] > 0
        dense, dense_usage = answer(algorithm="dense")
        assert dense != own and dense_usage["device_bytes"]["metadata"] == 0
        assert answer(algorithm="streaming")[0] not in (own, dense)
        smaller, _ = answer(budget=24)
        assert smaller != own
        assert answer(algorithm="lowrank", budget=64)[0] == own
        for hotset, named in (
            ({"budget": 65}, "hotset.budget"),
            ({"budget": 19}, "hotset.budget"),
            ({"algorithm": "dense", "budget": 64}, "hotset.budget"),
            ({"algorithm": "quest"}, "hotset.algorithm"),
            ({"algorithm": "dsa"}, "hotset.algorithm"),
        ):
            response = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 2, "hotset": hotset})
            assert response.status == 400, hotset
            assert response.json()["error"]["param"] == named


def test_usage_counts_what_was_moved(tmp_path):
    """Hot mode of one sequence: exact bytes of its pages; at most one row is loaded for each miss, beside the ring."""
    options = ["--algorithm", "lowrank", "--sparse-threshold", 0, "--sparse-window", 16, "--sparse-budget", 48]
    options += ["--kv-mode", "hot", "--hot-ring", 16, "--hot-buffer", 64]
    config = json.loads((TINY / "config.json").read_text(encoding="utf-8"))
    layers, heads, width = config["num_hidden_layers"], config["num_key_value_heads"], config["head_dim"]
    row = 2 * 4 * heads * width
    with Server(tmp_path / "log", *options, model=TINY) as server:
        body = server.completion(
            prompt=[(7 * i) % 500 + 2 for i in range(300)], max_tokens=60, ignore_eos=True, temperature=0, hotset={"usage": True}
        )
        usage = body["usage"]["hotset"]
        loaded = server.metric("hotset_bytes_loaded_total")
        misses = server.metric("hotset_hot_blocks_total{found=\"miss\"}")
    assert usage["misses"] == misses > 0
    ring = 16 + 64
    assert 0 < usage["bytes_loaded"] == loaded <= (misses + ring * layers) * row
    assert usage["bytes_offloaded"] >= 300 * row * layers
    # The prompt was resident: 5 pages a layer; later 64 + 80 rows, 3 pages a layer.
    assert usage["device_bytes"]["rows"] == 5 * 64 * row * layers
    rank = 4
    assert usage["device_bytes"]["metadata"] == 6 * layers * heads * 64 * (rank // 2 + 2)
    assert usage["host_bytes"] == 6 * 64 * row * layers + usage["device_bytes"]["metadata"]
    assert usage["device_bytes"]["tables"] > 0
