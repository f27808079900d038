import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """A loan belongs to the placement that borrows; those made by hand placed nothing, and end."""

    dependencies = [
        ("workloads", "0007_lending_and_kept_room"),
    ]

    operations = [
        migrations.DeleteModel(name="Loan"),
        migrations.CreateModel(
            name="Loan",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("since", models.DateTimeField()),
                ("until", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "borrower",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="borrowed",
                        to="workloads.claim",
                    ),
                ),
                (
                    "card",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="loans",
                        to="workloads.cardclaim",
                    ),
                ),
            ],
            options={
                "ordering": ["-since", "-pk"],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("ended_at__isnull", True)),
                        fields=("card",),
                        name="one_loan_a_card_share",
                    )
                ],
            },
        ),
    ]
