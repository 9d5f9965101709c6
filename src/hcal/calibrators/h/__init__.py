"""h-calibration: the default, a pool of candidates judged out of fold, and the paper's protocol."""

from hcal.calibrators.h.calibrator import HCalibrator

__all__ = ["HCalibrator"]
