from typing import Any

from django.db import migrations, models


def keep_what_waits(apps: Any, schema_editor: Any) -> None:
    """An empty next_at said that nothing more is tried."""
    apps.get_model("alerts", "Delivery").objects.filter(next_at=None).update(waiting=False)


class Migration(migrations.Migration):
    dependencies = [
        ("alerts", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="delivery",
            name="waiting",
            field=models.BooleanField(default=True),
        ),
        migrations.RunPython(keep_what_waits, migrations.RunPython.noop),
        migrations.RemoveIndex(
            model_name="delivery",
            name="due_deliveries",
        ),
        migrations.RemoveField(
            model_name="delivery",
            name="next_at",
        ),
        migrations.AddField(
            model_name="webhook",
            name="failures_in_a_row",
            field=models.PositiveIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="webhook",
            name="next_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="webhook",
            name="tried_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddIndex(
            model_name="delivery",
            index=models.Index(
                condition=models.Q(("waiting", True)),
                fields=["webhook", "created_at"],
                name="waiting_deliveries",
            ),
        ),
    ]
