"""Log chunks: the text rests in Django's storage, rows hold where each piece begins and ends."""

from django.db import models

from apps.workloads.models import Task


class LogChunk(models.Model):
    """Bytes [start, end) of the log of one attempt (UTF-8), in one stored file."""

    task = models.ForeignKey(Task, on_delete=models.CASCADE, related_name="log_chunks")
    attempt = models.PositiveIntegerField()
    start = models.PositiveBigIntegerField()
    end = models.PositiveBigIntegerField()
    file = models.CharField(max_length=300)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["task", "attempt", "start"]
        constraints = [models.UniqueConstraint(fields=["task", "attempt", "start"], name="one_chunk_a_start")]

    def __str__(self) -> str:
        return f"{self.task}/{self.attempt} {self.start}-{self.end}"
