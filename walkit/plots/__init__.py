"""Plotly figures from Runs and reports: one function each, shared by notebooks, dashboards and HTML reports.

Each returns a plotly.graph_objects.Figure and touches neither a log nor a file. Importing this room without
plotly raises MissingExtraError.
"""

from walkit.plots.checkpoint import recovery_over_checkpoint
from walkit.plots.framebytes import frame_bytes
from walkit.plots.latency import latency_distribution
from walkit.plots.live import LiveSeries, live_timeline, move_live_timeline
from walkit.plots.load import latency_over_load
from walkit.plots.order import order_cost
from walkit.plots.phases import PhaseLike, RecoveryReportLike, recovery_timeline
from walkit.plots.positions import segments
from walkit.plots.recovery import RecoveryRowLike, recovery_time
from walkit.plots.replication import replication_lag
from walkit.plots.space import space_amplification
from walkit.plots.timeline import throughput_timeline
from walkit.plots.upkeep import upkeep

__all__ = [
    "LiveSeries",
    "PhaseLike",
    "RecoveryReportLike",
    "RecoveryRowLike",
    "frame_bytes",
    "latency_distribution",
    "latency_over_load",
    "live_timeline",
    "move_live_timeline",
    "order_cost",
    "recovery_over_checkpoint",
    "recovery_time",
    "recovery_timeline",
    "replication_lag",
    "segments",
    "space_amplification",
    "throughput_timeline",
    "upkeep",
]
