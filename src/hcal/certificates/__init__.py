"""Certificates: how far can these probabilities be from the truth, and does that still hold today?

``hcal.certify`` computes confidence statements from n fresh rows; ``hcal.Monitor`` tests a stream of rows as they
arrive. ``docs/certificates.md`` explains the theory.
"""

from __future__ import annotations

from hcal.certificates.certification import certify
from hcal.certificates.drift import Drift, drift
from hcal.certificates.event import EventCertificate, certify_event
from hcal.certificates.monitor import Alarm, Monitor
from hcal.certificates.result import Certificate, ClassCertificates, OutOfFoldCertificate
from hcal.certificates.stream import CertificateStream
from hcal.leakage import RowsOfTheFitError

__all__ = [
    "Alarm",
    "Certificate",
    "CertificateStream",
    "ClassCertificates",
    "Drift",
    "EventCertificate",
    "Monitor",
    "OutOfFoldCertificate",
    "RowsOfTheFitError",
    "certify",
    "certify_event",
    "drift",
]
