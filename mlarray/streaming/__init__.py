"""Patches of preprocessed volumes, each from one bounded read of the stored one, and streams of batches of them."""

from __future__ import annotations

from mlarray.streaming.batch import Batch, Sample
from mlarray.streaming.budget import Budget, memory_budget, parse_bytes
from mlarray.streaming.case_plans import GroupChain
from mlarray.streaming.case_set import CaseFiles, CaseSet, Place, find_cases, open_place, split
from mlarray.streaming.chain import Chain, Stage
from mlarray.streaming.class_locations import ClassLocations, class_locations, locations_of
from mlarray.streaming.explain import Explanation
from mlarray.streaming.fingerprint import fingerprint
from mlarray.streaming.grid import PatchGrid, padded, patch_grid
from mlarray.streaming.kept import Kept, kept_for
from mlarray.streaming.loader import WorkerLoader
from mlarray.streaming.patch_stream import PatchStream
from mlarray.streaming.patch_writer import PatchWriter, patch_weights
from mlarray.streaming.plan import Plan
from mlarray.streaming.planning import plan
from mlarray.streaming.recorded import record_statistics
from mlarray.streaming.regimes import CaseEstimate, CaseRegime, Decision, EvaluationPatch, decide, evaluation_patch
from mlarray.streaming.rules import Regime, Rule, Verdict
from mlarray.streaming.samplers import ForegroundPatches, GridPatches, RandomPatches, Sampler, block_origins

__all__ = [
    "Batch",
    "Budget",
    "CaseEstimate",
    "CaseFiles",
    "CaseRegime",
    "CaseSet",
    "Chain",
    "ClassLocations",
    "Decision",
    "EvaluationPatch",
    "Explanation",
    "ForegroundPatches",
    "GridPatches",
    "GroupChain",
    "Kept",
    "PatchGrid",
    "PatchStream",
    "PatchWriter",
    "Place",
    "Plan",
    "RandomPatches",
    "Regime",
    "Rule",
    "Sample",
    "Sampler",
    "Stage",
    "Verdict",
    "WorkerLoader",
    "block_origins",
    "class_locations",
    "decide",
    "evaluation_patch",
    "find_cases",
    "fingerprint",
    "kept_for",
    "locations_of",
    "memory_budget",
    "open_place",
    "padded",
    "parse_bytes",
    "patch_grid",
    "patch_weights",
    "plan",
    "record_statistics",
    "split",
]
