"""Plotly figures from Runs and reports: one function each, shared by notebooks, dashboards and HTML reports.

Each returns a plotly.graph_objects.Figure and touches neither a log nor a file. Importing this room without
plotly raises MissingExtraError.
"""

from walkit.plots.latency import latency_distribution
from walkit.plots.load import latency_over_load
from walkit.plots.space import space_amplification
from walkit.plots.timeline import PhaseLike, RecoveryReportLike, recovery_timeline, throughput_timeline

__all__ = [
    "PhaseLike",
    "RecoveryReportLike",
    "latency_distribution",
    "latency_over_load",
    "recovery_timeline",
    "space_amplification",
    "throughput_timeline",
]
