"""ShuffleBench in Flink's SQL: run by a Python that has `apache-flink`, and Java; shuffle_bench.py starts and kills it.

    python -m benchmarks.suites.shuffle_flink FOLDER [CHECKPOINT]

Records are files of JSON that come into FOLDER/in. Outputs are files of CSV in FOLDER/out: each tenth record of a rule,
which becomes visible with the checkpoint that it belongs to, so that none is lost or double behind a kill. Two slots,
RocksDB, checkpoints each half a second, which is how often a file comes. Nothing of hybridstore is imported here.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.nexmark.flink_program import table_environment

EVERY = "500 ms"
OUTPUTS = """
    insert into outputs select rule, n, i, head from (
        select rule, i, count(*) over w as n, last_value(substring(data, 1, 32)) over w as head from records
        window w as (partition by rule order by moment rows between unbounded preceding and current row)
    ) where mod(n, 10) = 0
"""


def main() -> None:
    """Run the job until the process is killed."""
    folder, *behind = sys.argv[1:]
    env = table_environment(
        True, Path(folder, "checkpoints"), *behind, parallelism_default="2", execution_checkpointing_interval=EVERY
    )
    tables = {
        "records": ("rule bigint, i bigint, data string, moment as proctime()", "in", "json"),
        "outputs": ("rule bigint, n bigint, i bigint, head string", "out", "csv"),
    }
    for name, (columns, part, form) in tables.items():
        options = {"connector": "filesystem", "path": f"file://{folder}/{part}", "format": form}
        options |= {"source.monitor-interval": EVERY} if part == "in" else {}
        settings = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
        env.execute_sql(f"create table {name} ({columns}) with ({settings})")
    env.execute_sql(OUTPUTS).wait()


if __name__ == "__main__":
    main()
