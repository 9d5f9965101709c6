"""Certificates: how far can these probabilities be from the truth, and is that still so today?

``hcal.certify`` proves what n fresh rows prove; ``hcal.Monitor`` checks a stream. The theory is in
``docs/certificates.md``.
"""

from __future__ import annotations

from hcal.certificates.certification import certify
from hcal.certificates.classes import ClassCertificates, class_tolerance
from hcal.certificates.drift import Drift, drift
from hcal.certificates.event import EventCertificate, Refutation, certify_event
from hcal.certificates.monitor import Monitor
from hcal.certificates.result import TOLERANCE, Certificate, OutOfFoldCertificate
from hcal.certificates.state import Alarm
from hcal.certificates.streaming import CertificateStream
from hcal.leakage import RowsOfTheFitError

__all__ = [
    "TOLERANCE",
    "Alarm",
    "Certificate",
    "CertificateStream",
    "ClassCertificates",
    "Drift",
    "EventCertificate",
    "Monitor",
    "OutOfFoldCertificate",
    "Refutation",
    "RowsOfTheFitError",
    "certify",
    "certify_event",
    "class_tolerance",
    "drift",
]
