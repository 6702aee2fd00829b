"""The public place of a journal's rerun, which is `testing.journal_rerun`, so that tests need nothing of this folder."""

from ..testing.journal_rerun import RerunMismatch, RerunResult, rerun, rerun_to

__all__ = ["RerunMismatch", "RerunResult", "rerun", "rerun_to"]
