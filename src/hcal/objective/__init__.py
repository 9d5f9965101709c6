"""The h-calibration objective: windows of sorted events, k-means weights and the loss.

``definition`` is the oracle, ``engines`` the value and gradient on arrays, ``loss`` the ``torch.nn.Module`` and
``published`` the published code's variant. Importing this package imports neither torch nor numba.
"""
