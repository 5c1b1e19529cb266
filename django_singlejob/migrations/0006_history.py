from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("django_singlejob", "0005_lock_sent_at"),
    ]

    operations = [
        # First, since it takes a while where the history is long: no lease and no gate is locked meanwhile.
        migrations.AlterField(
            model_name="jobrun",
            name="token",
            field=models.UUIDField(help_text="That of its lock.", unique=True, verbose_name="token"),
        ),
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
