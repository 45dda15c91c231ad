"""Every metric that is exported: its name, as Prometheus writes them, and what it says.

`job` is the run and the job in it, `rank` the rank's number. Units are seconds, bytes and shares. Counters
are exported with `_total` behind their name, and only ever grow while the exporter runs.
"""

from __future__ import annotations

OF_STEP = {
    "stanchion_loss": ("loss", "Training loss of the last step, nats per token, mean over all ranks"),
    "stanchion_gradient_norm": (
        "gradient_norm",
        "Norm of the last step's gradient over all ranks, unclipped",
    ),
    "stanchion_tokens_per_second": ("tokens_per_second", "Of the whole job in the last step, by this rank"),
    "stanchion_mfu_ratio": ("mfu", "Model FLOPs utilisation of this rank's device in the last step, 0 to 1"),
    "stanchion_memory_bytes": ("memory_bytes", "Memory of the rank's process"),
    "stanchion_device_memory_bytes": ("device_memory_bytes", "Most that torch ever held on its GPU"),
}
"""Gauges by rank: the field of the step event, what it says."""

STEP = ("stanchion_step", "Step that the rank is in; falls when a restarted job repeats some")
STEPS = ("stanchion_steps", "Steps done by the rank, repeated ones included")
PROGRESS = ("stanchion_last_progress_timestamp_seconds", "Unix time at which the rank last entered a phase")
PHASES = ("stanchion_phase_seconds", "Seconds of the rank by phase, waits in collectives included")
WAITS = ("stanchion_communication_seconds", "Part of those in which the rank waited inside collectives")

RUNNING = ("stanchion_job_running", "1 while an attempt runs")
FAILED = ("stanchion_job_failed", "1 when the last attempt was ended by a fault and none has begun since")
RANKS = ("stanchion_ranks", "Ranks that have beaten in this attempt")
EXPECTED = ("stanchion_expected_ranks", "Ranks that the supervisor has launched in this attempt")
INCIDENTS = ("stanchion_incidents", "What the supervisor has found, by kind")
KINDS = (
    *("stall", "collective_mismatch", "crash", "corruption", "replica_divergence", "bad_gradient"),
    *("loss_spike", "straggler", "straggler_over", "data_stall", "preemption", "capacity"),
)
"""Told as 0 before the first one: a counter that begins at 1 has not increased, as Prometheus sees it."""
RESTARTS = ("stanchion_restarts", "Attempts begun after one that a fault had ended")
SKIPPED = ("stanchion_skipped_steps", "Steps whose gradient was kept from the optimizer")
GOODPUT = ("stanchion_goodput_seconds", "Wall time of the job by cause; all causes sum to it")
HELD_OUT = ("stanchion_held_out_loss", "Last loss on held-out tokens, nats per token")
SAVED_STEP = ("stanchion_checkpoint_step", "Step of the last checkpoint that was published")
SAVED_AT = ("stanchion_checkpoint_timestamp_seconds", "Unix time at which it was published")
STALL = ("stanchion_checkpoint_stall_seconds", "Seconds that training waited for it")
SAVE = ("stanchion_checkpoint_save_seconds", "Seconds from its beginning until it was published")
FAILED_SAVES = ("stanchion_failed_checkpoints", "Saves that came to nothing")

JOBS = ("stanchion_exporter_jobs", "Jobs that are shown")
READING = ("stanchion_exporter_read_seconds", "Seconds that this scrape took to read all job folders")
ERRORS = ("stanchion_exporter_unreadable_jobs", "Jobs that this scrape could not read; the log says why")
