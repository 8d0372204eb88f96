"""Names that packages offer: policies and devices as entry points, and the fixtures of the pytest plugin."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import walkit
from walkit._internal import plugins
from walkit.errors import OptionsError
from walkit.models import PRESETS, CrashingStorage, DeviceModel
from walkit.models.device import device_model
from walkit.policy import NAMED, Linger

MODULE = """
from walkit.models import ConstantLatency, DeviceModel
from walkit.policy import Take

FLOPPY = DeviceModel(name="floppy", iops=5, latency=ConstantLatency(100_000))

class Every:
    def __init__(self, records=1):
        self.records = records

    def decide(self, queue):
        return Take(records=self.records)

def made():
    return FLOPPY

def nothing():
    return None
"""
ENTRIES = """
[walkit.policies]
every = walkit_offers:Every
linger = walkit_offers:Every
empty = walkit_offers:nothing
gone = walkit_offers:NoSuchThing
[walkit.devices]
floppy = walkit_offers:FLOPPY
made-floppy = walkit_offers:made
gp3 = walkit_offers:FLOPPY
empty = walkit_offers:nothing
"""


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package that offers policies and devices: a module and its metadata in a folder of the path."""
    (tmp_path / "walkit_offers.py").write_text(MODULE)
    info = tmp_path / "walkit_offers-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: walkit-offers\nVersion: 1\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "walkit_offers", raising=False)
    return tmp_path


def test_a_policy_of_a_package_seals_frames(offered: Path, tmp_path: Path) -> None:
    """Ask for an offered policy by name with an argument and write with it: each frame has so many records."""
    policy = walkit.policy.named("every", records=2)
    with walkit.open(tmp_path / "log", options=walkit.LogOptions(policy=policy)) as log:
        tickets = [log.submit(b"x") for _ in range(6)]
        assert [ticket.result(30).first_lsn for ticket in tickets] == [1, 2, 3, 4, 5, 6]
        assert log.statistics().frames_written >= 3


def test_walkits_own_names_come_first(offered: Path) -> None:
    """A package offers a policy and a device under names of walkit: the names still mean walkit's own."""
    assert isinstance(walkit.policy.named("linger", wait_us=1, size_bytes=1), Linger)
    assert device_model("gp3") is PRESETS["gp3"]


def test_a_device_of_a_package_is_simulated(offered: Path) -> None:
    """Simulate on an offered device, as an object and as what makes one: its five I/Os a second bound the rate."""
    spec = walkit.workload.Workload(operations=6, writers=1, seed=7)
    for name in ("floppy", "made-floppy"):
        assert device_model(name).name == "floppy"
        assert walkit.simulate.drive(spec, device=name).records_per_s < 10


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: walkit.policy.named("nobody"), "adaptive, capped-frames, empty, every, gone"),
        (lambda: walkit.policy.named("empty"), "no decide"),
        (lambda: walkit.policy.named("gone"), "cannot be loaded"),
        (lambda: walkit.policy.named("every", wrong=1), "wrong"),
        (lambda: walkit.policy.named("linger"), "wait_us"),
        (lambda: device_model("nobody"), "empty, essd-pl1-20g, floppy"),
        (lambda: device_model("empty"), "not a DeviceModel"),
    ],
)
def test_a_wrong_plugin_name_is_explained(offered: Path, ask: Callable[[], object], words: str) -> None:
    """Names that nothing has, that make nothing, that cannot be loaded, wrong arguments: OptionsErrors in words."""
    with pytest.raises(OptionsError, match=words):
        ask()


def test_a_name_that_two_packages_offer_is_refused(offered: Path) -> None:
    """Offer another thing under the same name in a second package: neither is taken, and the error names both."""
    info = offered / "walkit_more-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: walkit-more\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[walkit.policies]\nevery = walkit_more:Every\n")
    with pytest.raises(OptionsError, match=r"walkit_more:Every and walkit_offers:Every"):
        walkit.policy.named("every")


def test_names_are_looked_up_without_loading(offered: Path) -> None:
    """List what is offered: the names are there, and the package's module is not imported."""
    assert plugins.offered("walkit.policies") == ["empty", "every", "gone", "linger"]
    assert "walkit_offers" not in sys.modules


def test_every_policy_has_a_name() -> None:
    """Each class of walkit.policy that decides and is not an interface has one name."""
    deciding = {
        value
        for name in walkit.policy.__all__
        if isinstance(value := getattr(walkit.policy, name), type) and hasattr(value, "decide")
    }
    assert deciding - {walkit.policy.Policy} == set(NAMED.values())
    assert all(isinstance(model, DeviceModel) for model in PRESETS.values())


def test_the_pytest_plugin_imports_nothing_of_walkit() -> None:
    """Import the plugin as pytest does at its start, in a process of its own: no module of walkit is loaded."""
    code = "import sys, pytest_walkit; print([m for m in sys.modules if m.split('.')[0] == 'walkit'])"
    root = Path(walkit.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_the_states_of_a_power_cut(
    walkit_crashing_storage: CrashingStorage, walkit_crash_states: Callable[..., Iterator[CrashingStorage]]
) -> None:
    """Use the fixtures: nothing synced is lost, all is kept in one state, and seeds give the same again."""
    with walkit.open(walkit_crashing_storage, options=walkit.LogOptions(durability="none")) as log:
        log.append_many([b"x"] * 3)
        log.sync()
        log.append_many([b"y"] * 4)

        def counts() -> list[int]:
            found = []
            for state in walkit_crash_states(walkit_crashing_storage, random=5):
                with walkit.open(state) as after:
                    found.append(len(list(after.read())))
            return found

        found = counts()
        assert len(found) == 7 and found[:2] == [3, 7]
        assert all(3 <= count <= 7 for count in found)
        assert counts() == found
