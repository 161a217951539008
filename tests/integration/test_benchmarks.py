"""The programs of benchmarks/ that load a server: each runs once, small, and prints its table."""

import subprocess
import sys

from hotset_server import BINARY, REPOSITORY


def rows_of(program, *arguments, statuses=(0,)):
    """The rows of numbers that it printed, as fields."""
    command = [sys.executable, REPOSITORY / "benchmarks" / program, "--binary", BINARY, *arguments]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=240)
    assert done.returncode in statuses, done.stdout + done.stderr
    return [fields for line in done.stdout.splitlines() if (fields := line.split()) and fields[0].isdigit()]


def test_serve_load():
    options = ["--geometry", "tiny-llama", "--device", "cpu", "--clients", 2, "--sequences", 1, 4]
    rows = rows_of("serve_load.py", *options, "--context", 2000, "--tokens", 1500)  # long beside what starts late
    points = [row for row in rows if "|" in row]
    assert [row[0] for row in points] == ["1", "4"], rows
    for row in points:
        assert float(row[row.index("|") + 2]) > 1, row  # tokens/s


def test_open_streams():
    rows = rows_of("open_streams.py", "--tokens", 8, 40, statuses=(0, 1))  # 1: /health was slow, which is no fault here
    assert len(rows) == 2, rows  # processors; the streams
    streams, at_once, seconds, rate = rows[1][:4]
    assert (streams, at_once) == ("40", "40") and float(rate) > 1, rows
