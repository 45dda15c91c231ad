"""What a spike of the loss means for the next attempt: checkpoints it may not use, batches that it skips.

A checkpoint that was written when the loss was up, or just before, holds weights that the spike has moved; it
is set aside for good. Batches are skipped by every later attempt; checkpoints carry them on from there.
"""

from __future__ import annotations

from components.checkpoints import names, state
from components.data.left_out import Ranges, joined
from components.records import Verdict
from components.reliability.finding import Attempt, Finding

GATE = "no_loss_spike"


def prepare(checkpoints: str, attempt: Attempt) -> Ranges:
    """Set aside what the attempt before has written since its spike; what no attempt trains on from now on.

    Only the last finding counts for checkpoints: attempts since an earlier one have written good ones there.
    """
    spikes = [finding for finding in attempt.findings if _rewinds(finding)]
    if spikes and spikes[-1] is attempt.findings[-1]:
        _set_aside(checkpoints, spikes[-1])
    skipped = (finding.figures["leave_out"] for finding in spikes)
    return joined((), [(int(first), int(last)) for first, last in skipped])


def _rewinds(finding: Finding) -> bool:
    return finding.kind == "loss_spike" and "leave_out" in finding.figures


def _set_aside(checkpoints: str, spike: Finding) -> None:
    bound = int(spike.figures["resume_before"])
    verdict = Verdict(gate=GATE, passed=False, reason=spike.sentence, figures={"resume_before": bound})
    for url in names.newest_first(checkpoints):
        known = state.read(url)
        usable = known is not None and known.state in ("committed", "validated")
        if usable and names.step_and_attempt(names.name_of(url))[0] >= bound:
            state.quarantine(url, f"rewound to before step {bound}: {spike.sentence}", [verdict])
