"""Creates a table, touches the file `$MIDDLE`, waits until there is the file `$GO`, and creates another table."""

import os
from pathlib import Path

from django.db import migrations, models

from tests.waiting import eventually


def be_in_the_middle(apps, schema_editor):
    if "MIDDLE" in os.environ:
        Path(os.environ["MIDDLE"]).touch()
        eventually(Path(os.environ["GO"]).exists)


class Migration(migrations.Migration):
    dependencies = [("migrated", "0001_goods")]
    operations = [
        migrations.CreateModel(name="Price", fields=[("id", models.BigAutoField(primary_key=True))]),
        migrations.RunPython(be_in_the_middle, migrations.RunPython.noop),
        migrations.CreateModel(name="Discount", fields=[("id", models.BigAutoField(primary_key=True))]),
    ]
