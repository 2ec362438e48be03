"""Every file that the wheels of nibabel and tifffile ship as an image: converted to what they read, or refused with the reason.

The tables name each file. One that they do not know is a failure: a new release brought it, and somebody has to look.
"""

from __future__ import annotations

import warnings
from importlib.metadata import files
from pathlib import Path

import nibabel
import numpy as np
import pytest

from mlarray import MLArray
from mlarray.formats.registry import split_suffix
from mlarray_convert import convert
from mlarray_convert.run import Outcome

DATA = Path(nibabel.__file__).parent / "tests" / "data"

CONVERTED = {
    **dict.fromkeys(("anatomical.nii", "functional.nii", "reoriented_anat_moved.nii"), "reversed"),
    **dict.fromkeys(("resampled_anat_moved.nii", "standard.nii.gz", "test.mgz"), "reversed"),
    **dict.fromkeys(("example4d.nii.gz", "example_nifti2.nii.gz", "row_major.dconn.nii"), "reversed"),
    **dict.fromkeys(("minc1-no-att.mnc", "minc1_1_scale.mnc", "minc1_4d.mnc", "minc2-no-att.mnc"), "as stored"),
    **dict.fromkeys(("minc2_1_scale.mnc", "minc2_4d.mnc", "minc2_baddim.mnc", "small.mnc", "tiny.mnc"), "as stored"),
    "minc2-4d-d.mnc": "space reversed",
}
WITHOUT_VOXELS = {"analyze.hdr": "analyze.img", "nifti1.hdr": "nifti1.img", "nifti2.hdr": "nifti2.img"}
NOT_READ = {
    # Philips PAR/REC
    *("ADC_Map.PAR", "ASL_3D_Multiecho.PAR", "DTI.PAR", "DTIv40.PAR", "NA.PAR", "R11_T2W_TSE.PAR", "T1.PAR", "T2.PAR"),
    *("T1_3echo_mag_real_imag_phase.PAR", "T1_dual_echo.PAR", "T2-interleaved.PAR", "T2_-interleaved.PAR", "T2_.PAR"),
    *("Phantom_EPI_3mm_cor_20APtrans_15RLrot_SENSE_15_1.PAR", "Phantom_EPI_3mm_cor_SENSE_8_1.PAR"),
    *("Phantom_EPI_3mm_sag_15AP_SENSE_13_1.PAR", "Phantom_EPI_3mm_sag_15FH_SENSE_12_1.PAR"),
    *("Phantom_EPI_3mm_sag_15RL_SENSE_11_1.PAR", "Phantom_EPI_3mm_sag_SENSE_7_1.PAR"),
    *("Phantom_EPI_3mm_tra_-30AP_10RL_20FH_SENSE_14_1.PAR", "Phantom_EPI_3mm_tra_15FH_SENSE_9_1.PAR"),
    *("Phantom_EPI_3mm_tra_15RL_SENSE_10_1.PAR", "Phantom_EPI_3mm_tra_SENSE_6_1.PAR", "fieldmap.PAR"),
    *("phantom_EPI_asc_CLEAR_2_1.PAR", "phantom_EPI_asc_CLEAR_2_1.REC", "phantom_fake_dualTR.PAR"),
    *("phantom_fake_v4.PAR", "phantom_fake_v4_1.PAR", "phantom_truncated.PAR", "phantom_truncated.REC"),
    *("phantom_varscale.PAR", "phantom_varscale.REC", "umass_anonymized.PAR", "variant_v4_2_header.PAR"),
    # AFNI
    *("bad_attribute+orig.HEAD", "bad_datatype+orig.HEAD", "example4d+orig.BRIK.gz", "example4d+orig.HEAD"),
    *("scaled+tlrc.BRIK", "scaled+tlrc.HEAD"),
    # ECAT
    "tinypet.v",
    # streamlines
    *(
        "complex.trk",
        "complex_big_endian.trk",
        "empty.tck",
        "empty.trk",
        "matlab_nan.tck",
        "multiline_header_field.tck",
    ),
    *("no_header_end.tck", "no_header_end_eof.tck", "no_magic_number.tck", "simple.tck", "simple.trk"),
    *("simple_big_endian.tck", "standard.LPS.trk", "standard.tck", "standard.trk"),
    # texts and scripts
    *("README.rst", "resample_using_spm.m", "to_canonical.m"),
}
DICOM = {"0.dcm", "1.dcm"}  # with the tests of that format
NOT_DATA = {".gitignore", "check_parrec_reslice.py", "gen_standard.py", "make_moved_anat.py"}


def shipped() -> list[Path]:
    return sorted(path for path in DATA.iterdir() if path.is_file() and path.name not in NOT_DATA)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """How one run of the converter over all of them ended, by file name."""
    inputs = [path for path in shipped() if path.name not in DICOM]
    report = convert(inputs, tmp_path_factory.mktemp("shipped"), workers=2)
    assert not report.not_started
    return {outcome.case.source.name: outcome for outcome in report.outcomes}


def test_the_tables_know_every_file() -> None:
    known = CONVERTED.keys() | WITHOUT_VOXELS.keys() | NOT_READ | DICOM
    assert {path.name for path in shipped()} - known == set()


def test_tifffile_ships_no_image() -> None:
    names = [path.name for path in files("tifffile") or []]
    assert [name for name in names if split_suffix(name)[1]] == []


@pytest.mark.parametrize("path", [path for path in shipped() if path.name in CONVERTED], ids=lambda path: path.name)
def test_a_converted_image_is_what_nibabel_reads(path: Path, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[path.name]
    assert outcome.status.value in ("ok", "warned"), outcome.reason
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a misspelled attribute of one of them
        image = nibabel.load(path, mmap=False)
        values = np.asanyarray(image.dataobj)
    how = CONVERTED[path.name]
    if how == "reversed":
        expected = np.squeeze(values).transpose()
    else:
        expected = values.transpose(0, 3, 2, 1) if how == "space reversed" else values
    with MLArray.open(outcome.case.output) as stored:
        array = stored[...]
        assert array.shape == expected.shape or how == "reversed"
        # Values of scaled integers are rounded once, to the type that keeps neighbours apart.
        np.testing.assert_array_equal(np.squeeze(array), np.squeeze(expected).astype(array.dtype))
        if how != "reversed" or image.ndim <= 4:
            _same_places(stored, image, how)


def _same_places(stored: MLArray, image: nibabel.spatialimages.SpatialImage, how: str) -> None:
    """Compare the world position of voxels; nibabel's is RAS."""
    geometry = stored.geometry
    assert geometry is not None
    if "spacing" not in geometry.known or "origin" not in geometry.known:
        return
    rng = np.random.default_rng(2)
    for _ in range(10):
        index = rng.integers(0, 20, 3)
        theirs = index if how == "as stored" else index[::-1]
        right, anterior, superior = nibabel.affines.apply_affine(image.affine, theirs)
        np.testing.assert_allclose(geometry.world(index.tolist()), (-right, -anterior, superior), atol=1e-3)


@pytest.mark.parametrize("name", WITHOUT_VOXELS)
def test_a_header_without_voxels_names_the_file_it_lacks(name: str, outcomes: dict[str, Outcome]) -> None:
    if name in outcomes:
        assert outcomes[name].status.value == "failed"
        assert f"{WITHOUT_VOXELS[name]} was expected" in outcomes[name].reason


@pytest.mark.parametrize("path", [path for path in shipped() if path.name in NOT_READ], ids=lambda path: path.name)
def test_a_format_that_is_not_read_is_refused_in_one_line(path: Path, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[path.name]
    assert outcome.status.value == "failed"
    assert outcome.reason.startswith(f"{path} is of no format that can be read")
    assert not outcome.case.output.exists()
