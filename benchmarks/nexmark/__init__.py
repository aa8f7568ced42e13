"""Nexmark: an auction house's queries, on events of our own seeded generator, with other engines as oracles.

generator.py   persons, auctions and bids in numpy and Arrow columns, from the published parameters
queries.py     the queries as topologies, and what their answers are
oracles.py     the same queries in SQL, by DuckDB
answers.json   digests of the answers at a small size, and which oracles gave them
"""

from typing import Final

START_MS: Final = 1_704_067_200_000
"""The event time of the first event."""
