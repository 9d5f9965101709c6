"""How hcal runs: compiled kernels and their cache, threads, progress. It knows nothing of calibration."""
