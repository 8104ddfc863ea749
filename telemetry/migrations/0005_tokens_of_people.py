"""Whose token it is in the end, and which one it takes the place of."""

import django.db.models.deletion
from django.db import migrations, models

OWNERS = "UPDATE telemetry_apitoken SET owner = created_by WHERE owner = ''"


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0004_columns")]

    operations = [
        migrations.AddField(
            model_name="apitoken",
            name="owner",
            field=models.CharField(
                blank=True, default="", help_text="The person behind it.", max_length=150
            ),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="apitoken",
            name="replaces",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="replaced_by",
                to="telemetry.apitoken",
            ),
        ),
        migrations.RunSQL(OWNERS, migrations.RunSQL.noop),
    ]
