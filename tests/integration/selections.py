"""Selections that a server recorded (--trace-selections), read with `hotset inspect trace`."""

import json
import subprocess

from hotset_server import BINARY, clean_environment


def read_trace(path):
    """[request][layer][position] -> (prefill, selected), requests in the order in which they came; `selected` is a list
    of blocks, or "all"."""
    done = subprocess.run(
        [str(BINARY), "inspect", "trace", str(path)], env=clean_environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = {}
    for line in done.stdout.splitlines():
        record = json.loads(line)
        layers = found.setdefault(record["request"], {})
        layers.setdefault(record["layer"], {})[record["position"]] = (record["prefill"], record["selected"])
    return [found[request] for request in sorted(found)]


def blocks_of(selected, length):
    return list(range(length)) if selected == "all" else selected
