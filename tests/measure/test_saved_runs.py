"""Runs on disk: back as they were, read by pandas alone, refused where damaged or foreign, and a folder of them."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.measure.runs import any_run, bare_run, make_run
from tests.support.examples import examples
from walkit.errors import CorruptionError, FormatVersionError, OptionsError
from walkit.measure import LatencyHistogram, Run, RunRecorder, compare, load, read_runs, settings_of
from walkit.measure.run_file import CHECKSUM_KEY, RUN_KEY
from walkit.plots.facts import run_facts

SAVED = Path(__file__).parent / "saved" / "version-2"
"""make_run(), saved by the walkit that did not record its own version."""


@pytest.mark.parametrize("ending", ["", ".parquet"])
def test_saved_and_loaded_runs_are_equal(tmp_path: Path, ending: str) -> None:
    """Everything in a full Run, gaps in its timeline and an empty histogram included, comes back from one file."""
    run = make_run()
    assert np.isnan(run.timeline.p50_us).any()
    run.save(tmp_path / "new" / f"v0.1{ending}")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["v0.1.parquet"]
    back = load(tmp_path / "new" / f"v0.1{ending}")
    assert back == run
    assert back.summary() == run.summary()
    assert back != dataclasses.replace(run, latency={})


def test_a_bare_run_comes_back_equal(tmp_path: Path) -> None:
    """Only what is required, nothing recorded: equal after saving and loading."""
    bare = bare_run()
    bare.save(tmp_path / "bare")
    assert load(tmp_path / "bare") == bare
    assert bare.to_pandas("latency").empty


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(run=any_run())
def test_any_run_comes_back_equal(run: Run) -> None:
    """Runs in which every field varies: saved and loaded, equal, and so are their plain values."""
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder) / "run")
        back = load(Path(folder) / "run")
    assert back == run
    assert back.to_pandas().attrs == run.to_pandas().attrs


DAMAGED = make_run()


@settings(max_examples=examples(300), deadline=None)
@given(data=st.data())
def test_damage_is_noticed_or_harmless(data: st.DataObject) -> None:
    """One changed byte, or a shorter file: the same Run (where walkit does not read) or CorruptionError."""
    run = DAMAGED
    body = bytearray(run.to_bytes())
    at = data.draw(st.integers(0, len(body) - 1))
    if data.draw(st.booleans()):
        body[at] ^= data.draw(st.integers(1, 255))
        whole = True
    else:
        del body[at:]
        whole = False
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.parquet"
        path.write_bytes(body)
        try:
            back = load(path)
        except CorruptionError:
            return
    assert whole and back == run


def test_pandas_reads_the_file_without_walkit(tmp_path: Path) -> None:
    """A new interpreter that has pandas and not walkit reads the columns, their types and the settings."""
    run = make_run()
    run.save(tmp_path / "run.parquet")
    code = (  # pyarrow's threads may abort a process that ends in order while they do (apache/arrow#50482)
        "import json, os, sys, pandas as pd\n"
        f"frame = pd.read_parquet({str(tmp_path / 'run.parquet')!r}, use_threads=False)\n"
        "print(json.dumps([{n: str(t) for n, t in frame.dtypes.items()}, int(frame.records.sum()), frame.attrs,"
        " [name for name in sys.modules if name.startswith('walkit')]]), flush=True)\n"
        "os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    types, records, attrs, ours = json.loads(done.stdout)
    assert ours == []
    assert types.pop("time") == "datetime64[us, UTC]"
    assert types.pop("records") == "int64"
    assert set(types.values()) == {"float64"}
    assert records == run.records
    assert attrs == run.to_pandas().attrs
    assert (attrs["seed"], attrs["durability"], attrs["options"]) == (7, "sync", run.options)
    assert attrs["latency_us"]["total"]["p99"] == run.latency["total"].percentile(99) / 1_000
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "run.parquet"), run.to_pandas())


def test_the_series_are_the_timeline_with_its_clock() -> None:
    """Columns against the Run: wall clock, rates that add up to its records and bytes, its percentiles."""
    run = make_run()
    frame = run.to_pandas()
    assert frame["time"][0] == run.started_at.astimezone(UTC)
    assert (frame["time"] - frame["time"][0]).dt.total_seconds().to_numpy() == pytest.approx(frame["start_s"])
    assert (frame["records_per_s"] * frame["width_s"]).sum() == pytest.approx(run.records)
    assert (frame["user_bytes_per_s"] * frame["width_s"]).sum() == pytest.approx(run.bytes_user)
    for name in ("p50_us", "p99_us", "max_us"):
        assert np.array_equal(frame[name], getattr(run.timeline, name), equal_nan=True)
    assert make_run(bytes_user=None).to_pandas()["user_bytes_per_s"].isna().all()


def test_the_distribution_is_that_of_the_histograms() -> None:
    """Buckets by name, their counts and shares against the histogram they came from; another part is refused."""
    run = make_run()
    frame = run.to_pandas("latency")
    assert frame.attrs == run.to_pandas().attrs
    assert frame["name"].unique().tolist() == ["total"], "an empty histogram has no buckets"
    assert frame["records"].sum() == run.latency["total"].count
    assert frame["share"].iloc[-1] == 1
    again = LatencyHistogram.from_samples(frame["low_us"], unit="us", counts=frame["records"])
    assert again == run.latency["total"]
    half = frame[frame["share"] >= 0.5].iloc[0]
    assert half["low_us"] <= run.latency["total"].percentile(50) / 1_000 <= half["high_us"]
    with pytest.raises(OptionsError, match="part="):
        run.to_pandas("timeline")  # type: ignore[arg-type]


def test_a_number_that_is_not_finite_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """A Run that took nan seconds: OptionsError, and no file."""
    with pytest.raises(OptionsError, match="not finite"):
        make_run(duration_s=float("nan")).save(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_run_knows_the_walkit_that_was_measured(tmp_path: Path) -> None:
    """A new Run has the installed version, on disk and in its tables too; those of earlier files are unknown."""
    here = importlib.metadata.version("walkit")
    run = RunRecorder("new", durability="sync").finish()
    run.save(tmp_path / "new")
    assert run.walkit_version == load(tmp_path / "new").walkit_version == here
    assert pd.read_parquet(tmp_path / "new.parquet").attrs["walkit_version"] == here
    assert load(SAVED) == make_run()
    assert make_run().summary()["walkit_version"] is None
    old, new = settings_of(make_run()), settings_of(make_run(walkit_version=here))
    assert old != new, "another walkit is not a repeat"
    assert f"measured: walkit 0.0; drawn: walkit {here}" in run_facts([make_run(walkit_version="0.0")])
    assert f"walkit {here}" in run_facts([run, make_run()])


def resealed(path: Path, **changes: object) -> None:
    """Change facts of a saved Run and give them the right checksum again."""
    import hashlib

    table = pq.read_table(path)
    facts = json.loads(table.schema.metadata[RUN_KEY]) | changes
    text = json.dumps(facts).encode()
    known = {**table.schema.metadata, RUN_KEY: text, CHECKSUM_KEY: hashlib.sha256(text).hexdigest()}
    pq.write_table(table.replace_schema_metadata(known), path)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"version": 4}, FormatVersionError, "or a newer one"),
        ({"version": "2"}, CorruptionError, "not a saved run"),
        ({"format": "other"}, CorruptionError, "not a saved run"),
        ({"run": {}}, CorruptionError, "not a whole saved run"),
        ({"series_sha256": "0" * 64}, CorruptionError, "checksum of its columns"),
    ],
)
def test_newer_and_other_facts_have_different_errors(
    tmp_path: Path, changes: dict[str, object], error: type[Exception], words: str
) -> None:
    """Facts with a right checksum and a wrong content: each has its typed error."""
    make_run().save(tmp_path / "run.parquet")
    resealed(tmp_path / "run.parquet", **changes)
    with pytest.raises(error, match=words):
        load(tmp_path / "run.parquet")


def test_foreign_parquet_is_refused(tmp_path: Path) -> None:
    """Another table, a file that is not Parquet, and a folder: CorruptionError twice, and the system's error."""
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(CorruptionError, match=r"metadata has no walkit\.run"):
        load(tmp_path / "x")
    (tmp_path / "y.parquet").write_bytes(b"PAR1")
    with pytest.raises(CorruptionError, match="not a whole saved run"):
        load(tmp_path / "y")
    (tmp_path / "z.parquet").mkdir()
    with pytest.raises(IsADirectoryError):
        load(tmp_path / "z")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "absent")


def test_a_folder_of_runs_is_one_table(tmp_path: Path) -> None:
    """Repeats are counted and have medians, seeds apart; all settings are columns; another file has a problem."""
    options = {"log": {"in_flight": 1}}
    for number, (records_s, seed) in enumerate([(1.0, 1), (2.0, 2), (4.0, 3)]):
        run = make_run(
            duration_s=records_s, seed=seed, options=options | {"seed": seed}, labels={"round": number}
        )
        run.save(tmp_path / f"a{number}")
    make_run("other", options={"log": {"in_flight": 8}}, labels={"writers": 64}).save(tmp_path / "b")
    shutil.copy(f"{SAVED}.parquet", tmp_path)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    (tmp_path / "notes.txt").write_text("not looked at")
    found = read_runs(tmp_path)
    names = ["a0", "a1", "a2", "b", "broken", "version-2"]
    assert found["file"].tolist() == [f"{name}.parquet" for name in names]
    problems = found.set_index("file")["problem"].dropna()
    assert [*problems.index] == ["broken.parquet"]
    assert all(text.startswith("CorruptionError: ") for text in problems)
    good = found[found["problem"].isna()].set_index("file")
    assert good["n"].tolist() == [3, 3, 3, 1, 1]
    assert good["median_records_per_s"]["a0.parquet"] == pytest.approx(make_run(duration_s=2.0).records_per_s)
    assert good["option.log.in_flight"].tolist() == [1, 1, 1, 8, 1]
    assert good["machine.file_system.type"].unique().tolist() == ["ext4"]
    assert good["started_at"].dt.tz is not None
    assert good["seed"].tolist() == [1, 2, 3, 7, 7]
    side = compare([load(tmp_path / name) for name in ("a0", "b")])
    assert set(side.columns) <= set(found.columns)
    assert side["p99_us"].tolist() == good.loc[["a0.parquet", "b.parquet"], "p99_us"].tolist()


def test_an_empty_folder_is_an_empty_table_and_no_folder_an_error(tmp_path: Path) -> None:
    """No file, no row, but columns; a missing path, or a file, is the system's error."""
    assert read_runs(tmp_path)["file"].tolist() == []
    with pytest.raises(FileNotFoundError):
        read_runs(tmp_path / "absent")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        read_runs(tmp_path / "file")
