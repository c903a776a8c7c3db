"""Images in: named data sets, folders and files of the user's own, transforms and the loader."""

from __future__ import annotations

from purecaps.data import transforms
from purecaps.data.arrays import load_arrays
from purecaps.data.catalog import Status, fetch, list_datasets, load, location, status, verify
from purecaps.data.digit import load_digit
from purecaps.data.folder import load_folder
from purecaps.data.image import load_image
from purecaps.data.loader import DeviceLoader
from purecaps.data.types import Dataset, Split

__all__ = [
    "Dataset",
    "DeviceLoader",
    "Split",
    "Status",
    "fetch",
    "list_datasets",
    "load",
    "load_arrays",
    "load_digit",
    "load_folder",
    "load_image",
    "location",
    "status",
    "transforms",
    "verify",
]
