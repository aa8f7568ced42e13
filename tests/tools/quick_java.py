"""Java options with which the many short-lived Javas of the tests take a third of the processor time.

Spark loads some ten thousand classes before its first row. `python -m tests.tools.quick_java`, which `make test` runs
beside the tests, writes what Java made of them into an archive in this Python's environment; every Java that is started
after that maps it. Java checks by itself that the archive fits Spark's files and itself, and goes without where it does
not.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The second of Java's compilers is for programs that run long; the simplest of its collectors starts no threads, copies
# what is young half as often, and never all of it because there are more classes than Java expects. What the first
# compiler has made stays: it has 48 MB by default, which thirty tests fill, and then Java looks for code to remove, and
# compiles it once more. The bytecode of Spark's classes is as scalac and javac made it, and not verified: that takes a
# fifth of a start. Their names are looked up in a table that is as large as they need from the beginning.
OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmn200m -XX:MetaspaceSize=256m"
    " -XX:ReservedCodeCacheSize=256m -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    " -XX:+UnlockExperimentalVMOptions -XX:SymbolTableSize=400009"
)
# Of Spark's 280 jars those with most of the classes in use: Java looks for a class in one jar after the other.
JARS = ("spark-catalyst", "scala-library", "spark-sql", "spark-core", "hadoop-client-api", "spark-common-utils")
JARS += ("json4s", "jackson-databind", "hadoop-client-runtime", "spark-connect", "scala-reflect", "janino", "guava")
# Settings of Spark with which queries that have Spark's own operators in them take a tenth less; others take as long as
# without. Expressions are run as they are, instead of as Java code that is compiled for each query; a plan has no long
# text and is not checked by each rule; what goes from task to task is not compressed.
SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.lightweightPlanChangeValidation": "false",
    "spark.shuffle.compress": "false",
    "spark.broadcast.compress": "false",
}
# How Spark writes its own checkpoint files. Its usual way starts `readlink` four times a file, which takes a third of
# the processor time of a query with little to do; this way renames the same files without.
MANAGER = "org/apache/spark/sql/execution/streaming/checkpointing/FileSystemBasedCheckpointFileManager"
# Hadoop's local files without `chmod`, which Hadoop starts for each file and folder that it makes, to set the
# permissions that they already have: a query of one batch starts it twelve times, for two fifths of its processor time.
FILES = """
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public class QuickFiles extends LocalFileSystem {
    public static class Raw extends RawLocalFileSystem {
        public void setPermission(Path path, FsPermission permission) {}
    }

    public QuickFiles() {
        super(new Raw());
    }
}
"""


def archive() -> Path:
    """Return where the archive for the pyspark of this environment is, or would be."""
    return Path(sys.prefix, f"spark-{version('pyspark')}.jsa")


def environment() -> dict[str, str]:
    """Return the environment for a Java that is started now."""
    return {"SPARK_SUBMIT_OPTS": options(), "PYSPARK_SUBMIT_ARGS": arguments()}


def arguments() -> str:
    """Return how pyspark starts Java, with JARS before all others."""
    jars = [str(jar) for start in JARS for jar in sorted(jars_folder().glob(f"{start}[_-]*.jar"))]
    return shlex.join([*(["--driver-class-path", os.pathsep.join(jars)] if jars else []), "pyspark-shell"])


def options() -> str:
    """Return the options for a Java that is started now."""
    place = archive()
    chosen = f"{OPTIONS}{quick_spark()}"
    # without its log Java does not say that an archive does not fit
    return f"{chosen} -XX:SharedArchiveFile={place} -Xlog:cds=off -Xlog:cds+dynamic=off" if place.exists() else chosen


@cache
def quick_spark() -> str:
    """Return the options, each behind a space, by which Spark has SETTINGS and writes its checkpoint files by MANAGER,
    if this Spark has one of that name.
    """
    settings = dict(SETTINGS)
    for jar in jars_folder().glob("spark-sql_*.jar"):
        with ZipFile(jar) as classes:
            if f"{MANAGER}.class" in classes.namelist():
                settings["spark.sql.streaming.checkpointFileManagerClass"] = MANAGER.replace("/", ".")
    return "".join(f" -D{name}={value}" for name, value in settings.items())


def quicken_files(session: "SparkSession") -> None:
    """Let the Java of a session, which has done nothing yet, write its files by FILES, and have no other settings of
    Hadoop, whose defaults are in its code too: each query copies all 1,100, and packs and unpacks them for its tasks.
    """
    context: Any = session.sparkContext
    java = context._jvm
    # the compiler by which Spark compiles the code that it generates
    compiler = java.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(java.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(FILES)
    settings = context._jsc.hadoopConfiguration()
    settings.clear()
    settings.setClassLoader(compiler.getClassLoader())
    settings.set("fs.file.impl", "QuickFiles")
    settings.set("fs.AbstractFileSystem.file.impl", "org.apache.hadoop.fs.local.LocalFs")
    # whoever asks for these files gets the object that is made at the first time
    files = java.org.apache.hadoop.fs.FileSystem
    files.closeAll()
    files.get(java.java.net.URI("file:///"), settings)


def remember_names(session: "SparkSession") -> None:
    """Let Java tell once what a name of Java's is. py4j asks at each use, for each part of the name, and Java looks for
    a class of that name in each jar: that takes a twentieth of its time.
    """
    from py4j.protocol import REFL_GET_UNKNOWN_SUB_COMMAND_NAME, REFLECTION_COMMAND_NAME

    context: Any = session.sparkContext
    client = context._gateway._gateway_client
    send, answers = client.send_command, {}

    def send_once(command: str, *args: Any, **options: Any) -> Any:
        if not command.startswith(f"{REFLECTION_COMMAND_NAME}{REFL_GET_UNKNOWN_SUB_COMMAND_NAME}"):
            return send(command, *args, **options)
        if command not in answers:
            answers[command] = send(command, *args, **options)
        return answers[command]

    client.send_command = send_once


def forget_history(session: "SparkSession") -> None:
    """Let nobody write down, for the pages of a browser, what jobs and queries of a session did."""
    context: Any = session.sparkContext
    spark = context._jsc.sc()
    for store in (spark.statusStore(), session._jsparkSession.sharedState().statusStore()):
        spark.listenerBus().removeListener(store.listener().get())


def jars_folder() -> Path:
    """Return the folder of Spark's jars; where there is no pyspark, a folder that does not exist."""
    spark = find_spec("pyspark")
    return Path(spark.origin).parent / "jars" if spark and spark.origin else Path("no/jars")


def options_of_java() -> str:
    """Return what SPARK_SUBMIT_OPTS has for Java itself, without what it has for Spark."""
    options = os.environ.get("SPARK_SUBMIT_OPTS", "").split()
    return " ".join(option for option in options if not option.startswith("-Dspark."))


def make_archive() -> None:
    """Write the archive, unless there is one; what Java and Spark said meanwhile is beside it if that failed."""
    place = archive()
    if place.exists():
        return
    with tempfile.TemporaryDirectory(dir=place.parent) as folder, open(place.with_suffix(".log"), "w") as log:
        fresh = Path(folder, place.name)
        environment = os.environ | {
            "SPARK_SUBMIT_OPTS": f"{OPTIONS}{quick_spark()} -XX:ArchiveClassesAtExit={fresh}",
            "PYSPARK_SUBMIT_ARGS": arguments(),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }
        command = [sys.executable, "-m", "tests.tools.quick_java", folder]
        done = subprocess.run(command, env=environment, stdout=log, stderr=log, check=False)
        if done.returncode == 0 and fresh.exists():
            fresh.replace(place)
    if place.exists():
        place.with_suffix(".log").unlink()


def load_classes(folder: Path) -> None:
    """Run a streaming query of ours, small and with what most tests use."""
    from pyspark.sql import SparkSession

    import hybridstore as hs
    from hybridstore import spark as hsp

    (folder / "in").mkdir()
    (folder / "in" / "0.json").write_text(json.dumps({"k": "a", "v": 1, "t": "2026-01-01T00:00:00Z"}))
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    session = hsp.configure(builder.config("spark.sql.shuffle.partitions", "2")).getOrCreate()
    df = session.readStream.schema("k string, v long, t timestamp").json(str(folder / "in"))
    topology = hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows("1 hour")).aggregate(n=hs.Count())
    counted = topology.apply(df, "op", location=str(folder / "checkpoint"), shards=2)
    writer = counted.writeStream.foreachBatch(lambda batch, number: batch.collect())
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    # Java writes the archive as it ends, which nobody waits for otherwise
    java = session.sparkContext._gateway.proc  # type: ignore[union-attr]
    session.stop()
    java.stdin.close()
    java.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        load_classes(Path(sys.argv[1]))
    else:
        make_archive()
