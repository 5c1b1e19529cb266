from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("django_singlejob", "0006_run_token"),
    ]

    operations = [
        migrations.RemoveField(
            model_name="joblock",
            name="run",
        ),
        migrations.AddField(
            model_name="jobstatus",
            name="unrecorded",
            field=models.JSONField(
                blank=True,
                help_text="Of a run: how it ended, until that can be written to the history.",
                null=True,
                verbose_name="unrecorded end",
            ),
        ),
    ]
