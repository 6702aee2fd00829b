"""The public place of a journal's rerun, which is `testing.journal_rerun`, so that tests need nothing of this folder."""

from ..testing.journal_rerun import RerunMismatch as RerunMismatch
from ..testing.journal_rerun import RerunResult as RerunResult
from ..testing.journal_rerun import rerun as rerun
from ..testing.journal_rerun import rerun_to as rerun_to
