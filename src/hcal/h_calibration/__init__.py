"""The h-calibration objective: windows of sorted events, k-means weights and the loss.

``definition`` is the reference implementation, ``engines`` computes value and gradient on arrays, ``loss`` is the
``torch.nn.Module`` and ``published`` the variant of the published code. Importing this package imports neither torch
nor numba.
"""
