"""Certificates: how far can these probabilities be from the truth, and is that still so today?

``hcal.certify`` proves what n fresh rows prove; ``hcal.Monitor`` watches a stream. The theory is in
``docs/certificates.md``.
"""

from __future__ import annotations

from hcal.certificates.classes import ClassCertificates, class_tolerance
from hcal.certificates.event import EventCertificate, Refutation, certify_event
from hcal.certificates.groups import GroupCertificate
from hcal.certificates.monitor import Alarm, Monitor
from hcal.certificates.result import Certificate
from hcal.certificates.run import TOLERANCE, RowsOfTheFitError, certify, refuse_scores_of_the_fit
from hcal.certificates.streaming import CertificateStream

__all__ = [
    "TOLERANCE",
    "Alarm",
    "Certificate",
    "CertificateStream",
    "ClassCertificates",
    "EventCertificate",
    "GroupCertificate",
    "Monitor",
    "Refutation",
    "RowsOfTheFitError",
    "certify",
    "certify_event",
    "class_tolerance",
    "refuse_scores_of_the_fit",
]
