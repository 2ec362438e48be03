"""Patches of preprocessed volumes, each from one bounded read of the stored one, and streams of batches of them."""

from __future__ import annotations

from mlarray.streaming.batch import Batch, Sample
from mlarray.streaming.case_plans import GroupChain
from mlarray.streaming.case_set import CaseSet, find_cases, split
from mlarray.streaming.chain import Chain, Stage
from mlarray.streaming.explain import Explanation
from mlarray.streaming.grid import PatchGrid, padded, patch_grid
from mlarray.streaming.patch_stream import PatchStream
from mlarray.streaming.patch_writer import PatchWriter, patch_weights
from mlarray.streaming.plan import Plan, plan
from mlarray.streaming.rules import Regime, Rule, Verdict
from mlarray.streaming.samplers import ForegroundPatches, GridPatches, RandomPatches, Sampler

__all__ = [
    "Batch",
    "CaseSet",
    "Chain",
    "Explanation",
    "ForegroundPatches",
    "GridPatches",
    "GroupChain",
    "PatchGrid",
    "PatchStream",
    "PatchWriter",
    "Plan",
    "RandomPatches",
    "Regime",
    "Rule",
    "Sample",
    "Sampler",
    "Stage",
    "Verdict",
    "find_cases",
    "padded",
    "patch_grid",
    "patch_weights",
    "plan",
    "split",
]
