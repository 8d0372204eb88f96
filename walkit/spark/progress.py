"""How far Spark's jobs are: tasks done of those that are known, for a person or a program that waits for an action."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql.utils import is_remote

from walkit._internal.arguments import check_progress, refuse
from walkit._internal.progress import progress_bar
from walkit.spark.session import active_session

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.shell.progress import ProgressHandler

SparkProgress: TypeAlias = Callable[[int, int], None]
"""Is called with (tasks done, tasks known)."""

LOOK_S = 0.2
"""Time between two looks at Spark's jobs."""
SETTLE_MS = 2000
"""Time that Spark has, at the end of a block, to note what has ended."""
GROUP_ID = "spark.jobGroup.id"
DONE = "SUCCEEDED"


@contextmanager
def progress(callback: SparkProgress | None = None, *, title: str = "Spark") -> Iterator[None]:
    """Show how far Spark's jobs are that this thread runs in the block: a bar, in a notebook and on a terminal.

    ::

        with walkit.spark.progress():
            walkit.spark.replay(df).count()

    DataFrames are lazy: put the action into the block (`count`, `toArrow`, `write`), or a call that runs jobs itself
    (`diff_report`, `verify_pair`). A `callback` replaces the bar: it is called with (tasks done, tasks known), in
    a thread of its own and only when one of the two has changed, and with equal numbers at the end of a block that
    raises nothing. Spark learns of tasks stage by stage, so the second number grows, and falls if a stage is
    skipped; the first never falls. An error of the callback ends the calls, not the jobs, and is raised at the end of
    the block, unless the block raises one itself. A stream shows its own progress, in `query.lastProgress`.
    OptionsError without an active session.
    """
    check_progress(callback, "(tasks done, tasks known)")
    spark = active_session()
    if spark is None:
        refuse("session", None, "no Spark session is active: walkit.spark.session() starts one")
    following = _of_a_client if is_remote() else _of_a_driver
    if callback is not None:
        with following(spark, callback):
            yield
        return
    with progress_bar(title, 0, unit="tasks", delay_s=LOOK_S) as bar:

        def move(done: int, total: int) -> None:
            if total != bar.total:
                _set_total(bar, total)
            bar.update(done - bar.n)

        with following(spark, move):
            yield


def _set_total(bar: Any, total: int) -> None:
    """Change how long a bar is. `reset` alone does so in a notebook too; it forgets what was done and since when."""
    done, started = bar.n, bar.start_t
    bar.reset(total)
    bar.n, bar.start_t = done, started
    bar.refresh()


@contextmanager
def _of_a_driver(spark: SparkSession, callback: SparkProgress) -> Iterator[None]:
    """Follow the jobs that this thread begins, by their group: its own where it has one, else one for the block."""
    context = spark.sparkContext
    group = context.getLocalProperty(GROUP_ID)
    is_ours = group is None
    if group is None:
        group = f"walkit-{uuid.uuid4().hex[:12]}"
        context.setLocalProperty(GROUP_ID, group)
    follower = _Follower(JobTasks(context, group), callback)
    follower.start()
    try:
        yield
    except BaseException:
        follower.end()
        raise
    else:
        follower.end(is_done=True)
    finally:
        if is_ours:
            context.setLocalProperty(GROUP_ID, None)  # type: ignore[arg-type]  # which removes it


class JobTasks:
    """Counts the tasks of the jobs of one group that began after this was made. One thread at a time."""

    def __init__(self, context: SparkContext, group: str) -> None:
        self._context = context
        self._tracker: StatusTracker = context.statusTracker()
        self._group = group
        self._before = frozenset(self._tracker.getJobIdsForGroup(group))
        self._ended: dict[int, tuple[int, int]] = {}

    def settle(self) -> None:
        """Wait until Spark has noted what it did: it tells an action's end before its own books have it.

        Until then a job that has ended still runs there, with the tasks of stages that it skipped.
        """
        with suppress(Py4JJavaError):  # other jobs keep it busy, or the context was stopped
            self._context._jsc.sc().listenerBus().waitUntilEmpty(SETTLE_MS)

    def count(self) -> tuple[int, int]:
        """Return how many tasks are done, and how many are known."""
        jobs = [job for job in self._tracker.getJobIdsForGroup(self._group) if job not in self._before]
        counts = [self._ended.get(job) or self._of_job(job) for job in jobs]
        return sum(done for done, _ in counts), sum(total for _, total in counts)

    def _of_job(self, job: int) -> tuple[int, int]:
        info = self._tracker.getJobInfo(job)
        if info is None:  # Spark keeps the newest thousand
            return 0, 0
        stages = [self._tracker.getStageInfo(stage) for stage in info.stageIds]
        known = [(stage.numCompletedTasks, stage.numTasks) for stage in stages if stage is not None]
        if info.status == DONE:
            # A stage whose output was there already is skipped: none of its tasks ever runs.
            done = sum(tasks for completed, tasks in known if completed)
            self._ended[job] = done, done
            return done, done
        return sum(completed for completed, _ in known), sum(tasks for _, tasks in known)


class _Follower(threading.Thread):
    """Looks at jobs again and again, and reports changes, until it is ended."""

    def __init__(self, tasks: JobTasks, callback: SparkProgress) -> None:
        super().__init__(name="walkit-spark-progress", daemon=True)
        self._tasks, self._callback = tasks, callback
        self._ended = threading.Event()
        self._reported: tuple[int, int] | None = None
        self._error: Exception | None = None

    def run(self) -> None:
        """Look every `LOOK_S`."""
        try:
            while not self._ended.wait(LOOK_S):
                self._report(*self._tasks.count())
        except Exception as error:  # noqa: BLE001 - raised at the end of the block
            self._error = error

    def _report(self, done: int, total: int) -> None:
        if self._reported is not None:
            done = max(done, self._reported[0])  # Spark forgets stages of long ago
        total = max(total, done)
        if total and (done, total) != self._reported:
            self._reported = done, total
            self._callback(done, total)

    def end(self, *, is_done: bool = False) -> None:
        """Stop looking; with `is_done` look once more, count what is left as done, and raise what went wrong."""
        self._ended.set()
        self.join()
        if not is_done:
            return
        if self._error is not None:
            raise self._error
        self._tasks.settle()
        _, total = self._tasks.count()
        self._report(total, total)


@contextmanager
def _of_a_client(spark: SparkSession, callback: SparkProgress) -> Iterator[None]:
    """Follow what the server of Spark Connect says of its operations while this client waits for them."""
    counts: dict[str, tuple[int, int]] = {}
    raised: list[Exception] = []

    def take(stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        known = list(stages or ())
        now = sum(s.num_completed_tasks for s in known), sum(s.num_tasks for s in known)
        if raised or not known or now == counts.get(str(operation_id)):
            return
        counts[str(operation_id)] = now
        try:
            callback(sum(d for d, _ in counts.values()), sum(t for _, t in counts.values()))
        except Exception as error:  # noqa: BLE001 - the same
            raised.append(error)

    handler = cast("ProgressHandler", take)
    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)
    if raised:
        raise raised[0]
    total = sum(tasks for _, tasks in counts.values())
    if total and sum(done for done, _ in counts.values()) != total:
        callback(total, total)
