"""Stores: bytes on disk, by index. Adding one is adding a file; `base.py` is the specification."""
