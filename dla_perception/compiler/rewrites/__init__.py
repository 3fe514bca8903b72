"""Rewrites of a network into what a DLA takes, one a file.

Each module in :data:`REWRITES` has ``NAME`` and ``SUMMARY``, and ``apply(graph, target)``, which
rewrites wherever it fits and returns the names of the nodes it touched. Its docstring proves that
nothing changes, or says how much rounding may. What is only an approximation is not in the list:
it is made on request (:mod:`~dla_perception.compiler.rewrites.activation_replacement`).
"""

from __future__ import annotations

from types import ModuleType

from dla_perception.compiler.rewrites import (
    batch_norm,
    division,
    exclusive_averages,
    global_pools,
    grouped_convolutions,
    no_ops,
    padding,
    regrouping,
    renames,
    resize,
    stacked_pools,
    symmetric_padding,
    transposed_convolutions,
)

REWRITES: tuple[ModuleType, ...] = (
    no_ops,
    batch_norm,
    division,
    regrouping,
    padding,
    global_pools,
    symmetric_padding,
    stacked_pools,
    exclusive_averages,
    resize,
    renames,
    transposed_convolutions,
    grouped_convolutions,
)
"""In the order in which they are tried, again and again until none finds anything."""
