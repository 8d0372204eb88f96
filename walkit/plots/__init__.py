"""Plotly figures from Runs and reports: one function each, shared by notebooks, dashboards and HTML reports.

Each returns a figure that a cell, an exported notebook and a report can show, and touches neither a log nor a file.
Its colours are for light and for dark pages. `data` gives a figure's data as a DataFrame, `save_data` writes it,
`figure_html` makes a piece of a page of it, and `alt_text` words. Importing this room without plotly raises
MissingExtraError.
"""

from walkit.plots.batching import batching_cost, batching_table
from walkit.plots.checkpoint import recovery_over_checkpoint, recovery_over_segment_size
from walkit.plots.crash_states import crash_states
from walkit.plots.delta import delta_latencies
from walkit.plots.display import Figure, alt_text, figure_html, plotly_script, restored
from walkit.plots.engines import engine_times
from walkit.plots.export import data, save_data
from walkit.plots.framebytes import frame_bytes
from walkit.plots.group_commit import group_commit
from walkit.plots.latency import latency_distribution
from walkit.plots.load import latency_over_load
from walkit.plots.maintenance import Amplification, amplification, maintenance
from walkit.plots.order import order_cost
from walkit.plots.phases import recoveries, recovery_timeline
from walkit.plots.positions import segments
from walkit.plots.ratios import ratios
from walkit.plots.replicas import (
    LagSeries,
    LagUnit,
    StateBar,
    lag_over_time,
    replication_lag,
    sent_by_codec,
    state_lanes,
)
from walkit.plots.states import StateLane, states_timeline
from walkit.plots.svg import svg_of
from walkit.plots.timeline import LiveSeries, throughput_timeline
from walkit.plots.world import world_schedule

__all__ = [
    "Amplification",
    "Figure",
    "LagSeries",
    "LagUnit",
    "LiveSeries",
    "StateBar",
    "StateLane",
    "alt_text",
    "amplification",
    "batching_cost",
    "batching_table",
    "crash_states",
    "data",
    "delta_latencies",
    "engine_times",
    "figure_html",
    "frame_bytes",
    "group_commit",
    "lag_over_time",
    "latency_distribution",
    "latency_over_load",
    "maintenance",
    "order_cost",
    "plotly_script",
    "ratios",
    "recoveries",
    "recovery_over_checkpoint",
    "recovery_over_segment_size",
    "recovery_timeline",
    "replication_lag",
    "restored",
    "save_data",
    "segments",
    "sent_by_codec",
    "state_lanes",
    "states_timeline",
    "svg_of",
    "throughput_timeline",
    "world_schedule",
]
