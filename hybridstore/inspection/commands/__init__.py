"""Commands of `hybridstore inspect`. Each module has one command, which reads with `view` and prints with `show`."""
