"""Every image in pydicom's wheel: read with pydicom's own values, or refused for a reason that is right."""

from __future__ import annotations

import warnings
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.pixels.processing import apply_rescale

from mlarray import open_source
from mlarray.errors import FormatError
from mlarray.formats import dicom
from mlarray_convert.cli import run
from mlarray_convert.report import ExitCode

SHIPPED = Path(str(files("pydicom"))) / "data" / "test_files"
NO_PIXELS = "holds no image: 1 "
CUT_OFF = "Image and holds no pixels: it is cut off"
COLOUR = "It is a colour image"
# What is refused, and why; everything else is read.
REFUSED = {
    "ExplVR_BigEnd.dcm": COLOUR,
    "ExplVR_BigEndNoMeta.dcm": "is no DICOM file",
    "ExplVR_LitEndNoMeta.dcm": NO_PIXELS,
    "GDCMJ2K_TextGBR.dcm": COLOUR,
    "JPEG2000-embedded-sequence-delimiter.dcm": "the header states (1024, 256, 1)",
    "MR_truncated.dcm": "is cut off",
    "UN_sequence.dcm": CUT_OFF,
    "empty_charset_LEI.dcm": "without pixels and without a SOP class",
    "examples_jpeg2k.dcm": COLOUR,
    "examples_palette.dcm": COLOUR,
    "examples_rgb_color.dcm": COLOUR,
    "examples_ybr_color.dcm": COLOUR,
    "liver_1frame.dcm": "Segmentation object",
    "liver_expb_1frame.dcm": "Segmentation object",
    "meta_missing_tsyntax.dcm": "states no image size",
    "nested_priv_SQ.dcm": "states no image size",
    "no_meta_group_length.dcm": CUT_OFF,
    "priv_SQ.dcm": CUT_OFF,
    "reportsi.dcm": NO_PIXELS,
    "reportsi_with_empty_number_tags.dcm": NO_PIXELS,
    "rtplan.dcm": NO_PIXELS,
    "rtplan_truncated.dcm": NO_PIXELS,
    "rtstruct.dcm": NO_PIXELS,
    "test-SR.dcm": NO_PIXELS,
    "waveform_ecg.dcm": NO_PIXELS,
}
OTHER_IDCT = {"JPGExtended.dcm", "JPEG-lossy.dcm"}  # lossy: decoders differ by one
UNREADABLE_BY_PYDICOM = {"badVR.dcm"}  # a wrong InstanceNumber; the rest is there


def expected_reason(path: Path) -> str | None:
    name = path.name
    if name.startswith(("SC_rgb", "SC_ybr", "SC_jpeg")):
        return COLOUR
    if name.startswith("DICOMDIR"):
        return NO_PIXELS
    if path.parts[-2].startswith("SE0"):
        return CUT_OFF
    return REFUSED.get(name)


def images() -> list[Path]:
    return [path for path in sorted(SHIPPED.rglob("*")) if path.is_file() and dicom.holds_images(path)]


def by_pydicom(path: Path) -> Any:
    """Return the values as pydicom gives them, None where no decoder of pydicom is installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = pydicom.dcmread(path, force=True)
        try:
            stored = data.pixel_array
        except RuntimeError:
            return None
        if "DoseGridScaling" in data:
            return stored * float(data.DoseGridScaling)
        return apply_rescale(stored, data) if "RescaleSlope" in data else stored


@pytest.mark.parametrize("path", images(), ids=lambda path: str(path.relative_to(SHIPPED)))
def test_an_image_of_the_wheel(path: Path) -> None:
    reason = expected_reason(path)
    if reason is not None:
        with pytest.raises(FormatError) as caught:
            read(path)
        assert reason in str(caught.value)
        return
    voxels = read(path)
    if path.name in UNREADABLE_BY_PYDICOM:
        return
    expected = by_pydicom(path)
    if expected is not None and path.name not in OTHER_IDCT:
        np.testing.assert_allclose(voxels.squeeze(), expected.squeeze(), rtol=1e-6, atol=0)


def read(path: Path) -> Any:
    with open_source(path) as source:
        return source.read(source.spec.region)


def test_compressed_copies_hold_what_the_plain_file_holds() -> None:
    plain = read(SHIPPED / "MR_small.dcm")
    for name in ("RLE", "bigendian", "expb", "implicit", "jp2klossless", "jpeg_ls_lossless", "padded"):
        np.testing.assert_array_equal(read(SHIPPED / f"MR_small_{name}.dcm"), plain, strict=True)
    np.testing.assert_allclose(read(SHIPPED / "JPGExtended.dcm"), read(SHIPPED / "JPEG-lossy.dcm"), atol=1)


def test_the_whole_wheel_goes_through_the_converter(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert run(["convert", str(SHIPPED), "-o", str(tmp_path), "--labels", "none"]) == ExitCode.SOME_FAILED
    told = capsys.readouterr().err
    assert "161 slices are missing" in told
    assert "Media Storage Directory" in told
    assert "Traceback" not in told
    assert "unexpected" not in told.lower()
    assert (tmp_path / "dicomdirtests" / "98892001" / "CT5N" / "series-5.mla").is_file()
