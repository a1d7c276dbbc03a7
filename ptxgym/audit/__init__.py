"""The audit: a kernel against the contract that the knowledge packs' self-audit asks for, without judging numbers."""

from ptxgym.audit.checklist import audit
from ptxgym.audit.model import Audit, Check, Outcome

__all__ = ["Audit", "Check", "Outcome", "audit"]
