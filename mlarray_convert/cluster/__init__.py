"""Who does the work on several machines? A Dask cluster; nothing here schedules.

One case is one Dask task. The task does not convert inside the Dask worker: it hands the case to a process of its own
(:mod:`~mlarray_convert.cluster.child`), as the pool of one machine does. So a case that is killed for its memory takes nothing
with it, cases that run beside each other share no imaging library, the memory limit holds for one case, and a case can be
stopped, which a thread cannot.

:mod:`~mlarray_convert.cluster.client` runs where the command runs and writes the report, :mod:`~mlarray_convert.cluster.worker`
runs in the Dask workers, :mod:`~mlarray_convert.cluster.sight` tells whether those see the same files. Dask is imported when a
cluster is opened.
"""

from __future__ import annotations

from mlarray_convert.cluster.client import Cluster, open_cluster
from mlarray_convert.cluster.sight import Places

__all__ = ["Cluster", "Places", "open_cluster"]
