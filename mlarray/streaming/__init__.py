"""Patches of a preprocessed volume, each from one bounded read of the stored one."""

from __future__ import annotations

from mlarray.streaming.chain import Chain, Stage
from mlarray.streaming.explain import Explanation
from mlarray.streaming.grid import PatchGrid, padded, patch_grid
from mlarray.streaming.plan import Plan, plan
from mlarray.streaming.recorded import record_statistics
from mlarray.streaming.rules import Regime, Rule, Verdict

__all__ = [
    "Chain",
    "Explanation",
    "PatchGrid",
    "Plan",
    "Regime",
    "Rule",
    "Stage",
    "Verdict",
    "padded",
    "patch_grid",
    "plan",
    "record_statistics",
]
