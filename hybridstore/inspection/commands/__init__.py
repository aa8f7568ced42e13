"""Commands of `hybridstore inspect`: a module parses nothing and holds one command, which joins `view` and `show`."""
