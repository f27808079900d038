"""Databases from before the migrations were squashed: all of them applied goes on, some of them is refused
by name (OPS-03)."""

import pytest
from django.core.management import CommandError, call_command
from django.db.migrations.recorder import MigrationRecorder

from apps.ops import first_start
from apps.ops.preflight import NotReady
from apps.tenants.models import Tenant

pytestmark = [pytest.mark.django_db, pytest.mark.req("OPS-03")]

Applied = MigrationRecorder.Migration


def test_whoever_has_all_old_ones_has_the_squashed_ones(tenant: Tenant) -> None:
    assert Applied.objects.filter(name="0001_squashed").delete()[0] == 7
    call_command("migrate", check_unapplied=True, verbosity=0)  # ends the process where one is to be applied
    first_start.migrate()
    assert Applied.objects.filter(name="0001_squashed").count() == 7
    assert Tenant.objects.get() == tenant


def test_whoever_has_some_is_refused_by_name(tenant: Tenant) -> None:
    Applied.objects.filter(name="0001_squashed").delete()
    Applied.objects.filter(app="fleet", name__in=["0008_in_container", "0009_fewer_indexes"]).delete()
    with pytest.raises(CommandError, match=r"lacks fleet\.0008_in_container, fleet\.0009_f"):
        call_command("migrate", verbosity=0)
    with pytest.raises(NotReady, match=r"before fleet\.0001_squashed"):
        first_start.migrate()
    assert not Applied.objects.filter(name="0001_squashed").exists()
    assert Tenant.objects.get() == tenant
