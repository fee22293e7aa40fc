"""Datasets for torch: by number, as a stream over workers, and a loader that can be resumed exactly.

A DataLoader with workers draws samples long before the training gets them. What counts for a resume is what the
training has got, so `Loader` counts there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch.utils.data as torch_data  # type: ignore[import-not-found, unused-ignore]

if TYPE_CHECKING:
    from weft.runtime.data.reader import Dataset

DRAWN = 16
"""So many numbers are drawn at a time: no more parts than are asked for ahead."""


class Items(torch_data.Dataset):  # type: ignore[misc, unused-ignore]
    """All samples by number."""

    def __init__(self, data: Dataset):
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, number: int) -> Any:
        return self._data[number]

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        """A batch at once, as a DataLoader asks for it."""
        return self._data.take(numbers)


class Sampler(torch_data.Sampler):  # type: ignore[misc, unused-ignore]
    """This rank's numbers of an epoch, in its order. `took(n)` says what the training got of them."""

    def __init__(self, data: Dataset):
        self._data = data
        self._drawn = 0
        self._taken = 0

    def __len__(self) -> int:
        return self._data.left - self._taken

    def __iter__(self) -> Iterator[int]:
        """From what was taken to the end of the epoch; drawing alone counts for nothing."""
        self.begin()
        order, places = self._data.order(), self._data.places()
        look = self._data.coming(places)
        for first in range(0, len(places), DRAWN):
            look.move(first)
            for number in order.take(places[first : first + DRAWN]):
                self._drawn += 1
                yield number

    def took(self, samples: int) -> None:
        """The training has got so many more samples of the epoch."""
        self._taken += samples

    def set_epoch(self, epoch: int) -> None:
        """To the beginning of an epoch, unless it is in the middle of that one."""
        if epoch != self._data.current_epoch:
            self._data.restore(self._data.epoch(epoch).state())
            self._drawn = self._taken = 0

    def finish(self) -> None:
        """The epoch is over: what follows is the next."""
        self._data.restore(self._data.epoch(self._data.current_epoch + 1).state())
        self._drawn = self._taken = 0

    def state_dict(self) -> dict[str, Any]:
        if self._drawn and not self._taken:
            raise RuntimeError(
                f"{self._drawn} samples were drawn and none reported as taken: call took(len(batch)) for every batch "
                "that the training got, or use weft's torch_loader, which does"
            )
        return self.reached()

    def reached(self) -> dict[str, Any]:
        """The state as it was reported, whatever was drawn."""
        return self._data.state(self._taken)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._data.restore(state)
        self._drawn = self._taken = 0

    def begin(self) -> None:
        """What was taken becomes the position, from which drawing begins anew."""
        self._data.begin(self._taken)
        self._drawn = self._taken = 0


class Loader:
    """A DataLoader over this rank's samples. Every `for` goes on to the end of the epoch and then stands at the next;
    `state_dict()` is exact, however many workers have drawn ahead."""

    def __init__(self, data: Dataset, batch_size: int = 1, **options: Any):
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: must be 1 or more")
        for taken in ("sampler", "batch_sampler", "shuffle", "drop_last"):
            if taken in options:
                raise ValueError(f"{taken}: the order comes from weft.data(..., shuffle=, seed=, shard=)")
        self.sampler = Sampler(data)
        self._batch = batch_size
        self._loader = torch_data.DataLoader(
            Items(data), batch_size=batch_size, sampler=self.sampler, **options
        )

    def __len__(self) -> int:
        """Batches that are left of the epoch."""
        return (len(self.sampler) + self._batch - 1) // self._batch

    def __iter__(self) -> Iterator[Any]:
        self.sampler.begin()
        left = len(self.sampler)
        for batch in self._loader:
            self.sampler.took(min(self._batch, left))
            left -= self._batch
            yield batch
        self.sampler.finish()

    def state_dict(self) -> dict[str, Any]:
        return self.sampler.reached()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sampler.load_state_dict(state)


class Stream(torch_data.IterableDataset):  # type: ignore[misc, unused-ignore]
    """This rank's samples one after the other. Of a DataLoader's workers each gives every so-many-th batch, so with
    the same `batch_size` the loader gives them in the order of the epoch."""

    def __init__(self, data: Dataset, batch_size: int = 1):
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: must be 1 or more")
        self._data = data
        self._batch = batch_size

    def set_epoch(self, epoch: int) -> None:
        self._data.restore(self._data.epoch(epoch).state())

    def __iter__(self) -> Iterator[Any]:
        worker = torch_data.get_worker_info()
        mine, workers = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        places = self._data.places()
        if workers == 1:
            yield from self._data.at(places)
            return
        look = self._data.coming(places)
        for first in range(mine * self._batch, len(places), workers * self._batch):
            look.move(first)
            yield from self._data.at(places[first : first + self._batch])
