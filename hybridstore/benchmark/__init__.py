"""Benchmarks that check their answers: what `hybridstore bench` runs, also from an installed wheel.

Every figure is a median over interleaved runs, shown with its range; a run whose answer is wrong prints no number. Nothing here is
imported by the stores.
"""
