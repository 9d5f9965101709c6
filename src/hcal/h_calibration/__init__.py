"""The h-calibration objective: windows of sorted events, k-means weights and the loss.

``definition`` is the reference implementation, ``engines`` computes value and gradient on arrays, and ``loss`` is
the ``torch.nn.Module``. ``calibrator`` trains the maps of ``trainable_maps`` on it. Importing this package imports
neither torch nor numba.
"""
