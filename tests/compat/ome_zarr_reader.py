"""What other programs see in OME-Zarr; run by an interpreter that has them, not this package.

``python ome_zarr_reader.py FOLDER`` validates every ``.zarr`` in the folder with ome-zarr-models, opens it with ngff-zarr and
tensorstore, and prints what each sees as JSON.
"""

import json
import sys
import zlib
from pathlib import Path

import ngff_zarr
import numpy as np
import tensorstore
import zarr
from ome_zarr_models import open_ome_zarr


def described(path: Path) -> dict:
    group = zarr.open_group(path, mode="r")
    model = open_ome_zarr(group)
    image = ngff_zarr.from_ngff_zarr(str(path))
    finest = image.images[0]
    driver = "zarr3" if group.metadata.zarr_format == 3 else "zarr"
    levels = []
    for level in image.images:
        name = str(len(levels))
        store = {"driver": driver, "kvstore": {"driver": "file", "path": str(path / name)}}
        voxels = np.ascontiguousarray(tensorstore.open(store).result().read().result())
        dask = np.ascontiguousarray(np.asarray(level.data))
        levels.append(
            {"shape": voxels.shape, "crc": zlib.crc32(voxels.tobytes()), "ngff_crc": zlib.crc32(dask.tobytes())}
        )
    seen = {
        "model": f"{type(model).__module__}.{type(model).__name__}",
        "dims": list(finest.dims),
        "scale": {name: float(value) for name, value in finest.scale.items()},
        "levels": levels,
    }
    if set(finest.dims) == {"z", "y", "x"}:
        as_itk = ngff_zarr.ngff_image_to_itk_image(finest, wasm=True)
        seen |= {"origin": list(as_itk.origin), "spacing": list(as_itk.spacing)}
        seen["direction"] = np.asarray(as_itk.direction).tolist()
    return seen


if __name__ == "__main__":
    print(json.dumps({path.name: described(path) for path in sorted(Path(sys.argv[1]).glob("*.zarr"))}))
