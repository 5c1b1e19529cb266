from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("django_singlejob", "0003_tasks")]

    operations = [
        migrations.CreateModel(
            name="Overview",
            fields=[],
            options={
                "verbose_name": "overview",
                "verbose_name_plural": "overview",
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("django_singlejob.jobstatus",),
        ),
        migrations.AddIndex(
            model_name="jobrun",
            index=models.Index(fields=["hostname", "started_at"], name="singlejob_run_host_started"),
        ),
        migrations.AddIndex(
            model_name="jobrun",
            index=models.Index(fields=["trigger", "started_at"], name="singlejob_run_trigger_started"),
        ),
        migrations.AlterModelOptions(
            name="joblock",
            options={
                "permissions": [
                    ("clear_joblock", "Can clear stale locks"),
                    ("force_joblock", "Can clear locks whose holders may be alive"),
                ],
                "verbose_name": "lock",
                "verbose_name_plural": "locks",
            },
        ),
        migrations.AlterModelOptions(
            name="jobstatus",
            options={
                "permissions": [("run_jobstatus", "Can run jobs now")],
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
            },
        ),
    ]
