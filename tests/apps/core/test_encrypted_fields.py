"""Values that must be read again rest encrypted, and are plain only in memory."""

import pytest
from django.db import connection

from apps.core.secrets import SecretUnreadable
from apps.workloads.models import Task
from tests.factories import make_task

SECRET = "hf_" + "t" * 30


@pytest.mark.req("OPS-08")
@pytest.mark.django_db
def test_no_column_of_a_task_holds_a_secret_of_its_environment_or_pull_credentials() -> None:
    task = make_task(env={"HF_TOKEN": SECRET}, pull_credentials=SECRET)
    again = Task.objects.get(pk=task.pk)
    assert again.env == {"HF_TOKEN": SECRET} and again.pull_credentials == SECRET
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM workloads_task")
        assert SECRET not in str(cursor.fetchall())


@pytest.mark.req("OPS-08")
@pytest.mark.django_db
def test_without_the_key_nothing_is_read_as_something_else(settings) -> None:
    task = make_task(env={"HF_TOKEN": SECRET})
    settings.ENCRYPTION_KEYS = ["QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="]
    with pytest.raises(SecretUnreadable):
        Task.objects.get(pk=task.pk)
