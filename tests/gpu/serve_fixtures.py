#!/usr/bin/env python3
"""The tiny fixtures through a whole server in f32, resident and hot, against the reference library's numbers: what
tests/integration checks on the CPU, for a machine that has a GPU and a bundle (tools/bundle), but no pytest.

usage: serve_fixtures.py [--binary PATH] [--device cuda|cpu] [--jobs N] [--only TEXT]
       serve_fixtures.py --list
       serve_fixtures.py --memcheck [--tool-path PATH] [--binary PATH] [--only TEXT]

Prints one line per check, then a summary; exit status 1 when a check failed. With --device cpu it checks a CPU build.
--memcheck serves a few requests under compute-sanitizer, hot and with a prompt longer than the device pool, and stops the
server: no error may be reported.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import http.client
import io
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import sys
import tarfile
import tempfile
import threading
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--binary", type=pathlib.Path, default=REPOSITORY / "bundle" / "hotset", help="default: %(default)s")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="default: %(default)s")
    parser.add_argument("--jobs", type=int, default=4, help="servers at a time (default: %(default)s)")
    parser.add_argument("--only", default="", help="only groups of checks whose name contains this text")
    parser.add_argument("--list", action="store_true", help="print the names of the groups")
    parser.add_argument("--memcheck", action="store_true", help="a few requests under compute-sanitizer --tool memcheck instead")
    parser.add_argument("--tool-path", default="compute-sanitizer", help="of compute-sanitizer (default: in PATH, then CUDA's)")
    return parser.parse_args()


ARGUMENTS = arguments()
os.environ["HOTSET_BINARY"] = str(ARGUMENTS.binary.resolve())  # read by hotset_server when it is imported
sys.path.insert(0, str(REPOSITORY / "tests" / "integration"))

from compare import assert_close  # noqa: E402
from hotset_server import FIXTURES, Server, load_json, refused_at_start  # noqa: E402
from selections import blocks_of, read_trace  # noqa: E402

WORK = pathlib.Path(tempfile.mkdtemp(prefix="serve-fixtures-"))
ENVIRONMENT = {"XDG_CACHE_HOME": str(WORK / "cache")}
# Several servers share the device, so none may take what it likes.
COMMON = ["--device", ARGUMENTS.device, "--compute-dtype", "f32", "--kv-dtype", "f32", "--host-kv", "64MiB"]
if ARGUMENTS.device == "cuda":
    COMMON += ["--gpu-memory", "4GiB"]

TOLERANCE = 2e-3
NEAR_TIE_SCORE = 1e-5  # between selected and next block: the reference itself may have gone the other way
NEAR_TIE_LOGPROB = 2e-3
NEW_TOKENS = 24
TOP_K = 16  # of the DSA fixtures

lock = threading.Lock()
counts = {"passed": 0, "failed": 0}
serving = set()  # what the servers said that they run on


def report(name, error=None, detail=""):
    with lock:
        counts["failed" if error else "passed"] += 1
        print(f"{'FAIL' if error else 'ok  '} {name}{detail and ': ' + detail}", flush=True)
        if error:
            print("     " + str(error)[-3000:].replace("\n", "\n     "), flush=True)


def check(name, function, *parameters):
    """Reports one check: `function` raises, or returns a word about what it compared."""
    started = time.monotonic()
    try:
        detail = function(*parameters) or ""
    except Exception as error:  # whatever it is, the other checks go on
        report(name, error if isinstance(error, AssertionError) else repr(error))
        return
    report(name, detail=f"{detail}{detail and ', '}{time.monotonic() - started:.1f} s")


class Answers:
    """Choices of a server, and what the cache spent on them."""

    def __init__(self):
        self.choices, self.misses, self.loaded = [], 0, 0

    def add(self, answer):
        self.choices += sorted(answer["choices"], key=lambda choice: choice["index"])
        self.misses += answer["usage"]["hotset"]["misses"]
        self.loaded += answer["usage"]["hotset"]["bytes_loaded"]

    def check_mode(self, hot):
        """Rows came from the host exactly where the mode says so."""
        assert (self.misses > 0) == hot, f"{self.misses} misses"
        assert (self.loaded > 0) == hot, f"{self.loaded} bytes loaded"
        return f"{self.misses} misses" if hot else "no misses"

    def numbers(self):
        return [(choice["token_ids"], choice["logprobs"]["token_logprobs"]) for choice in self.choices]


@functools.cache
def model_folder(name):
    """A fixture's folder; packed weights are laid out in the work folder."""
    source = FIXTURES / name
    parts = sorted(source.glob("model.tar.xz.*"))
    if not parts:
        return source
    target = WORK / name
    target.mkdir()
    for file in source.glob("*.json"):
        shutil.copy(file, target)
    with tarfile.open(fileobj=io.BytesIO(b"".join(part.read_bytes() for part in parts)), mode="r:xz") as archive:
        for member in archive.getmembers():
            (target / pathlib.PurePath(member.name).name).write_bytes(archive.extractfile(member).read())
    return target


def start(name, *options):
    log = WORK / f"{time.monotonic_ns()}.log"
    return Server(log, *COMMON, *options, model=model_folder(name), env=ENVIRONMENT)


def ask(server, prompt, tokens=NEW_TOKENS, **fields):
    return server.completion(
        prompt=prompt, max_tokens=tokens, temperature=0, return_token_ids=True, ignore_eos=True, hotset={"usage": True}, **fields
    )


def remember_device(server):
    found = re.search(r"parameters\), context \d+ tokens; (.*?); algorithm", server.log())
    with lock:
        serving.add(found.group(1) if found else "?")


def scored(name, options, cases, batch=False, tokens=NEW_TOKENS):
    """Answers with the prompt's log-probabilities, one by one or all in one request."""
    answers = Answers()
    with start(name, *options) as server:
        remember_device(server)
        prompts = [[case["input_ids"] for case in cases]] if batch else [case["input_ids"] for case in cases]
        for prompt in prompts:
            answers.add(ask(server, prompt, tokens, echo=True, logprobs=1))
    return answers


def check_scored(cases, answers):
    """Prompts within the tolerance, greedy tokens equal."""
    assert len(cases) == len(answers.choices)
    largest = 0.0
    for case, choice in zip(cases, answers.choices):
        length, got = len(case["input_ids"]), choice["logprobs"]["token_logprobs"]
        assert_close(got[:length], case["prompt_logprobs"], TOLERANCE)
        largest = max([largest] + [abs(a - b) for a, b in zip(got[1:length], case["prompt_logprobs"][1:])])
        wanted = case["greedy"][: len(choice["token_ids"])]
        assert choice["token_ids"] == wanted, f"prompt of {length}: {choice['token_ids']}, expected {wanted}"
    return f"{len(cases)} prompts, largest difference {largest:.1e}"


def same_numbers(first, second):
    for position, (a, b) in enumerate(zip(first.numbers(), second.numbers(), strict=True)):
        assert a[0] == b[0], f"answer {position}: tokens {a[0]} and {b[0]}"
        parted = [(index, x, y) for index, (x, y) in enumerate(zip(a[1], b[1], strict=True)) if x != y]
        assert not parted, f"answer {position}: {len(parted)} log-probabilities differ, first (place, one, other) {parted[0]}"
    return "bit for bit"


# --- dense -----------------------------------------------------------------------------------------------------------


def alone_and_among_others(name, options):
    """Each of the longest prompts alone, then as one of 32 sequences of a request: the others change no bit of it."""
    cases = sorted(load_json(model_folder(name) / "expected.json")["cases"], key=lambda case: -len(case["input_ids"]))
    many = [*cases, *cases, *cases, *cases][:32]
    options = [*options, "--max-batch", 32, "--least-batch", 32]  # batches of one size, which the promise is about
    together = scored(name, options, many, batch=True)
    check_scored(many, together)
    together.choices = together.choices[:3]
    return same_numbers(scored(name, options, cases[:3]), together)


def dense_group(name):
    cases = load_json(model_folder(name) / "expected.json")["cases"]

    def one_by_one():
        answers = scored(name, [], cases)
        return f"{check_scored(cases, answers)}, {answers.check_mode(hot=False)}"

    def chunks(size):
        return check_scored(cases, scored(name, ["--prefill-chunk", size], cases, tokens=0))

    check(f"{name} dense, one by one", one_by_one)
    check(f"{name} dense, all in one request", lambda: check_scored(cases, scored(name, [], cases, batch=True)))
    check(f"{name} dense, prompts in chunks of 7", chunks, 7)
    check(f"{name} dense, alone equals among 31 others", alone_and_among_others, name, [])


# --- low-rank keys, Quest, StreamingLLM ------------------------------------------------------------------------------


def sparse_options(options):
    """Of `hotset serve`, and the hot buffer that holds hardly more than a selection (None: the algorithm has none)."""
    algorithm = options["algorithm"]
    found = ["--algorithm", algorithm, "--sparse-threshold", 0, "--sparse-window", options["window"]]
    if algorithm == "lowrank":
        return found + ["--sparse-sink", options["sink"], "--sparse-budget", options["budget"]], options["budget"]
    found += ["--sparse-block", options["block"]]
    if algorithm == "streaming":
        return found, None
    budget = options["budget"] * options["block"]
    return found + ["--quest-combine", options["combine"], "--sparse-budget", budget], budget


def selection_parts(case, layers, step):
    """Whether a step's selections in a trace differ from the reference's; only near ties may."""
    selections = case.get("selected_tokens") or case["selected_blocks"]
    block = case["options"].get("block", 1)
    seen = len(case["input_ids"]) + step + 1
    for layer, wanted in selections[step].items():
        prefill, selected = layers[int(layer)][seen - 1]
        assert not prefill
        if blocks_of(selected, -(-seen // block)) != wanted:
            gap = case["gaps"][step][layer] if case.get("gaps") else None
            assert gap is not None and gap <= NEAR_TIE_SCORE, f"step {step}, layer {layer}: {selected}, expected {wanted}"
            return True
    return False


def compared_tokens(case, choice, layers):
    """How many generated tokens and their selections agree with the reference. They may part only where it is near a tie
    itself: of the two likeliest tokens, or of selected and next block."""
    top = choice["logprobs"]["top_logprobs"]
    for step, (token, logprob) in enumerate(zip(case["greedy"], case["greedy_logprobs"])):
        got, got_logprob = choice["token_ids"][step], choice["logprobs"]["token_logprobs"][step]
        where = f"prompt of {len(case['input_ids'])}, token {step}"
        if got != token:
            best = sorted(top[step].values(), reverse=True)
            assert best[0] - best[1] <= NEAR_TIE_LOGPROB, f"{where}: {got}, expected {token}"
            return step
        if selection_parts(case, layers, step):
            return step
        difference = abs(got_logprob - logprob)
        assert difference <= TOLERANCE, f"{where}: log-probability {got_logprob}, expected {logprob}"
    return len(case["greedy"])


def sparse_answers(name, cases, hot):
    """The answers of one server, and its trace, one entry per case."""
    options, buffer = sparse_options(cases[0]["options"])
    trace = WORK / f"{time.monotonic_ns()}.trace"
    options += ["--kv-mode", "hot" if hot else "resident", "--trace-selections", trace]
    if hot:
        options += ["--hot-ring", cases[0]["options"]["window"]]
        options += ["--hot-buffer", buffer] if buffer else []
    answers = Answers()
    with start(name, *options) as server:
        remember_device(server)
        for case in cases:
            answers.add(ask(server, case["input_ids"], NEW_TOKENS + 1, logprobs=2))  # the last one's rows are selected for, too
    return answers, read_trace(trace)


def sparse_group(name, cases):
    label = " ".join(str(cases[0]["options"][word]) for word in ("algorithm", "combine") if word in cases[0]["options"])
    found = {}

    def against_reference(hot):
        answers, traces = sparse_answers(name, cases, hot)
        found[hot] = answers
        compared = [compared_tokens(*each) for each in zip(cases, answers.choices, traces, strict=True)]
        assert sum(compared) >= 0.8 * NEW_TOKENS * len(cases), f"compared only {compared} tokens"
        return f"{sum(compared)} tokens and their selections, {answers.check_mode(hot)}"

    check(f"{name} {label}, resident", against_reference, False)
    check(f"{name} {label}, hot", against_reference, True)
    if len(found) == 2:
        check(f"{name} {label}, hot equals resident", same_numbers, found[False], found[True])


# --- DSA -------------------------------------------------------------------------------------------------------------


def check_selected_last(cases, traces):
    for case, layers in zip(cases, traces, strict=True):
        length = len(case["input_ids"])
        for layer, wanted in case["selected_last"].items():
            prefill, selected = layers[int(layer)][length - 1]
            assert prefill and (selected == "all") == (length <= TOP_K)
            assert blocks_of(selected, length) == wanted, f"{length} tokens, layer {layer}: {selected}, expected {wanted}"


def dsa_group(name, buffers):
    cases = load_json(model_folder(name) / "expected.json")["cases"]
    resident = ["--kv-mode", "resident"]
    found = {}

    def against_reference(label, options, hot, batch=False):
        trace = WORK / f"{time.monotonic_ns()}.trace"
        answers = scored(name, [*options, "--trace-selections", trace], cases, batch)
        found[label] = answers
        detail = f"{check_scored(cases, answers)}, {answers.check_mode(hot)}"
        check_selected_last(cases, read_trace(trace))
        return detail + ", selections equal"

    check(f"{name}, resident", against_reference, "resident", resident, False)
    for buffer in buffers:
        label, options = f"buffer of {buffer}", ["--kv-mode", "hot", "--hot-ring", 1, "--hot-buffer", buffer]
        check(f"{name}, {label}", against_reference, label, options, True)
        if "resident" in found and label in found:
            check(f"{name}, {label} equals resident", same_numbers, found["resident"], found[label])
        if buffer == 17:
            check(f"{name}, {label}, all in one request", against_reference, "batch", options, True, True)
    check(f"{name}, resident, all in one request", against_reference, "resident batch", resident, False, True)
    check(f"{name}, resident, alone equals among 31 others", alone_and_among_others, name, resident)
    hot = ["--kv-mode", "hot", "--hot-ring", 1, "--hot-buffer", 17]
    check(f"{name}, hot, alone equals among 31 others", alone_and_among_others, name, hot)


def dsa_prompts_group(name):
    cases = load_json(model_folder(name) / "expected.json")["cases"]
    longest = max(cases, key=lambda case: len(case["input_ids"]))

    def longer_than_the_pool():
        assert len(longest["input_ids"]) > 192
        options = ["--device-kv-tokens", 192, "--hot-ring", 1, "--hot-buffer", 32, "--prefill-chunk", 32]
        answers = scored(name, options, [longest])
        return f"{check_scored([longest], answers)}, {answers.check_mode(hot=True)}"

    for size in (1, 7, 64):
        check(f"{name}, prompts in chunks of {size}",
              lambda: check_scored(cases, scored(name, ["--prefill-chunk", size], cases, tokens=0)))
    check(f"{name}, a prompt longer than the device pool", longer_than_the_pool)


# --- long answers and clients that leave ------------------------------------------------------------------------------


def long_group(name):
    """700 tokens leave the device many times over: hot equals resident, each finished page is on the host exactly once."""
    prompt, tokens = [2 + 7 * position % 500 for position in range(40)], 700
    options = ["--algorithm", "lowrank", "--sparse-threshold", 0, "--sparse-window", 16, "--sparse-budget", 48]

    def answered(*mode):
        answers = Answers()
        with start(name, *options, *mode) as server:
            answers.add(ask(server, prompt, tokens, logprobs=1))
            written = server.metric("hotset_pages_written_through_total")
        rows = len(prompt) + tokens - 1
        assert written in (rows // 64, (rows + 1) // 64), f"{written} pages written through, {rows} rows"
        return answers

    def hot_equals_resident():
        resident = answered("--kv-mode", "resident")
        hot = answered("--kv-mode", "hot", "--hot-ring", 16, "--hot-buffer", 64)
        assert hot.misses > 1000 and resident.misses == 0, f"{hot.misses} misses hot, {resident.misses} resident"
        return f"{same_numbers(resident, hot)}, {hot.misses} misses"

    check(f"{name}, a long answer, hot equals resident", hot_equals_resident)


def leaving_group(name):
    """Clients that close their connection, in the queue, in the prompt or in the answer: all pages come back."""

    def all_pages_come_back():
        draw = random.Random(7)
        with start(name, "--max-batch", 4, "--prefill-chunk", 64, "--device-kv-tokens", 4096) as server:
            free = {tier: server.metric(f"hotset_pool_pages_free{{tier=\"{tier}\"}}") for tier in ("device", "host")}

            def leave(number):
                fields = {"model": server.model_name, "max_tokens": 800, "ignore_eos": True, "stream": number % 2 == 0}
                fields["prompt"] = [2 + (number + 7 * position) % 500 for position in range(20 + 400 * (number % 3))]
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
                with contextlib.closing(connection):
                    connection.request("POST", "/v1/completions", json.dumps(fields), {"Content-Type": "application/json"})
                    time.sleep(draw.choice((0.0, 0.01, 0.05, 0.2)))

            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                list(pool.map(leave, range(60)))
            deadline = time.monotonic() + 20
            for tier, pages in free.items():
                while server.metric(f"hotset_pool_pages_free{{tier=\"{tier}\"}}") != pages:
                    assert time.monotonic() < deadline, f"pages of the {tier} pool are missing"
                    time.sleep(0.05)
            assert len(ask(server, [5, 6, 7], 4)["choices"][0]["token_ids"]) == 4
        return "60 of them"

    check(f"{name}, clients that leave", all_pages_come_back)


# --- measuring with dummy weights -------------------------------------------------------------------------------------


def measuring_group(name):
    """--load-format dummy with selections that are replaced and prompts that are not computed; refused on the CPU."""
    options = ["--algorithm", "lowrank", "--sparse-threshold", 0, "--sparse-window", 16, "--sparse-budget", 48]
    options += ["--kv-mode", "hot", "--hot-ring", 16, "--hot-buffer", 96]
    dummy = [*options, "--load-format", "dummy", "--fill-kv", "synthetic", "--selection-model"]
    prompt, tokens = [2 + 7 * position % 500 for position in range(600)], 40
    trace = WORK / f"{name}.trace"

    def misses(*given):
        answers = Answers()
        with start(name, *given) as server:
            answers.add(ask(server, prompt, tokens))
        assert len(answers.choices[0]["token_ids"]) == tokens
        return answers.misses

    def churn():
        few, many = misses(*dummy, "churn=0.05"), misses(*dummy, "churn=0.5")
        assert 0 < 4 * few < many, f"{few} misses with a churn of 0.05, {many} with 0.5"
        return f"{few} misses with a churn of 0.05, {many} with 0.5"

    def replay():
        recorded = misses(*options, "--trace-selections", trace)
        replayed = misses(*dummy, f"trace={trace}")
        assert recorded > 0 and abs(replayed - recorded) < 0.1 * recorded, f"{replayed} misses, recorded {recorded}"
        return f"{replayed} misses, recorded {recorded}"

    def refused():
        code, log = refused_at_start(WORK / f"{name}-refused.log", *COMMON, *dummy, "churn=0.1", model=model_folder(name))
        assert code == 1 and "--device cuda" in log, log
        return "by name"

    if ARGUMENTS.device == "cpu":
        return check(f"{name} replaced selections are refused", refused)
    check(f"{name} dummy weights, selections by churn", churn)
    check(f"{name} dummy weights, selections of a trace", replay)


# --- memcheck --------------------------------------------------------------------------------------------------------


def sanitizer():
    found = shutil.which(ARGUMENTS.tool_path) or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    assert found, "compute-sanitizer is missing: --tool-path names it"
    return found


def descendants(pid):
    """Processes that it started, and theirs."""
    parents = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for parent in found:
        found += [child for child, of in parents.items() if of == parent]
    return found[1:]


class CheckedServer(Server):
    """A server under the sanitizer, which starts it as a process of its own."""

    def start(self):
        binary, library_path = ARGUMENTS.binary.resolve(), self.env.get("LD_LIBRARY_PATH", "")
        if binary.read_bytes()[:2] == b"#!":  # a bundle's command: its program, without the shell between
            self.env["LD_LIBRARY_PATH"] = f"{binary.parent / 'lib'}:{library_path}:/usr/local/cuda/lib64"
            binary = binary.parent / "lib" / "hotset"
        self.program = binary
        tool = [sanitizer(), "--tool", "memcheck", "--target-processes", "all", "--error-exitcode", "9"]
        self.command = [*tool, str(binary), *self.command[1:]]
        super().start()

    def stop(self, timeout=40):
        # The server alone: the tool's own processes, whose arguments hold the server's, wait for its exit status.
        for pid in descendants(self.process.pid):
            with contextlib.suppress(OSError):
                if pathlib.Path(f"/proc/{pid}/exe").resolve() == self.program:
                    os.kill(pid, signal.SIGTERM)
        with contextlib.suppress(Exception):
            self.process.wait(timeout)
        return super().stop(timeout)


def memcheck_group(name):
    folder = model_folder(name)
    if "deepseek" in name or "glm" in name:
        options, cases = [], load_json(folder / "expected.json")["cases"]
        options += ["--hot-ring", 1, "--hot-buffer", 32]
    else:
        cases = load_json(folder / "expected_sparse.json")["cases"]
        cases = [case for case in cases if case["options"] == cases[0]["options"]]
        options, buffer = sparse_options(cases[0]["options"])
        options += ["--hot-ring", cases[0]["options"]["window"]] + (["--hot-buffer", buffer] if buffer else [])
    cases = sorted(cases, key=lambda case: -len(case["input_ids"]))[:3]
    options += ["--device-kv-tokens", 192, "--prefill-chunk", 64, "--request-timeout-ms", 600_000]

    def served():
        log = WORK / f"{time.monotonic_ns()}.log"
        answers = Answers()
        with CheckedServer(log, *COMMON, *options, model=folder, env=ENVIRONMENT) as server:
            remember_device(server)
            for prompt in ([case["input_ids"] for case in cases], cases[0]["input_ids"]):  # beside each other; alone
                answers.add(ask(server, prompt, 8, logprobs=1))
        for case, choice in zip([*cases, cases[0]], answers.choices, strict=True):
            assert choice["token_ids"] == case["greedy"][:8], f"{choice['token_ids']}, expected {case['greedy'][:8]}"
        text = log.read_text(encoding="utf-8", errors="replace")
        assert "ERROR SUMMARY: 0 errors" in text, text[-3000:]
        return f"no errors, {answers.check_mode(hot=True)}"

    check(f"{name}, under memcheck", served)


def memcheck_groups():
    for name in ("tiny-llama", "tiny-deepseek-v32"):
        yield f"{name} memcheck", memcheck_group, name


def groups():
    """(name, function, parameters...): each runs by itself, its checks one after the other."""
    for name in ("tiny-deepseek-v32", "tiny-glm-dsa"):
        yield f"{name} selections", dsa_group, name, (16, 17, 32)
        yield f"{name} prompts", dsa_prompts_group, name
    for name in ("tiny-llama", "tiny-qwen3"):
        yield f"{name} dense", dense_group, name
        key = lambda case: sorted(case["options"].items())  # noqa: E731
        cases = sorted(load_json(FIXTURES / name / "expected_sparse.json")["cases"], key=key)
        for _, group in itertools.groupby(cases, key):
            group = list(group)
            yield f"{name} {group[0]['options']['algorithm']}", sparse_group, name, group
    yield "tiny-llama long", long_group, "tiny-llama"
    yield "tiny-llama leaving", leaving_group, "tiny-llama"
    yield "tiny-llama measuring", measuring_group, "tiny-llama"


def run_group(name, function, *parameters):
    try:
        function(*parameters)
    except Exception as error:  # a check reports its own; this is about what they share
        report(name, repr(error))


def start_and_stop():
    with start("tiny-llama"):
        pass


def main():
    started = time.monotonic()
    if ARGUMENTS.list:
        print(*(group[0] for group in groups()), sep="\n")
        return shutil.rmtree(WORK)
    if not os.access(ARGUMENTS.binary, os.X_OK):
        sys.exit(f"serve_fixtures: there is no program {ARGUMENTS.binary}; tools/bundle makes one, --binary names another")
    try:
        if not ARGUMENTS.memcheck:
            check("server starts", start_and_stop)
        if counts["failed"]:
            sys.exit("serve_fixtures: the other checks need a server that starts")
        for name in ("tiny-deepseek-v32", "tiny-glm-dsa"):
            model_folder(name)
        with concurrent.futures.ThreadPoolExecutor(ARGUMENTS.jobs) as pool:
            chosen = memcheck_groups() if ARGUMENTS.memcheck else groups()
            for running in [pool.submit(run_group, *group) for group in chosen if ARGUMENTS.only in group[0]]:
                running.result()
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
    print(f"served by {', '.join(sorted(serving))}")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {time.monotonic() - started:.0f} s")
    sys.exit(1 if counts["failed"] else 0)


if __name__ == "__main__":
    main()
