"""How scenarios run: on Spark's operator, on ours in a query, and on ours in this process, without Spark."""

import json
import os
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from tests.tools import processor_cases, processor_further, processor_more, processor_times
from tests.tools.modes import patiently
from tests.tools.processor_scenarios import Rows, Scenario, in_order, plain_row

# modules whose import adds their scenarios
CASES = (processor_cases, processor_times, processor_more, processor_further)

# --- the runners ------------------------------------------------------------------------------------------------------


def write_input(folder: Path, number: int, rows: list[dict[str, Any]]) -> None:
    """Write a batch as a file, so that batches come in order."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number}.json"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    os.utime(path, (1_760_000_000 + number, 1_760_000_000 + number))


def on_spark(spark: Any, scenario: Scenario, folder: Path, apply: Callable[..., Any]) -> list[Rows]:
    """Return the rows of each batch that has some, from a query whose operator `apply` makes."""
    kept: dict[tuple[int, int], Rows] = {}
    done = 0
    for start, (program, batches) in enumerate(scenario.parts()):
        for batch in batches:
            write_input(folder / "in", done, batch)
            done += 1
        df = spark.readStream.schema(scenario.schema).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
        df = df.withWatermark("t", scenario.delay)
        initial = None
        if program.initial:
            initial = spark.createDataFrame(list(program.initial), "k string, init long").groupBy("k")
        answers = apply(df, program, scenario, initial, str(folder / "checkpoint"))

        def keep(batch: Any, number: int, start: int = start) -> None:
            kept[start, number] = in_order(batch.collect())

        writer = answers.writeStream.foreachBatch(keep).outputMode("update")
        to_the_end(writer, folder)
    return [rows for _, rows in sorted(kept.items()) if rows]


def to_the_end(writer: Any, folder: Path) -> None:
    """Run a query to the end of what is there; after a Python process that Spark gave up it goes on where it was."""
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    patiently(lambda: writer.start().awaitTermination())


def over_connect(client: Any, scenario: Scenario, folder: Path, apply: Callable[..., Any]) -> Rows:
    """Return the rows of all batches together, from a query over Connect, whose `foreachBatch` would start a Python
    process for each.
    """
    for number, batch in enumerate(scenario.batches):
        write_input(folder / "in", number, batch)
    df = client.readStream.schema(scenario.schema).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    answers = apply(df.withWatermark("t", scenario.delay), scenario, scenario, None, str(folder / "checkpoint"))
    to_the_end(answers.writeStream.format("parquet").option("path", str(folder / "out")), folder)
    return in_order(tuple(each) for each in client.read.parquet(str(folder / "out")).collect())


def theirs(df: Any, program: Scenario, scenario: Scenario, initial: Any, checkpoint: str) -> Any:
    """Spark's own operator."""
    grouped = df.groupBy(*scenario.key)
    return grouped.transformWithState(program.processor(), scenario.output, "Update", scenario.mode, initial)


def ours(placement: str) -> Callable[..., Any]:
    """Our operator, with a placement."""

    def apply(df: Any, program: Scenario, scenario: Scenario, initial: Any, checkpoint: str) -> Any:
        from hybridstore import spark as hsp

        how: Any = {"name": "op", "location": checkpoint, "shards": 3, "tasks": 2, "placement": placement}
        grouped = df.groupBy(*scenario.key)
        return hsp.transform_with_state(
            grouped, program.processor(), scenario.output, "Update", scenario.mode, initial, **how
        )

    return apply


def in_process(scenario: Scenario, folder: Path, shards: int = 3) -> list[Rows]:
    """Return the rows of each batch that has some, from our operator in this process, with the times that Spark gives:
    a batch's watermark is the newest time of the batches before, less the delay.
    """
    from hybridstore.shards import shard_of
    from hybridstore.spark.contract import Batch
    from hybridstore.spark.launches import claim, new_launch
    from hybridstore.spark.location import locate
    from hybridstore.spark.operator_file import operator_storage
    from hybridstore.spark.shipped import Operator
    from hybridstore.spark.stateful_processor import ProcessorProgram, rows_by_key
    from hybridstore.spark.worker import ShardWork
    from hybridstore.topology.null_keys import stored_key
    from hybridstore.topology.output_rows import columns_of_schema

    location = locate(folder)
    storage = operator_storage(location, "op")
    schema = pa.schema([(c.name, _arrow(c.kind)) for c in columns_of_schema(scenario.schema) or ()])
    output = pa.schema([(c.name, _arrow(c.kind)) for c in columns_of_schema(scenario.output) or ()])
    delay = int(scenario.delay.split()[0]) * 1_000_000
    key_columns = [c for name in scenario.key for c in columns_of_schema(scenario.schema) or () if c.name == name]
    watermarks, newest, kept, number = [0], 0, list[Rows](), 0
    for start, (program, batches) in enumerate(scenario.parts()):
        timed = scenario.mode == "EventTime"
        initial: dict[str, list[Any]] = {}
        if program.initial and number == 0:
            initial = rows_by_key([Row(k=k, init=n) for k, n in program.initial], [(k,) for k, _ in program.initial])
        operator_program = ProcessorProgram(
            program.processor(), scenario.key, output, scenario.mode, "t" if timed else None, initial
        )
        operator_program.key_columns = key_columns
        operator = Operator(operator_program, "op", location, shards, ("string",), "stream", output, input=schema)
        run = claim(storage, new_launch(storage), f"run {start}", number, 1)
        # the last batch has no rows: Spark runs it when the watermark has moved
        for rows in [*batches, []]:
            write_offsets(folder, number, watermarks[number])
            table = pa.Table.from_pylist([_typed(each, schema) for each in rows], schema=schema)
            keys = [
                stored_key(
                    tuple(each[name] for name in scenario.key) if len(scenario.key) > 1 else each[scenario.key[0]]
                )
                for each in table.to_pylist()
            ]
            answers: Rows = []
            for shard in range(shards):
                batch = Batch(
                    number, "query", f"run {start}", shard, watermarks[number], clock_ms(number), run, number + 1
                )
                work = ShardWork(operator, batch)
                mine = [place for place, key in enumerate(keys) if shard_of(key, shards) == shard]
                results = work.shard(shard, table.take(pa.array(mine, pa.int64())), 0.0)
                answers += [plain_row(_row(each, output)) for each in results.to_pylist()]
            kept.append(in_order(answers))
            times = [each.value for each in table.column("t") if each.is_valid]
            newest = max([newest, *(each - delay for each in times)])
            watermarks.append(max(watermarks[-1], newest // 1000))
            number += 1
    return [rows for rows in kept if rows]


def clock_ms(number: int) -> int:
    """The processing time of a batch."""
    return 1_700_000_000_000 + number


def write_offsets(folder: Path, number: int, watermark_ms: int) -> None:
    """Write what Spark writes before a batch."""
    offsets = folder / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"batchWatermarkMs": watermark_ms, "batchTimestampMs": clock_ms(number)})
    (offsets / str(number)).write_text(f"v1\n{line}\n")


def _arrow(kind: Any) -> Any:
    simple = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "int": pa.int32(),
        "double": pa.float64(),
        "float": pa.float32(),
        "tinyint": pa.int8(),
        "binary": pa.binary(),
        "boolean": pa.bool_(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }
    if kind.name.startswith("decimal"):
        return pa.decimal128(*map(int, kind.name.removeprefix("decimal(").removesuffix(")").split(",")))
    if kind.name.startswith("array"):
        return pa.list_(_arrow(kind.parts[0].kind))
    if kind.name.startswith("map"):
        return pa.map_(*(_arrow(part.kind) for part in kind.parts))
    if kind.name.startswith("struct"):
        return pa.struct([(part.name, _arrow(part.kind)) for part in kind.parts])
    return simple[kind.name]


def _typed(given: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """A row of JSON with its dates, times, decimals and bytes."""
    return {each.name: _read(given.get(each.name), each.type) for each in schema}


def _read(cell: Any, kind: Any) -> Any:
    import base64

    read: dict[Any, Callable[[Any], Any]] = {
        pa.timestamp("us", "UTC"): datetime.fromisoformat,
        pa.timestamp("us"): datetime.fromisoformat,
        pa.date32(): date.fromisoformat,
        pa.binary(): base64.b64decode,
    }
    if cell is None:
        return None
    if pa.types.is_decimal(kind):
        return Decimal(str(cell)).quantize(Decimal(1).scaleb(-kind.scale))
    if pa.types.is_struct(kind):
        return {field.name: _read(cell.get(field.name), field.type) for field in kind}
    if pa.types.is_list(kind):
        return [_read(part, kind.value_type) for part in cell]
    if pa.types.is_map(kind):
        return [(key, _read(part, kind.item_type)) for key, part in cell.items()]
    return read.get(kind, lambda each: each)(cell)


def _row(given: dict[str, Any], output: pa.Schema) -> tuple[Any, ...]:
    """A row of the output as Spark collects it."""

    def whole(cell: Any, kind: Any) -> Any:
        if cell is None:
            return None
        if pa.types.is_struct(kind):
            struct_row: Any = tuple.__new__(Row, [whole(cell[field.name], field.type) for field in kind])
            struct_row.__fields__ = [field.name for field in kind]
            return struct_row
        if pa.types.is_list(kind):
            return [whole(part, kind.value_type) for part in cell]
        if pa.types.is_map(kind):
            return {key: whole(part, kind.item_type) for key, part in cell}
        return cell

    return tuple(whole(given[each.name], each.type) for each in output)
