import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0002_initial")]

    operations = [
        migrations.CreateModel(
            name="NodeAlert",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("code", models.CharField(max_length=50)),
                ("params", models.JSONField(default=dict)),
                ("first_at", models.DateTimeField()),
                ("last_at", models.DateTimeField()),
                ("times", models.PositiveIntegerField(default=1)),
                (
                    "node",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="alerts", to="fleet.node"
                    ),
                ),
            ],
            options={"ordering": ["-last_at"]},
        ),
        migrations.AddConstraint(
            model_name="nodealert",
            constraint=models.UniqueConstraint(fields=("node", "code"), name="one_alert_a_code"),
        ),
    ]
