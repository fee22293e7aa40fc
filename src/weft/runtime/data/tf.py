"""Datasets for TensorFlow: this rank's epoch as a tf.data.Dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.runtime.data.reader import Dataset, Sample


def dataset(data: Dataset, signature: Any = None) -> Any:
    """Pairs of name and bytes, or what `decode` gives and `signature` describes. Each pass is the same epoch from
    the same position: `data.epoch(k).tf_dataset()` is another."""
    import tensorflow as tf  # type: ignore[import-not-found, import-untyped, unused-ignore]

    if signature is None:
        signature = (tf.TensorSpec((), tf.string), tf.TensorSpec((), tf.string))

    places = data.places()

    def samples() -> Iterator[Any]:
        for sample in data.at(places):
            yield tuple(sample) if isinstance(sample, Sample) else sample

    made = tf.data.Dataset.from_generator(samples, output_signature=signature)
    return made.apply(tf.data.experimental.assert_cardinality(len(places)))
