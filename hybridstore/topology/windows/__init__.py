"""Windows: the state of one shard's windows, a file per kind, and the suppression buffer behind them."""
