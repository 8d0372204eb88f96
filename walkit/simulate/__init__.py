"""Virtual time: the commit path over a modelled device, faster than real and the same again for the same seed."""

from __future__ import annotations

from walkit.simulate.commit import CommitSimulation, Host, Step

__all__ = ["CommitSimulation", "Host", "Step"]
