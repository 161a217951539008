"""Expected numbers of tests/fixtures/tiny-deepseek-v3: tiny-deepseek-v32 read as a model without an indexer.

    python3 tools/make_dense_latent_expected.py ORACLE_FOLDER MODEL_FOLDER OUT.json

ORACLE_FOLDER holds dsa_reference.py, the float64 NumPy reference of the family; MODEL_FOLDER is tiny-deepseek-v32. With
index_topk beyond every length the reference attends densely. Prompts are those of MODEL_FOLDER/expected.json.
"""
import json
import sys

import numpy as np

LENGTHS = (1, 2, 17, 64, 100, 257)
NEW_TOKENS = 24


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def case(model, ids):
    logprobs = log_softmax(model.forward(ids)[0])
    greedy, smallest_margin = [], np.inf
    for _ in range(NEW_TOKENS):
        last = model.forward(ids + greedy)[0][-1]
        second, best = np.sort(last)[-2:]
        smallest_margin = min(smallest_margin, best - second)
        greedy.append(int(last.argmax()))
    return {
        "input_ids": ids,
        "prompt_logprobs": [None] + [round(float(logprobs[t - 1, ids[t]]), 7) for t in range(1, len(ids))],
        "greedy": greedy,
        "smallest_margin": round(float(smallest_margin), 6),
    }


def main():
    oracle, folder, out = sys.argv[1:]
    sys.path.insert(0, oracle)
    from dsa_reference import Model

    model = Model(folder)
    model.cfg["index_topk"] = 1 << 30
    prompts = [one["input_ids"] for one in json.load(open(folder + "/expected.json"))["cases"]]
    cases = [case(model, ids) for ids in prompts if len(ids) in LENGTHS]
    with open(out, "w") as file:
        file.write('{"cases": [\n' + ",\n".join(json.dumps(one) for one in cases) + "\n]}\n")
    print("smallest margin", min(one["smallest_margin"] for one in cases))


if __name__ == "__main__":
    main()
