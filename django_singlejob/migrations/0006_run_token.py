from django.db import migrations, models


class Migration(migrations.Migration):
    # Of its own, since it takes a while where the history is long: no lease and no gate is locked meanwhile.

    dependencies = [
        ("django_singlejob", "0005_lock_sent_at"),
    ]

    operations = [
        migrations.AlterField(
            model_name="jobrun",
            name="token",
            field=models.UUIDField(help_text="That of its lock.", unique=True, verbose_name="token"),
        ),
    ]
