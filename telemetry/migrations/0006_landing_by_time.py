"""What landed since the last compaction is found by when it landed.

Every chart ends with it. Found by layout and reading time, it meant looking at every row of the
partition: at a thousand batches a second half a million.
"""

from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0005_tokens_of_people")]

    operations = [
        migrations.RunSQL(
            "CREATE INDEX telemetry_landing_by_time ON telemetry_landing (landed_at)",
            "DROP INDEX telemetry_landing_by_time",
        )
    ]
