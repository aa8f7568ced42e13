"""Benchmarks that check their answers: `python -m benchmarks`, or `make bench`. Part of a checkout, not of the wheel.

Every figure is a median over interleaved runs, shown with its range; a run whose answer is wrong prints no number.
"""
