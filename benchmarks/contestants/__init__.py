"""Contestants: one module for each package, which does a work in that package's environment; `base.py` says how it is asked and answers."""
