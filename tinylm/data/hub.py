"""Data sets from the Hugging Face Hub, with one clear line when it can't be reached."""

from __future__ import annotations

from typing import Any


def load_hub_dataset(name: str, instead: str) -> Any:
    """The splits of data set `name`, by name, at least "train".

    Raises ValueError in one line that says what to do `instead` when the Hub can't be reached or has no such set.
    """
    import datasets

    datasets.utils.logging.set_verbosity_error()
    try:
        splits = datasets.load_dataset(name)
    except Exception as error:  # network, hub and parsing errors come from several libraries
        reason = type(error).__name__
        raise ValueError(
            f"the data set {name} could not be had from the Hugging Face Hub ({reason}); {instead}"
        ) from None
    if "train" not in splits:
        raise ValueError(f"the data set {name} has no train split, only {', '.join(splits)}")
    return splits
