"""Commands of `hybridstore inspect`, one in each module: `arguments` declares its arguments, and `run`, whose docstring
is the help, reads with `view` and prints with `show`.
"""
