"""Where do the peers come from? One virtual environment for each that cannot share, made once in a scratch folder by pip.

``mlarray==0.0.54`` has the import name of this project, and nnU-Net asks for torch, which reading its files does not need: its
package goes in without dependencies, and a module that answers to the name ``torch`` stands in for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

REQUIREMENTS = {
    "mla54": ["mlarray==0.0.54"],
    "nnunet": ["blosc2=={blosc2}", "numpy=={numpy}"],
    "others": ["numpy=={numpy}", "zarr>=3,<4", "zarrs", "tensorstore", "h5py", "hdf5plugin", "nibabel", "SimpleITK"],
}
WITHOUT_DEPENDENCIES = {"nnunet": ["nnunetv2==2.8.1", "batchgenerators"]}
_MNI = "nilearn/datasets/data/mni_icbm152_t1_tal_nlin_sym_09a_converted.nii.gz"
# Enough of a module for `import torch` and `torch.anything` at import time; nothing of it is used to read a file.
_TORCH = '''"""Stands in for torch, which reading files does not need."""
import sys
from unittest.mock import MagicMock

sys.modules["torch"] = MagicMock(name="torch", __version__="2.2.0", __path__=[], __spec__=None)
'''


def python_of(scratch: Path, name: str) -> Path:
    """Return the interpreter of an environment, made with its packages unless it is there already."""
    if name == "ours":
        return Path(sys.executable)
    folder = scratch / "environments" / name
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    done = folder / "done"
    wanted = [line.format(blosc2=version("blosc2"), numpy=version("numpy")) for line in REQUIREMENTS[name]]
    alone = WITHOUT_DEPENDENCIES.get(name, [])
    if done.exists() and done.read_text(encoding="utf-8") == "\n".join([*wanted, *alone]):
        return python
    print(f"making environment {name}: {', '.join([*wanted, *alone])}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *wanted], check=True)
    if alone:
        subprocess.run([*install, "--no-deps", *alone], check=True)
        where = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        packages = subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip()
        (Path(packages) / "torch.py").write_text(_TORCH, encoding="utf-8")
    done.write_text("\n".join([*wanted, *alone]), encoding="utf-8")
    return python


def versions_of(python: Path) -> dict[str, str]:
    """Return the versions of the packages of an environment."""
    code = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    listed = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout
    import json

    return dict(sorted(json.loads(listed).items()))


def mni_image(scratch: Path) -> Path:
    """Return the MNI152 T1 template that comes inside the wheel of nilearn."""
    target = scratch / "mni_t1.nii.gz"
    if not target.exists():
        wheels = scratch / "wheels"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, "nilearn", "-d", str(wheels)], check=True)
        with zipfile.ZipFile(next(wheels.glob("nilearn-*.whl"))) as wheel:
            target.write_bytes(wheel.read(_MNI))
    return target
