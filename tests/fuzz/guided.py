"""python -m tests.fuzz.guided PARSER [options of libFuzzer]: the same inputs, guided by coverage; needs the package atheris.

Branches of this package and of the libraries in Python are counted, and inputs that reach new ones are changed further. It runs
in one process: a crash ends it and leaves the input in a file ``crash-...``, which `python -m tests.fuzz` can replay from the
corpus.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from itertools import count
from pathlib import Path
from random import Random

from tests.fuzz.campaign import made_seeds
from tests.fuzz.inputs import pack, unpack


def main() -> None:
    """Run libFuzzer over one parser."""
    import atheris

    with atheris.instrument_imports(include=["mlarray", "mlarray_convert", "tifffile", "pydicom", "zarr", "yaml"]):
        from tests.fuzz.parser import Finding, outcome
        from tests.fuzz.parsers import load

        parser = load(sys.argv.pop(1))
    seeds = made_seeds(parser)
    names = frozenset(name for files in seeds for name in files)
    scratch, numbers = Path(tempfile.mkdtemp(prefix="mlarray-fuzz-")), count()
    corpus = scratch / "corpus"
    corpus.mkdir()
    for number, files in enumerate(seeds):
        (corpus / f"{number}").write_bytes(pack(files))
    warnings.simplefilter("always")

    def run(data: bytes) -> None:
        files = unpack(data, names)
        if not files:
            return
        found = outcome(parser, scratch / str(next(numbers)), files)
        if isinstance(found, Finding):
            raise RuntimeError(f"{found.kind} at {found.place}\n{found.detail}")

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        random = Random(seed)
        files = unpack(data, names) or random.choice(seeds)
        return pack(parser.mutate(random, files))[:most]

    atheris.Setup(
        [*sys.argv, str(corpus), "-max_len=262144", "-rss_limit_mb=2048", "-timeout=10"], run, custom_mutator=mutate
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
