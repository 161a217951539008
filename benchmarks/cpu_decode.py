#!/usr/bin/env python3
"""Hotset's CPU data plane beside llama.cpp on the same file and machine, in one run: tokens/s, medians of several rounds.

Needs `pip install llama-cpp-python==0.3.36` in the Python that runs it (built with -march=native: about 20 minutes of
one core) and the benchmark program: `cmake --build build/release --target cpu_decode`.

Usage: cpu_decode.py MODEL.gguf [THREADS] [ROUNDS] [PROGRAM]       e.g. cpu_decode.py model.gguf 1,2 3
The two run in turn, round by round, so that a machine whose speed drifts treats both alike.
"""
import ctypes
import os
import statistics
import subprocess
import sys
import time

import llama_cpp

PROMPT, DECODE = 512, 128


class Peer:
    """llama.cpp with the same cases as benchmarks/cpu_decode.cpp."""

    def __init__(self, path):
        self.callback = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.callback, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        parameters = llama_cpp.llama_model_default_params()
        parameters.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), parameters)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def context(self, threads, sequences):
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = 1024 * sequences
        parameters.n_batch = parameters.n_ubatch = PROMPT
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.n_seq_max = sequences
        parameters.no_perf = True
        return llama_cpp.llama_init_from_model(self.model, parameters)

    def decode_batch(self, context, tokens, positions, sequences, logits):
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = int(token), positions[i], 1
            batch.seq_id[i][0], batch.logits[i] = sequences[i], int(logits[i])
        assert llama_cpp.llama_decode(context, batch) == 0
        llama_cpp.llama_synchronize(context)
        llama_cpp.llama_batch_free(batch)

    def prefill(self, context, tokens, sequence):
        ids = [3 + (t * 7919 + sequence * 31) % (self.vocabulary - 3) for t in range(tokens)]
        self.decode_batch(context, ids, range(tokens), [sequence] * tokens, [False] * (tokens - 1) + [True])

    def measure(self, threads):
        rates = {}
        for name, sequences, context_tokens in (("pp512", 1, 0), ("tg128", 1, 0), ("tg128@512", 1, PROMPT), ("4x128", 4, 0)):
            context = self.context(threads, sequences)
            for timed in (False, True):  # once to warm up
                llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
                start = max(context_tokens, 1)
                begin = time.perf_counter()
                if name == "pp512":
                    self.prefill(context, PROMPT, 0)
                    tokens = PROMPT
                else:
                    for sequence in range(sequences):
                        self.prefill(context, start, sequence)
                    begin = time.perf_counter()
                    for i in range(DECODE):
                        ids = [(i * 7919 + s * 31) % self.vocabulary for s in range(sequences)]
                        self.decode_batch(context, ids, [start + i] * sequences, range(sequences), [True] * sequences)
                    tokens = DECODE * sequences
                if timed:
                    rates[name] = tokens / (time.perf_counter() - begin)
            llama_cpp.llama_free(context)
        return rates


def ours(program, model, threads):
    output = subprocess.run([program, model, str(threads), "1"], check=True, capture_output=True, text=True).stdout
    return {line.split()[1]: float(line.split()[2]) for line in output.splitlines()}


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    model = sys.argv[1]
    threads_list = [int(x) for x in (sys.argv[2] if len(sys.argv) > 2 else "1,2").split(",")]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    here = os.path.dirname(os.path.abspath(__file__))
    program = sys.argv[4] if len(sys.argv) > 4 else os.path.join(here, "..", "build", "release", "cpu_decode")
    peer = Peer(model)
    print(f"{os.path.basename(model)}; llama-cpp-python {llama_cpp.__version__}; tokens/s, "
          f"median (min-max) of {rounds} rounds; load at start {os.getloadavg()[0]:.2f}")
    print(f"{'threads':>7}  {'case':10}  {'hotset':>22}  {'llama.cpp':>22}  ratio")
    for threads in threads_list:
        rows = [(ours(program, model, threads), peer.measure(threads)) for _ in range(rounds)]
        for case in rows[0][0]:
            a, b = [row[0][case] for row in rows], [row[1][case] for row in rows]
            show = lambda x: f"{statistics.median(x):.1f} ({min(x):.1f}-{max(x):.1f})"
            print(f"{threads:>7}  {case:10}  {show(a):>22}  {show(b):>22}  {statistics.median(a) / statistics.median(b):.2f}",
                  flush=True)


if __name__ == "__main__":
    main()
