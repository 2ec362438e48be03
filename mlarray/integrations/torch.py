"""How does a training loop in torch get its batches? Through torch's own ``DataLoader``, whose workers fill in whole batches.

The dataset is one of batches, not of patches (``DataLoader(batch_size=None)``): a stream knows which patches make a batch. Its
indices are ``(epoch, batch)``, so that workers that outlive an epoch learn of the next one from what they are asked.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, get_worker_info

from mlarray.streaming.arguments import flag, instance, start_method, whole
from mlarray.streaming.batch import Batch, Sample
from mlarray.streaming.handover import HELD, Parcel, Place, Ring, packed, ring_for, unpacked
from mlarray.streaming.loader import BatchStream, checked_stream
from mlarray.transforms.augmentations.drawing import key_of

if TYPE_CHECKING:
    from mlarray.sources.base import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class TorchBatch:
    """A batch whose arrays are tensors.

    Parameters
    ----------
    tensors : mapping of str to Tensor, shape (B, C, spatial...)
        One per group.
    samples : tuple of Sample
        Where each patch was cut. Their arrays are views of the tensors on the CPU.
    place : Place, optional
        In a worker, the shared memory that the tensors lie in.
    """

    tensors: Mapping[str, torch.Tensor]
    samples: tuple[Sample, ...]
    place: Place | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    def __getitem__(self, group: str) -> torch.Tensor:
        return self.tensors[group]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> TorchBatch:
        """Return the batch with its tensors on a device; arrays of the samples stay where they are."""
        moved = {group: tensor.to(device, non_blocking=non_blocking) for group, tensor in self.tensors.items()}
        return TorchBatch(moved, self.samples)

    def pin_memory(self) -> TorchBatch:
        """Return the batch in page-locked memory, from which copies to a GPU run beside computation."""
        return _with_views({group: tensor.pin_memory() for group, tensor in self.tensors.items()}, self.samples)

    def __reduce__(self) -> tuple[object, ...]:
        bare = tuple(replace(sample, arrays={}) for sample in self.samples)  # each view would be sent as a copy
        return (_with_views, (self.tensors, bare))


def _handed_over(batch: TorchBatch) -> tuple[Any, ...]:
    """Return how a batch goes to another process: from a worker of :func:`torch_loader` in the place that it lies in."""
    if batch.place is None:
        return batch.__reduce__()
    own = {group: tensor.numpy() for group, tensor in batch.tensors.items()}
    return (_received, (packed(Batch(own, batch.samples), batch.place),))


def _received(parcel: Parcel) -> TorchBatch:
    return as_tensors(unpacked(parcel))


ForkingPickler.register(TorchBatch, _handed_over)


def as_tensors(batch: Batch) -> TorchBatch:
    """Return a batch as tensors that share its memory; what is read-only or laid out backwards is copied.

    Examples
    --------
    >>> import numpy as np
    >>> from mlarray import Region
    >>> from mlarray.streaming.batch import Batch, Sample
    >>> batch = Batch.of([Sample({"CT": np.ones((1, 4, 4))}, "case_1", 0, Region((0, 0), (4, 4)))])
    >>> as_tensors(batch)["CT"].shape
    torch.Size([1, 1, 4, 4])
    """
    instance("batch", batch, Batch, "A stream gives them.")
    return _with_views({group: tensor_of(array) for group, array in batch.arrays.items()}, batch.samples)


def tensor_of(array: NDArray) -> torch.Tensor:
    """Return an array as a tensor that shares its memory; copied where it is read-only, backwards or of the other byte order."""
    if not array.flags.writeable or not array.dtype.isnative or min(array.strides, default=0) < 0:
        array = array.astype(array.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(array)


class TorchPatches:
    """The batches of a stream as a map-style dataset, for ``DataLoader(batch_size=None)``.

    An index is the number of a batch of the stream's current epoch, or ``(epoch, number)``. In a worker process, the random
    numbers of Python, numpy and torch are seeded for each batch by the loader's seed, epoch and number, so that a transform of
    your own that uses them gives the same whichever worker runs it; those of this package do not use them.

    Parameters
    ----------
    stream : BatchStream
        Such as a :class:`~mlarray.streaming.PatchStream`.
    rings : sequence of Ring, optional
        Memory for the batches of each worker. Default: torch's, new for each batch.
    """

    def __init__(self, stream: BatchStream, rings: Sequence[Ring | None] = ()) -> None:
        self.stream = checked_stream(stream)
        self._rings = tuple(rings)

    def __len__(self) -> int:
        return len(self.stream)

    def __getitem__(self, index: int | tuple[int, int]) -> TorchBatch:
        epoch, number = index if isinstance(index, tuple) and len(index) == 2 else (self.stream.epoch, index)
        epoch, number = whole("An epoch", epoch, 0), whole("The number of a batch", number)
        if not 0 <= number < len(self.stream):
            raise IndexError(f"Batch {number} of {len(self.stream)}.")
        if epoch != self.stream.epoch:
            self.stream.set_epoch(epoch)
        _seed_worker(epoch, number)
        place = self._free_place()
        if place is None:
            return as_tensors(self.stream.batch(number))
        return replace(as_tensors(self.stream.batch(number, stack=place.stack)), place=place)

    def _free_place(self) -> Place | None:
        """Return a place for a batch of this worker; None in the loader's process, and where there is none."""
        worker = get_worker_info()
        ring = self._rings[worker.id] if worker is not None and worker.id < len(self._rings) else None
        return ring.take() if ring is not None and ring.own() else None


class EpochBatches:
    """Which batches a ``DataLoader`` asks of :class:`TorchPatches`: those of the stream's current epoch, from its first on."""

    def __init__(self, stream: BatchStream) -> None:
        self.stream = checked_stream(stream)

    def __len__(self) -> int:
        return len(self.stream) - self.stream.first

    def __iter__(self) -> Iterator[tuple[int, int]]:
        epoch = self.stream.epoch
        return ((epoch, number) for number in range(self.stream.first, len(self.stream)))


def torch_loader(
    stream: BatchStream, *, workers: int, pin_memory: bool = False, context: str | None = None, prefetch: int = 2
) -> DataLoader[TorchBatch]:
    """Return a ``DataLoader`` of the stream's batches as :class:`TorchBatch`, in the order of the stream.

    Workers stay between epochs. ``stream.set_epoch(n)`` before an iteration reaches them. Batches are the same for any number of
    workers and every context.

    Parameters
    ----------
    stream : BatchStream
        Such as a :class:`~mlarray.streaming.PatchStream`.
    workers : int
        Processes; 0: batches are computed in this process, when they are asked for.
    pin_memory : bool
        Whether tensors come in page-locked memory; without an accelerator they do not.
    context : {"fork", "spawn", "forkserver"}, optional
        How workers start. Default: torch's.
    prefetch : int
        Batches that each worker computes ahead.

    Raises
    ------
    UsageError
        An argument of another kind.
    """
    workers, prefetch = whole("workers", workers, 0), whole("prefetch", prefetch, 1)
    context = start_method(context)
    flag("pin_memory", pin_memory)
    room = checked_stream(stream).batch_bytes
    rings = [ring_for(prefetch + HELD, room) for _ in range(workers)]
    ahead: dict[str, Any] = {}
    if workers:
        ahead = {"prefetch_factor": prefetch, "persistent_workers": True, "multiprocessing_context": context}
    return DataLoader(
        TorchPatches(stream, rings),
        batch_size=None,
        sampler=EpochBatches(stream),
        num_workers=workers,
        pin_memory=pin_memory and torch.cuda.is_available(),
        **ahead,
    )


def _with_views(tensors: Mapping[str, torch.Tensor], samples: tuple[Sample, ...]) -> TorchBatch:
    own = Batch({group: tensor.numpy() for group, tensor in tensors.items()}, samples)
    return TorchBatch(tensors, own.samples)


def _seed_worker(epoch: int, number: int) -> None:
    worker = get_worker_info()
    if worker is None:
        return
    key = key_of("batch", worker.seed - worker.id, epoch, number)
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)  # noqa: NPY002 the state that code of others uses
    # Seeding every kind of device takes a tenth of a millisecond; a worker that has not begun to use one has the CPU's alone.
    (torch.manual_seed if torch.cuda.is_initialized() else torch.default_generator.manual_seed)(key)
