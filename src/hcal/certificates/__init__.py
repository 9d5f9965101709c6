"""Certificates: how far can these probabilities be from the truth, and is that still so today?

``hcal.certify`` proves what n fresh rows prove; ``hcal.Monitor`` checks a stream. The theory is in
``docs/certificates.md``.
"""

from __future__ import annotations

from hcal.certificates.certification import CertificateStream, certify
from hcal.certificates.drift import Drift, drift
from hcal.certificates.event import EventCertificate, certify_event
from hcal.certificates.monitor import Alarm, Monitor
from hcal.certificates.result import Certificate, ClassCertificates, OutOfFoldCertificate
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
