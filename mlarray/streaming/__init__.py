"""Patches of a preprocessed volume, each from one bounded read of the stored one."""

from __future__ import annotations

from mlarray.streaming.case_set import CaseFiles, CaseSet, Place, find_cases, open_place, split
from mlarray.streaming.chain import Chain, Stage
from mlarray.streaming.class_locations import ClassLocations, class_locations, locations_of
from mlarray.streaming.explain import Explanation
from mlarray.streaming.fingerprint import fingerprint
from mlarray.streaming.grid import PatchGrid, padded, patch_grid
from mlarray.streaming.kept import Kept, kept_for
from mlarray.streaming.plan import Plan, plan
from mlarray.streaming.rules import Regime, Rule, Verdict
from mlarray.streaming.samplers import (
    ForegroundPatches,
    GridPatches,
    RandomPatches,
    Sampler,
    block_origins,
)

__all__ = [
    "CaseFiles",
    "CaseSet",
    "Chain",
    "ClassLocations",
    "Explanation",
    "ForegroundPatches",
    "GridPatches",
    "Kept",
    "PatchGrid",
    "Place",
    "Plan",
    "RandomPatches",
    "Regime",
    "Rule",
    "Sampler",
    "Stage",
    "Verdict",
    "block_origins",
    "class_locations",
    "find_cases",
    "fingerprint",
    "kept_for",
    "locations_of",
    "open_place",
    "padded",
    "patch_grid",
    "plan",
    "split",
]
