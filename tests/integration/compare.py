"""Comparisons of generated tokens with a reference."""

import itertools


def margin(top):
    """Difference between the best two log-probabilities of one step ([[token, logprob], ...], best first)."""
    return top[0][1] - top[1][1]


def parts_at(got, wanted):
    """First position at which two token lists differ, or None."""
    for position, (a, b) in enumerate(itertools.zip_longest(got, wanted)):
        if a != b:
            return position
    return None


def assert_same_until_near_tie(got, wanted, margins, near_tie):
    """Fails when the lists part where the margin is not a near tie; returns how many tokens were compared."""
    position = parts_at(got, wanted)
    if position is None:
        return len(wanted)
    assert position < len(margins) and margins[position] <= near_tie, (
        f"token {position} is {got[position:position + 1]}, expected {wanted[position:position + 1]}"
        f" (margins {margins[position:position + 1]})"
    )
    return position


def assert_close(got, wanted, tolerance):
    """Log-probabilities: equal length, None where None is expected, otherwise within the tolerance."""
    assert len(got) == len(wanted)
    for position, (a, b) in enumerate(zip(got, wanted)):
        if b is None:
            assert a is None, f"position {position}: {a}, expected none"
        else:
            assert a is not None and abs(a - b) <= tolerance, f"position {position}: {a}, expected {b}"
