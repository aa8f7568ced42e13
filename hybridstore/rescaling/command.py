"""The command `rescale`: another number of shards for existing state."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from ..inspection.options import FINE, NEGATIVE, UsageError, at_least, last_options, named_texts
from ..progress import Progress
from ..reading.texts import say
from .report import RescaleError, RescaleReport


def arguments(parser: ArgumentParser) -> None:
    where = (
        "The checkpointLocation of a stopped Spark query, or a plain topology's state: a path or URL (s3://, gs://)."
    )
    parser.add_argument("location", metavar="LOCATION", help=where)
    text = "Name of the operator; left out for a plain topology."
    parser.add_argument("operator", metavar="OPERATOR", nargs="?", help=text)
    what = parser.add_argument_group("what to do, one of these")
    what.add_argument("--shards", metavar="M", type=at_least(1), help="Make M shards of the existing shards.")
    what.add_argument("--back", action="store_true", help="Return to the old shards; refused after a batch.")
    forget = (
        "Remove old shards that do not count any more; of a plain topology those of earlier rescales than the last."
    )
    what.add_argument("--remove-old", action="store_true", help=forget)
    how = parser.add_argument_group("how")
    how.add_argument("--dry-run", action="store_true", help="Only show the effects; change nothing.")
    how.add_argument("--accept-late", action="store_true", help="Accept that a merge of shards makes records expire.")
    text = "How a key of STORE contains the operator's key: key, 'key,last' or 'first,key'."
    how.add_argument("--route", metavar="STORE=HOW", action="append", default=[], help=text)
    text = "Confirm that the query is stopped, although the process of its driver is alive."
    how.add_argument("--stopped", action="store_true", help=text)
    how.add_argument("--state", metavar="PLACE", help="The place of the state, if not LOCATION.")
    last_options(how, progress=True)


def run(given: Namespace) -> int:
    """Give the state of a Spark operator, or of a plain topology, another number of shards, while its job is stopped.

    New shards are made beside the old shards and checked. Then one small file makes the new shards count; until that
    moment the old shards count, whatever happens. Start the job with `shards=M` afterwards.

    A multiple of the present number (from 4 to 16 shards) is exact: the results are equal to the results without a
    rescale. Any other number merges shards: a new shard takes the latest stream time of its old shards, so records may
    expire. Their number is shown before anything is written, and a rescale that makes records expire needs
    --accept-late.

    Exit codes: 0 done, 1 refused with nothing changed, 2 wrong usage, 3 cannot read.
    """
    asked = (given.shards is not None) + given.back + given.remove_old
    if asked != 1:
        raise UsageError(
            f"rescale: found {asked or 'none'} of --shards M, --back and --remove-old, expected one (--help says what "
            "each does)"
        )
    try:
        return _run(given)
    except RescaleError as error:
        say(f"refused: {error}")
        return NEGATIVE


def _run(given: Namespace) -> int:
    from .api import remove_old_shards, rescale

    if given.remove_old:
        number = remove_old_shards(given.location, given.operator, state_location=given.state)
        print(f"{given.operator or given.location}: {number:,} objects of old shards removed")
        return FINE
    with Progress("rescale", shown=not given.no_progress) as progress:
        report = rescale(
            given.location,
            given.operator,
            shards=given.shards,
            back=given.back,
            dry_run=given.dry_run,
            accept_late=given.accept_late,
            routes=named_texts("--route", given.route, "STORE=HOW", "totals=key"),
            stopped=given.stopped,
            state_location=given.state,
            progress=progress,
            on_report=_show,
        )
    if given.back:
        name = report.operator or report.location
        print(f"{name}: the {report.into} shards from before count again, at version {report.version}")
        print(f"start the job with shards={report.into}")
    elif report.done:
        print(f"done and checked: {report.into} shards count from version {report.version} on")
        frees = "later --remove-old frees the space" if report.operator else "later the old folders may be removed"
        print(f"start the job with shards={report.into}; --back undoes it until then; {frees}")
    else:
        print("nothing was written (--dry-run)")
    return FINE


def _show(report: RescaleReport) -> None:
    for sentence in report.sentences():
        print(sentence)
