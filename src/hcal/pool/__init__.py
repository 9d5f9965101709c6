"""The default calibrator; see docs/default.md."""

from hcal.pool.calibrator import PooledCalibrator as PooledCalibrator
