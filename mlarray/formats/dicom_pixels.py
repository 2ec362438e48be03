"""How do the bytes of a frame become numbers?

Frames that are not compressed are read from their place in the file, only the rows that are asked for. Compressed ones are
decoded by pydicom's decoders, or by GDCM inside SimpleITK for the transfer syntaxes that no installed decoder takes. GDCM is
handed a file of one frame without rescale and with MONOCHROME2, for what it would do with either is not what is wanted: ITK
inverts MONOCHROME1.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from mlarray.errors import FormatError, MissingDependencyError
from mlarray.formats.dicom_fields import uid_name
from mlarray.formats.dicom_file import DEFLATED, Instance, Pixels
from mlarray.formats.image_streams import stated_size
from mlarray.limits import DICOM_FRAME_BYTES
from mlarray.sources.base import NDArray
from mlarray.sources.scaled import scaled_dtype

_FLOATS = {"FloatPixelData": "f4", "DoubleFloatPixelData": "f8"}
# What GDCM 3 decodes: JPEG baseline, extended, lossless (two), JPEG-LS (two), JPEG 2000 (two), RLE.
_GDCM = frozenset(
    f"1.2.840.10008.1.2.{number}" for number in ("4.50", "4.51", "4.57", "4.70", "4.80", "4.81", "4.90", "4.91", "5")
)
# Where pydicom takes another first: CharLS decodes a slice of a CT in 8 ms, libjpeg in 33.
_FASTEST = {"1.2.840.10008.1.2.4.80": "pyjpegls", "1.2.840.10008.1.2.4.81": "pyjpegls"}
_COPY_PIECE = 1 << 20
_EXACT_IN_FLOAT32 = 1 << 24
DEFLATE_LIMIT = 1032  # a deflate stream cannot grow more: 258 bytes from 2 bits (RFC 1951)


Kind: TypeAlias = tuple[np.dtype[Any], int, bool, float, float]


def stored_dtype(pixels: Pixels) -> np.dtype[Any]:
    """Return the type of the numbers in the file, in native byte order.

    Raises
    ------
    FormatError
        For bits per sample that are not those of a number.
    """
    if pixels.keyword in _FLOATS:
        return np.dtype(_FLOATS[pixels.keyword])
    if pixels.allocated == 1:
        return np.dtype(np.uint8)
    if pixels.allocated not in (8, 16, 32, 64):
        raise FormatError(f"{pixels.allocated} bits are allocated per pixel; 1, 8, 16, 32 and 64 can be read.")
    return np.dtype(f"{'i' if pixels.is_signed else 'u'}{pixels.allocated // 8}")


def value_dtype(kinds: Sequence[Kind]) -> np.dtype[Any]:
    """Return the smallest type that holds the values of all frames.

    Parameters
    ----------
    kinds : sequence of (dtype, bits stored, is signed, slope, intercept)
        One per kind of frame. Whole slopes and intercepts give the smallest integer type that holds what the stored bits
        can say: 12 bits with intercept -1024 are int16, 16 bits are int32. Others give float32 where it tells neighbouring
        stored values apart, else float64.
    """
    if all(slope == 1 and intercept == 0 for *_, slope, intercept in kinds) and len({kind[0] for kind in kinds}) == 1:
        return kinds[0][0]
    is_whole = all(float(slope).is_integer() and float(intercept).is_integer() for *_, slope, intercept in kinds)
    if is_whole and all(dtype.kind in "iu" for dtype, *_ in kinds):
        ranges = [_value_range(kind) for kind in kinds]
        low, high = min(least for least, _ in ranges), max(most for _, most in ranges)
        same = [kinds[0][0]] if len({kind[0] for kind in kinds}) == 1 else []
        for candidate in (*same, *map(np.dtype, ("i2", "i4", "i8"))):
            limits = np.iinfo(candidate)
            if limits.min <= low and high <= limits.max:
                return candidate
        return np.dtype(np.float64)
    return np.dtype(np.result_type(*map(_float_dtype, kinds)))


def _float_dtype(kind: Kind) -> np.dtype[Any]:
    """Return the float type that keeps what a kind of frame has, beside others whose slope is not whole."""
    dtype, _, _, slope, intercept = kind
    if dtype.kind in "iu" and float(slope).is_integer() and float(intercept).is_integer():
        return np.dtype(np.float32 if max(map(abs, _value_range(kind))) <= _EXACT_IN_FLOAT32 else np.float64)
    return scaled_dtype(dtype, slope, intercept)


def _value_range(kind: Kind) -> tuple[int, int]:
    """Return the least and the greatest value of a kind of frame with whole slope and intercept."""
    _, stored, is_signed, slope, intercept = kind
    low, high = (-(1 << (stored - 1)), (1 << (stored - 1)) - 1) if is_signed else (0, (1 << stored) - 1)
    ends = (low * int(slope) + int(intercept), high * int(slope) + int(intercept))
    return min(ends), max(ends)


def holds_frames(instance: Instance) -> None:
    """Refuse a file that is too short for its frames, or compressed as nothing here can decode.

    Raises
    ------
    FormatError
        For a file that is cut off, or a transfer syntax that contradicts how the pixels are stored.
    """
    pixels = instance.pixels
    stored_dtype(pixels)
    if pixels.syntax == DEFLATED:
        return
    if pixels.is_native:
        if pixels.length < 0:
            raise FormatError(
                f"{instance.path} states the transfer syntax {pixels.syntax} (not compressed), but its pixels are encapsulated."
            )
        needed = (pixels.frame_bits * pixels.frames + 7) // 8
        there = min(pixels.length, instance.size - pixels.offset)
        if there < needed:
            raise FormatError(
                f"{instance.path} is cut off: its {pixels.frames} frames need {needed} bytes of pixels, "
                f"{max(0, there)} are there.",
                hint="Copy or export it again.",
            )
        return
    if pixels.frame_bits > 8 * DICOM_FRAME_BYTES:
        raise FormatError(
            f"{instance.path} states frames of {pixels.frame_bits // 8} bytes; at most {DICOM_FRAME_BYTES} are decoded.",
            hint=DICOM_FRAME_BYTES.hint,
        )
    if pixels.length >= 0:
        raise FormatError(
            f"{instance.path} states the transfer syntax {pixels.syntax} (compressed), but its pixels are not encapsulated."
        )
    problem = decoder_problem(pixels.syntax)
    if problem:
        raise FormatError(problem, hint="Install it: pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg.")


def decoder_problem(syntax: str) -> str:
    """Tell why a transfer syntax cannot be decoded; empty where it can."""
    if _pydicom_decoder(syntax) is not None or (syntax in _GDCM and _has_simpleitk()):
        return ""
    return f"No decoder for the transfer syntax {syntax} ({uid_name(syntax)}) is installed."


def read_rows(instance: Instance, index: int, rows: slice) -> NDArray:
    """Return rows of a frame that is not compressed, as stored numbers.

    Parameters
    ----------
    instance : Instance
        The file; its pixels are native.
    index : int
        Frame.
    rows : slice
        With bounds within the frame.

    Returns
    -------
    ndarray, shape (rows, columns)
        In native byte order, bits that are not used removed. May be written to.
    """
    pixels = instance.pixels
    width, height = pixels.columns, rows.stop - rows.start
    if pixels.allocated == 1:
        return _bit_rows(instance, index, rows)
    kind = stored_dtype(pixels).newbyteorder("<" if pixels.is_little else ">")
    size = height * width * kind.itemsize
    start = pixels.offset + (index * pixels.rows + rows.start) * width * kind.itemsize
    data = np.empty((height, width), kind)
    with _opened(instance) as file:
        file.seek(start)
        _fill(file, memoryview(data.reshape(-1).view(np.uint8)), instance.path, size)  # type: ignore[arg-type]
    return used_bits(data.astype(kind.newbyteorder("="), copy=False), pixels)


def _opened(instance: Instance) -> BinaryIO:
    """Open a file, unless it is no longer that of which the header was read: its pixels may be elsewhere now."""
    file = instance.path.open("rb")
    status = os.fstat(file.fileno())
    if (status.st_size, status.st_mtime_ns) != (instance.size, instance.mtime_ns):
        file.close()
        raise FormatError(f"{instance.path} was changed after its header was read.", hint="Open the series again.")
    return file


def _fill(file: BinaryIO, buffer: memoryview, path: Path, size: int) -> None:
    done = 0
    while done < size:
        count = file.readinto(buffer[done:])  # type: ignore[attr-defined]
        if not count:
            raise FormatError(f"{path} is cut off: it has become shorter since its header was read.")
        done += count


def _bit_rows(instance: Instance, index: int, rows: slice) -> NDArray:
    """Return rows of a frame of single bits, which follow each other without gaps, the lowest bit first (PS3.5, 8.1.1)."""
    pixels = instance.pixels
    first = (index * pixels.rows + rows.start) * pixels.columns
    last = (index * pixels.rows + rows.stop) * pixels.columns
    with _opened(instance) as file:
        file.seek(pixels.offset + first // 8)
        packed = np.frombuffer(file.read((last + 7) // 8 - first // 8), np.uint8)
    bits = np.unpackbits(packed, bitorder="little")[first % 8 : first % 8 + last - first]
    return bits.reshape(rows.stop - rows.start, pixels.columns)


def used_bits(data: NDArray, pixels: Pixels) -> NDArray:
    """Return numbers without the bits above those stored: overlays may be there, and signs end at the highest bit used."""
    if pixels.keyword in _FLOATS or pixels.allocated == 1:
        return data
    above = pixels.allocated - 1 - pixels.high_bit
    unused = pixels.allocated - pixels.stored
    if unused <= 0 or not 0 <= above <= unused:
        return data
    if unused == above and data.dtype.kind == "u":
        np.bitwise_and(data, data.dtype.type((1 << pixels.stored) - 1), out=data)
        return data
    if above:
        np.left_shift(data, above, out=data)
    np.right_shift(data, unused, out=data)
    return data


def decode(instance: Instance, index: int) -> NDArray:
    """Return a frame that is compressed, as stored numbers, shape (rows, columns).

    Raises
    ------
    FormatError
        When the stream is damaged; the message names the file and the transfer syntax.
    """
    pixels = instance.pixels
    if pixels.syntax == DEFLATED:
        return _inflated(instance, index)
    try:
        decoder = _pydicom_decoder(pixels.syntax)
        with _opened(instance) as file:
            file.seek(pixels.offset)
            _refuse_other_size(file, instance, index)
            file.seek(pixels.offset)
            data = _by_pydicom(decoder, file, pixels, index) if decoder is not None else _by_gdcm(file, pixels, index)
    except (OSError, MemoryError, MissingDependencyError, FormatError):
        raise
    except Exception as error:
        # Decoders fail in ways of their own (struct, runtime, value errors of C libraries), all of them a damaged stream.
        raise FormatError(
            f"{instance.path}: frame {index} cannot be decoded (transfer syntax {pixels.syntax}, "
            f"{uid_name(pixels.syntax)}): {type(error).__name__}.",
            hint="The pixels are damaged; export the series again.",
        ) from None
    if data.shape != (pixels.rows, pixels.columns):
        raise FormatError(
            f"{instance.path}: frame {index} decodes to {data.shape}, the header states {(pixels.rows, pixels.columns)}."
        )
    return used_bits(np.ascontiguousarray(data, stored_dtype(pixels)), pixels)


def _refuse_other_size(file: BinaryIO, instance: Instance, index: int) -> None:
    """Refuse a stream that says it is another image than the header does: decoders make room for what it says."""
    from pydicom.encaps import get_frame

    pixels = instance.pixels
    stated, expected = (
        stated_size(get_frame(file, index, number_of_frames=pixels.frames)),
        (pixels.rows, pixels.columns, 1),
    )
    if stated is not None and stated != expected:
        raise FormatError(
            f"{instance.path}: frame {index} says rows, columns and samples {stated}, the header states {expected}.",
            hint="The pixels are damaged; export the series again.",
        )


def same_pixels(one: Instance, other: Instance) -> bool:
    """Tell whether two files hold the same pixels, stored in the same way."""
    if one.path == other.path:
        return True
    first, second = one.pixels, other.pixels
    if (first.syntax, first.rows, first.columns, first.frames) != (
        second.syntax,
        second.rows,
        second.columns,
        second.frames,
    ):
        return False
    ends = [p.length if p.length >= 0 else i.size - p.offset for i, p in ((one, first), (other, second))]
    if ends[0] != ends[1]:
        return False
    left = ends[0]
    with one.path.open("rb") as a, other.path.open("rb") as b:
        a.seek(first.offset)
        b.seek(second.offset)
        while left > 0:
            piece = min(left, _COPY_PIECE)
            if a.read(piece) != b.read(piece):
                return False
            left -= piece
    return True


def _by_pydicom(decoder: Any, file: BinaryIO, pixels: Pixels, index: int) -> NDArray:
    plugin = _FASTEST.get(pixels.syntax, "")
    data, _ = decoder.as_array(
        file,
        decoding_plugin=plugin if plugin in decoder.available_plugins else "",
        index=index,
        raw=True,
        rows=pixels.rows,
        columns=pixels.columns,
        number_of_frames=pixels.frames,
        samples_per_pixel=1,
        photometric_interpretation="MONOCHROME2",
        pixel_representation=int(pixels.is_signed),
        bits_allocated=pixels.allocated,
        bits_stored=pixels.stored,
        pixel_keyword=pixels.keyword,
    )
    return np.asarray(data)


def _by_gdcm(file: BinaryIO, pixels: Pixels, index: int) -> NDArray:
    import SimpleITK as sitk
    from pydicom.encaps import get_frame

    stream = get_frame(file, index, number_of_frames=pixels.frames)
    handle, name = tempfile.mkstemp(suffix=".dcm")
    os.close(handle)
    try:
        _write_single(Path(name), pixels, stream)
        reader = sitk.ImageFileReader()
        reader.SetImageIO("GDCMImageIO")
        reader.SetFileName(name)
        image = reader.Execute()
        data = sitk.GetArrayFromImage(image)
    finally:
        Path(name).unlink()
    return np.asarray(data).reshape(data.shape[-2:])


def _write_single(path: Path, pixels: Pixels, stream: bytes) -> None:
    """Write a file of one compressed frame and nothing that is not needed to decode it."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.encaps import encapsulate
    from pydicom.uid import UID

    class_uid, instance_uid = "1.2.840.10008.5.1.4.1.1.7", "2.25.1"
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = UID(pixels.syntax)
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = UID(class_uid), UID(instance_uid)
    dataset = Dataset()
    dataset.file_meta = meta
    dataset.SOPClassUID, dataset.SOPInstanceUID = UID(class_uid), UID(instance_uid)
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.Rows, dataset.Columns = pixels.rows, pixels.columns
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = pixels.allocated, pixels.stored, pixels.high_bit
    dataset.PixelRepresentation = int(pixels.is_signed)
    dataset.PixelData = encapsulate([stream])
    dataset["PixelData"].VR = "OB"
    dataset.save_as(path, enforce_file_format=True)


def _inflated(instance: Instance, index: int) -> NDArray:
    """Return a frame of a file that is deflated as a whole."""
    import pydicom

    pixels = instance.pixels
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = pydicom.dcmread(instance.path, specific_tags=[pixels.keyword])[pixels.keyword].value
        kind = stored_dtype(pixels).newbyteorder("<")
        count = pixels.rows * pixels.columns
        data = np.frombuffer(value, kind, count, index * count * kind.itemsize).reshape(pixels.rows, pixels.columns)
    except OSError:
        raise
    except Exception as error:
        # zlib, struct and key errors alike: the deflated part is damaged or too short.
        raise FormatError(f"{instance.path}: the deflated pixels cannot be read ({type(error).__name__}).") from None
    return used_bits(data.astype(kind.newbyteorder("=")), pixels)


def _pydicom_decoder(syntax: str) -> Any | None:
    from pydicom.config import IGNORE
    from pydicom.pixels import get_decoder
    from pydicom.uid import UID

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is no UID
            decoder = get_decoder(UID(syntax, validation_mode=IGNORE))
    except RuntimeError:  # there is no decoder of that name
        return None
    return decoder if decoder.is_available else None


def _has_simpleitk() -> bool:
    from importlib.util import find_spec

    return find_spec("SimpleITK") is not None
