"""The default calibrator; see docs/default.md."""

from hcal.calibrators.pool.calibrator import PooledCalibrator as PooledCalibrator
