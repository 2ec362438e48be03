"""Patches of a preprocessed volume, each from one bounded read of the stored one."""

from __future__ import annotations

from mlarray.streaming.budget import Budget, memory_budget, parse_bytes
from mlarray.streaming.chain import Chain, Stage
from mlarray.streaming.explain import Explanation
from mlarray.streaming.grid import PatchGrid, padded, patch_grid
from mlarray.streaming.plan import Plan, plan
from mlarray.streaming.regimes import CaseEstimate, CaseRegime, Decision, EvaluationPatch, decide, evaluation_patch
from mlarray.streaming.rules import Regime, Rule, Verdict

__all__ = [
    "Budget",
    "CaseEstimate",
    "CaseRegime",
    "Chain",
    "Decision",
    "EvaluationPatch",
    "Explanation",
    "PatchGrid",
    "Plan",
    "Regime",
    "Rule",
    "Stage",
    "Verdict",
    "decide",
    "evaluation_patch",
    "memory_budget",
    "padded",
    "parse_bytes",
    "patch_grid",
    "plan",
]
