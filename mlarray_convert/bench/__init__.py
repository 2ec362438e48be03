"""Which layout, codec and filter suit this data, this patch and this storage? Measured: :func:`bench`."""

from mlarray_convert.bench.report import BenchReport
from mlarray_convert.bench.run import bench

__all__ = ["BenchReport", "bench"]
